#pragma once

// Products of bfloat16: `gemm.h` with operands that are rounded when they are packed, or just
// before they are multiplied; sums and results are float32.
//
// The depth goes in pairs, of which the second number is multiplied first: that is what vdpbf16ps
// does, two fused multiply-adds in a row. Where the instruction is missing the rounded numbers are
// kept as float32 and multiplied by `gemm.h` in the very same order: the AVX2 and AVX-512 tiers
// give the bits of the instruction (denormals aside, which it takes for 0).

#include "gemm.h"

namespace unpad {
namespace UNPAD_TIER {

// What is packed: a pair where the instruction is there, else a rounded number.
#if defined(__AVX512BF16__)

using Factor = Pair;

// Factors of two neighbours in depth, column by column; `step`: from factor to factor.
inline void fold(VecF even, VecF odd, Pair* to, int64_t) {
    store(to, pair_lanes(even, odd));
}
inline void fold_n(VecF even, VecF odd, Pair* to, int64_t, int n) {
    store_n(to, pair_lanes(even, odd), n);
}
// Those of the last number of an odd depth.
inline void fold_last_n(VecF even, Pair* to, int n) {
    store_n(to, pair_lanes(even, VecF{}), n);
}

// Factors of n numbers in a row; whole vectors are written.
inline void fold_row(const float* x, int64_t n, Pair* to) {
    constexpr int lanes = kLanes<float>;
    for (; n >= 2 * lanes; n -= 2 * lanes, x += 2 * lanes, to += lanes) {
        store(to, pair_neighbours(load(x), load(x + lanes)));
    }
    if (n > 0) store(to, pair_neighbours(load_part(x, n), load_part(x + lanes, n - lanes)));
}

#else

using Factor = float;

inline void fold(VecF even, VecF odd, float* to, int64_t step) {
    store(to, round_to_bfloat16(odd));
    store(to + step, round_to_bfloat16(even));
}
inline void fold_n(VecF even, VecF odd, float* to, int64_t step, int n) {
    store_n(to, round_to_bfloat16(odd), n);
    store_n(to + step, round_to_bfloat16(even), n);
}
inline void fold_last_n(VecF even, float* to, int n) {
    store_n(to, round_to_bfloat16(even), n);
}
inline void fold_row(const float* x, int64_t n, float* to) {
    constexpr int lanes = kLanes<float>;
    for (int64_t i = 0; i < n; i += lanes) {
        store(to + i, round_to_bfloat16(load_part(x + i, n - i)));
    }
    for (int64_t i = 0; i + 1 < n; i += 2) std::swap(to[i], to[i + 1]);
}

#endif

inline constexpr int kInFactor = std::is_same<Factor, Pair>::value ? 2 : 1;  // numbers

inline int64_t factors(int64_t numbers) {
    return (numbers + kInFactor - 1) / kInFactor;
}

inline void linear_rows_bf16(const Step& step, RowMaps index, int64_t rows) {
    linear_folded<Factor, kInFactor>(step, index, rows, fold_row);
}

// `pack` of kernels.h: panels of [factors of the depth][panel].
inline void pack_bf16(const float* m, int64_t stride_row, int64_t stride_col, int64_t rows,
                      int64_t cols, int64_t first, int64_t last, float* packed) {
    constexpr int lanes = kLanes<float>, width = kPanel<float>;
    constexpr int64_t block = 32;  // numbers of a column whose factors are made at once
    Factor* const out = reinterpret_cast<Factor*>(packed);
    const int64_t size = factors(rows) * width;
    for (int64_t panel = first; panel < last; ++panel) {
        const int64_t column = panel * width;
        const int64_t n = std::min<int64_t>(width, cols - column);
        const float* from = m + column * stride_col;
        Factor* to = out + panel * size;
        if (n < width) std::fill_n(to, size, Factor{});
        if (stride_col == 1 && n == width) {
            for (int64_t k = 0; k + 1 < rows; k += 2) {
                for (int v = 0; v < 2; ++v) {
                    const float* at = from + k * stride_row + v * lanes;
                    fold(load(at), load(at + stride_row), to + k / kInFactor * width + v * lanes,
                         width);
                }
            }
            if (rows % 2 != 0) {
                for (int v = 0; v < 2; ++v) {
                    fold_last_n(load(from + (rows - 1) * stride_row + v * lanes),
                                to + (rows - 1) / kInFactor * width + v * lanes, lanes);
                }
            }
            continue;
        }
        for (int64_t top = 0; top < rows; top += block) {
            const int64_t height = std::min(block, rows - top);
            for (int64_t j = 0; j < n; ++j) {
                float numbers[block];
                alignas(64) Factor line[block];
                const float* at = from + top * stride_row + j * stride_col;
                if (stride_row != 1) {
                    for (int64_t k = 0; k < height; ++k) numbers[k] = at[k * stride_row];
                    at = numbers;
                }
                fold_row(at, height, line);
                for (int64_t f = 0; f < factors(height); ++f) {
                    to[(top / kInFactor + f) * width + j] = line[f];
                }
            }
        }
    }
}

inline void pack_left_bf16(const Ref& a, RowMaps index, int64_t rows, float* packed) {
    constexpr int64_t block = 16;  // rows whose columns stay in the first-level cache meanwhile
    constexpr int lanes = kLanes<float>;
    Factor* const out = reinterpret_cast<Factor*>(packed);
    const RowsOf<float> from(a, index);
    const int64_t most = even_tile(a.width), tiles = (a.width + most - 1) / most;
    const int64_t full = a.width - tiles * (most - 1);
    for (int64_t first = 0; first < rows; first += block) {
        const int64_t last = std::min(first + block, rows);
        for (int64_t t = 0, k = 0; t < tiles; ++t) {
            const int64_t n = t < full ? most : most - 1;
            Factor* const tile = out + factors(rows) * k;
            for (int64_t at = 0; at < n; at += lanes) {
                const int part = static_cast<int>(std::min<int64_t>(n - at, lanes));
                for (int64_t r = first; r < last; r += 2) {
                    Factor* to = tile + r / kInFactor * n + at;
                    const VecF even = load_n(from[r] + k + at, part);
                    if (r + 1 < last)
                        fold_n(even, load_n(from[r + 1] + k + at, part), to, n, part);
                    else
                        fold_last_n(even, to, part);
                }
            }
            k += n;
        }
    }
}

inline void pack_right_bf16(const Ref& a, RowMaps index, int64_t rows, int64_t panel,
                            float* packed) {
    constexpr int lanes = kLanes<float>, width = kPanel<float>;
    Factor* const out = reinterpret_cast<Factor*>(packed);
    const RowsOf<float> from(a, index);
    for (int v = 0; v < 2; ++v) {
        const int64_t column = panel * width + v * lanes;
        const int64_t left = a.width - column;
        for (int64_t r = 0; r < rows; r += 2) {
            Factor* to = out + r / kInFactor * width + v * lanes;
            const auto row = [&](int64_t i) { return load_part(from[i] + column, left); };
            if (r + 1 < rows)
                fold(row(r), row(r + 1), to, width);
            else
                fold_last_n(row(r), to, lanes);
        }
    }
}

inline void outer_panel_bf16(const float* left, const float* right, int64_t right_step,
                             int64_t width, int64_t rows, float* acc, int64_t acc_stride) {
    outer_with<Factor>(even_tile(width), reinterpret_cast<const Factor*>(left),
                       reinterpret_cast<const Factor*>(right), right_step, width, factors(rows),
                       acc, acc_stride);
}

}  // namespace UNPAD_TIER
}  // namespace unpad
