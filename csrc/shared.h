#pragma once

// What all threads of a call share: sizes, packed weights, constants.

#include <algorithm>

#include "call.h"
#include "kernels.h"
#include "reduce.h"

namespace unpad {

// Hands out pieces of one block of memory; with base null it only counts.
class Bump {
  public:
    explicit Bump(char* base) : base_(base) {}
    template <class T>
    T* take(int64_t n) {
        const int64_t at = used_;
        used_ += round_up(n * static_cast<int64_t>(sizeof(T)), 64);
        return reinterpret_cast<T*>(base_ + at);
    }
    int64_t used() const { return used_; }

  private:
    char* base_;
    int64_t used_ = 0;
};

// Sizes that all threads share, chosen once a call.
struct Geometry {
    int64_t slots;    // the most of any thread
    int64_t window;   // rows
    int64_t block;    // rows of a BULK block
    int64_t scratch;  // rows of a scratch buffer: a block's or a step's

    Geometry(const Program& p, int64_t number_size, int64_t most_slots, int64_t tokens)
        : slots(most_slots) {
        int64_t window_bytes = 1, all_bytes = 1;
        for (const Buffer& b : p.buffers) {
            if (b.kind == Kind::Window) window_bytes += b.width * number_size;
            all_bytes += b.width * number_size;
        }
        // The window's rows stay in a second-level cache of half a megabyte or more. Every window
        // reads and writes the sums once: where they lie in far memory, it is longer.
        int64_t sums = 0;
        for (const Matrix& m : p.accumulators) sums += m.rows * m.cols * number_size;
        const int64_t least = sums > int64_t{1} << 20 ? 256 : 128;
        window = std::clamp<int64_t>((int64_t{384} << 10) / window_bytes, least, 256);
        window = std::max(slots, std::min(window, tokens));
        // A block's rows stay there as well. But each block reads every matrix of its phase: where
        // one comes from far memory, more rows share it.
        int64_t largest = 0;
        for (const Matrix& m : p.matrices) {
            largest = std::max(largest, m.rows * m.cols * number_size);
        }
        const int64_t fewest = largest > kFarMatrix ? 96 : 12;
        block = std::clamp<int64_t>((int64_t{128} << 10) / all_bytes / 12 * 12, fewest, 96);
        block = std::min(block, window);
        scratch = std::max(block, slots);
    }
};

template <class T>
struct Shared {  // what all threads read
    const Program& program;
    const Call& call;
    const Kernels<T>& kernels;
    const Geometry& geometry;
    const std::vector<ReducePlan>& reduces;
    std::vector<T*> packed;  // by matrix
    T* constants;
    int64_t worker_bytes;
};

inline int64_t packed_size(int64_t panel, const Matrix& m) {
    return m.rows * round_up(m.cols, panel);
}

template <class T>
void pack_matrices(const Shared<T>& s, int thread, int n_threads) {
    for (size_t i = 0; i < s.packed.size(); ++i) {
        const Matrix& m = s.program.matrices[i];
        const MatrixPointer& from = s.call.matrices[i];
        const int64_t panels = (m.cols + s.kernels.panel - 1) / s.kernels.panel;
        s.kernels.pack(reinterpret_cast<const T*>(from.data), from.stride_row, from.stride_col,
                       m.rows, m.cols, panels * thread / n_threads,
                       panels * (thread + 1) / n_threads, s.packed[i]);
    }
}

template <class T>
void carve_shared(Shared<T>& s, Bump& bump) {
    s.packed.clear();
    for (const Matrix& m : s.program.matrices) {
        s.packed.push_back(bump.take<T>(packed_size(s.kernels.panel, m)));
    }
    s.constants = bump.take<T>(static_cast<int64_t>(s.program.constants.size()));
}

}  // namespace unpad
