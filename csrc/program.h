#pragma once

// A decoded pass. Everything in it has been checked (program.cpp), so the executor trusts it.

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "opcodes.h"

namespace unpad {

// Numbers of unpad.compiler.program.Kind.
enum class Kind : int { Stream, Window, Scratch, Shared, Const, Prev, Next, count };

enum class PhaseKind : int { Bulk, Loop, Reduce, count };

struct Buffer {
    Kind kind;
    int64_t width;
    int64_t index;
};

// Columns [offset, offset + width) of a buffer.
struct Operand {
    int buffer;
    int64_t offset;
    int64_t width;

    bool same(const Operand& o) const {
        return buffer == o.buffer && offset == o.offset && width == o.width;
    }
    bool overlaps(const Operand& o) const {
        return buffer == o.buffer && offset < o.offset + o.width && o.offset < offset + width;
    }
};

struct Instruction {
    Op op;
    Operand out;
    std::vector<Operand> args;
    std::vector<int64_t> dims;
    int matrix;  // of `matrices` for linear, of `accumulators` for outer and sum_rows
    int table;
};

struct Phase {
    PhaseKind kind;
    std::vector<Instruction> instructions;
    std::vector<int> states;  // a loop's own states
};

struct State {
    int64_t width;
    int stream;  // external stream with the state before each token; -1: no history
};

struct Matrix {
    int64_t rows, cols;
};

struct Program {
    std::vector<Buffer> buffers;
    std::vector<Phase> phases;
    std::vector<State> states;
    std::vector<Matrix> matrices;
    std::vector<Matrix> accumulators;
    std::vector<double> constants;
    std::vector<std::vector<int32_t>> tables;
    int64_t n_streams = 0;
    int64_t n_shared = 0;

    // Multiply-adds a token, for the decision to share the work out.
    int64_t work_per_token = 0;
};

struct ProgramError : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Decodes and checks the array that unpad.engine.native_engine.encode makes (layout there).
// Throws ProgramError.
Program decode(const int64_t* code, int64_t n_code, const double* constants, int64_t n_constants);

}  // namespace unpad
