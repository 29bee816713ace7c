#pragma once

// What a softmax does with a tile of logits, words by tokens: a row a word, a column a token. The
// sums over words then go down the columns, a vector of tokens at a time, each token's in the order
// of words: a token's bits depend on nothing but its own column.

#include <algorithm>
#include <limits>
#include <type_traits>

#include "features.h"

namespace unpad {
namespace UNPAD_TIER {

// f(number of vectors, first column) for all columns: four vectors at once, the rest one by one.
template <class T, class F>
inline void in_strips(int64_t cols, F f) {
    constexpr int lanes = kLanes<T>;
    int64_t c = 0;
    for (; c + 4 * lanes <= cols; c += 4 * lanes) f(std::integral_constant<int, 4>{}, c);
    for (; c < cols; c += lanes) f(std::integral_constant<int, 1>{}, c);
}

// NV vectors of columns. In place x = exp(x scale - top), top the column's largest; its sum, and
// the sum of the logits themselves where `total` is wanted.
template <class T, int NV>
inline void exp_columns(T* tile, int64_t ld, int64_t rows, T scale, T* top, T* sum, T* total) {
    using V = typename Lanes<T>::Vec;
    constexpr int lanes = kLanes<T>;
    V most[NV], sums[NV], totals[NV];
    each<NV>([&](int v) {
        // -inf everywhere: exp(-inf - lowest) is 0, exp(-inf + inf) were NaN.
        most[v] = splat(std::numeric_limits<T>::lowest());
        sums[v] = totals[v] = V{};
    });
    for (int64_t r = 0; r < rows; ++r) {
        each<NV>([&](int v) {
            const V x = load(tile + r * ld + v * lanes) * splat(scale);
            most[v] = x > most[v] ? x : most[v];
            totals[v] += x;
        });
    }
    for (int64_t r = 0; r < rows; ++r) {
        each<NV>([&](int v) {
            T* at = tile + r * ld + v * lanes;
            const V e = exp(load(at) * splat(scale) - most[v]);
            store(at, e);
            sums[v] += e;
        });
    }
    each<NV>([&](int v) {
        store(top + v * lanes, most[v]);
        store(sum + v * lanes, sums[v]);
        if (total != nullptr) store(total + v * lanes, totals[v]);
    });
}

template <class T>
void softmax_exp(T* tile, int64_t ld, int64_t rows, int64_t cols, T scale, T* top, T* sum,
                 T* total) {
    in_strips<T>(cols, [&](auto vectors, int64_t c) {
        exp_columns<T, vectors()>(tile + c, ld, rows, scale, top + c, sum + c,
                                  total == nullptr ? nullptr : total + c);
    });
}

// Blocks of words together: the largest logit and the sum relative to it, block by block.
template <class T>
void softmax_merge(const T* top, const T* sum, int64_t stride, int64_t blocks, int64_t cols,
                   T* whole_top, T* whole_sum) {
    using V = typename Lanes<T>::Vec;
    for (int64_t c = 0; c < cols; c += kLanes<T>) {
        V most = load(top + c), sums{};
        for (int64_t b = 1; b < blocks; ++b) {
            const V x = load(top + b * stride + c);
            most = x > most ? x : most;
        }
        for (int64_t b = 0; b < blocks; ++b) {
            sums += load(sum + b * stride + c) * exp(load(top + b * stride + c) - most);
        }
        store(whole_top + c, most);
        store(whole_sum + c, sums);
    }
}

template <class T, int NV>
inline void scale_columns(const T* tile, int64_t ld, int64_t rows, const T* top, const T* whole_top,
                          const T* whole_sum, const T* factor, const T* less, T* out) {
    using V = typename Lanes<T>::Vec;
    V times[NV], minus[NV];
    each<NV>([&](int v) {
        const int c = v * kLanes<T>;
        times[v] =
            exp(load(top + c) - load(whole_top + c)) / load(whole_sum + c) * load(factor + c);
        minus[v] = load(less + c);
    });
    for (int64_t r = 0; r < rows; ++r, tile += ld, out += ld) {
        each<NV>([&](int v) {
            const int c = v * kLanes<T>;
            store(out + c, load(tile + c) * times[v] - minus[v]);
        });
    }
}

// out = tile exp(top - whole_top) / whole_sum factor - less, column by column.
template <class T>
void softmax_scale(const T* tile, int64_t ld, int64_t rows, int64_t cols, const T* top,
                   const T* whole_top, const T* whole_sum, const T* factor, const T* less, T* out) {
    in_strips<T>(cols, [&](auto vectors, int64_t c) {
        scale_columns<T, vectors()>(tile + c, ld, rows, top + c, whole_top + c, whole_sum + c,
                                    factor + c, less + c, out + c);
    });
}

// The sum of each row's first `cols` numbers.
template <class T>
void softmax_sums(const T* tile, int64_t ld, int64_t rows, int64_t cols, T* out) {
    for (int64_t r = 0; r < rows; ++r) {
        out[r] = sum_along<T>(cols, [](auto v) { return v; }, tile + r * ld);
    }
}

// Puts a number of row `place` instead of the least of k, the first of a heap.
template <class T>
inline void put(T x, int64_t place, int64_t k, T* values, int64_t* places) {
    int64_t at = 0;
    for (int64_t next; (next = 2 * at + 1) < k; at = next) {
        if (next + 1 < k && values[next + 1] < values[next]) ++next;
        if (!(values[next] < x)) break;
        values[at] = values[next];
        places[at] = places[next];
    }
    values[at] = x;
    places[at] = place;
}

// Of each of the first `cols` columns the k largest numbers, [cols, k], the least of them first,
// and their rows, which count from `first`; of these and what stands there already, of blocks
// before.
template <class T>
void softmax_best(const T* tile, int64_t ld, int64_t rows, int64_t cols, int64_t first, int64_t k,
                  T* values, int64_t* places) {
    constexpr int64_t lanes = kLanes<T>, strip = 16;
    for (int64_t r = 0; r < rows; r += strip) {
        const int64_t end = std::min(r + strip, rows);
        for (int64_t c = 0; c < cols; c += lanes) {
            auto most = load(tile + r * ld + c);
            for (int64_t i = r + 1; i < end; ++i) {
                const auto x = load(tile + i * ld + c);
                most = x > most ? x : most;
            }
            T largest[lanes];
            store(largest, most);
            for (int64_t l = c; l < std::min(c + lanes, cols); ++l) {
                const T* least = values + l * k;
                if (!(largest[l - c] > *least)) continue;
                for (int64_t i = r; i < end; ++i) {
                    const T x = tile[i * ld + l];
                    if (x > *least) put(x, first + i, k, values + l * k, places + l * k);
                }
            }
        }
    }
}

}  // namespace UNPAD_TIER
}  // namespace unpad
