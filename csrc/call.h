#pragma once

// A call frame: where the caller's memory is. Decoded from one flat array (engine.h has the
// layout).

#include <cstdint>
#include <cstring>

#include "plan.h"
#include "program.h"

namespace unpad {

struct StreamPointer {
    char* data;
    int64_t row_stride;  // in numbers
    bool placed;         // rows are those of Batch::begins, not the tokens' own
};

struct MatrixPointer {
    const char* data;
    int64_t stride_row, stride_col;  // in numbers
};

struct Call {
    bool wide;      // float64
    bool bfloat16;  // float32, but products round their operands
    int threads;
    Batch batch;
    std::vector<StreamPointer> streams;
    std::vector<char*> shared;
    std::vector<MatrixPointer> matrices;
    std::vector<char*> accumulators;
    std::vector<char*> initial, final;  // by state, [B, width] or null

    void copy_initial(size_t state, int64_t sequence, int64_t bytes, void* to) const {
        const size_t n = static_cast<size_t>(bytes);
        if (initial[state] == nullptr)
            std::memset(to, 0, n);
        else
            std::memcpy(to, initial[state] + sequence * bytes, n);
    }
};

// Throws ProgramError where the frame does not fit the program.
Call read_frame(const Program& program, const int64_t* frame, int64_t size);

// Runs a pass. Throws std::bad_alloc.
void execute(const Program& program, const Call& call);

// Floating-point operations a second in registers, by `threads` threads of the active tier.
double machine_peak(int threads, bool wide);

}  // namespace unpad
