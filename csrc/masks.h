#pragma once

// Masks of ones and zeros (philox.h has the kernel), shared out over threads by rows.

#include <cstdint>

namespace unpad {

struct Mask {
    int64_t seed;
    int64_t keep;         // of 2^32: the probability of a one
    const int64_t* rows;  // [n_rows]
    int64_t n_rows, width;
};

// out[n_rows, width], float32, or float64 where `wide`; whatever the number of threads.
void draw_mask(const Mask& mask, bool wide, int threads, void* out);

}  // namespace unpad
