#pragma once

// Products. `linear_rows`: out = start + a M over packed panels of M. `outer_panel`: the sum over
// rows of a[k] g[n] into one panel of columns.
//
// A row's bits are its own: each output is a chain of multiply-adds over each stretch of k
// (kDepth), in one order, for every tile shape; no tail is special (panels are padded with zeros).
// Stretches are added up: the error grows with the root of a stretch, not of the width.

#include <algorithm>
#include <utility>

#include "kernels.h"
#include "transpose.h"
#include "vec.h"

namespace unpad {
namespace UNPAD_TIER {

template <class T>
inline constexpr int kPanel = 2 * kLanes<T>;

// Lines of a row of a panel's sums, and the numbers in one.
template <class T>
inline constexpr int kLine = 64 / int{sizeof(typename Lanes<T>::Number)};
template <class T>
inline constexpr int kPanelLines = std::max(kPanel<T> / kLine<T>, 1);

// Everything that the function calls is compiled into it: a single call left over, and an array of
// accumulators is written to memory at every multiply-add.
#define UNPAD_FLAT __attribute__((flatten))

// f(0), f(1), ... f(N - 1), written out: an array that is indexed by constants only lives in
// registers.
template <class F, int... i>
inline __attribute__((always_inline)) void each_of(F f, std::integer_sequence<int, i...>) {
    (f(i), ...);
}
template <int N, class F>
inline __attribute__((always_inline)) void each(F f) {
    each_of(f, std::make_integer_sequence<int, N>{});
}

// How many neighbouring panels a tile of MR rows spans: few rows need more columns to keep enough
// independent chains in flight; accumulators, MR broadcasts and one panel vector must fit.
template <int MR>
inline constexpr int kPanelsFor = MR * 8 + MR + 1 <= kRegisters   ? 4
                                  : MR * 4 + MR + 1 <= kRegisters ? 2
                                                                  : 1;

// acc[i][v] += sum over k of a[i * row + k * step] * panel[v][k], whose rows are `m_step` numbers
// apart; NV vectors, two a panel. One pointer leads to all of the tile's rows: a dozen would not
// fit the registers.
template <class T, int MR, int NV, int row, int step>
inline __attribute__((always_inline)) void multiply(typename Lanes<T>::Vec (&acc)[MR][NV],
                                                    const T* a, const T* m, int64_t m_step,
                                                    int64_t panel_size, int64_t depth) {
    using V = decltype(splat(T{}));  // of factors; for pairs not the vector of sums
    constexpr int lanes = kLanes<T>;
    const auto panel = [&](int64_t k, int v) {
        return load(m + (v / 2) * panel_size + k * m_step + (v % 2) * lanes);
    };
#pragma GCC unroll 4
    for (int64_t k = 0; k < depth; ++k) {
        // The shorter side stays in registers, the longer one passes through a single one.
        if constexpr (MR < NV) {
            V x[MR];
            each<MR>([&](int i) { x[i] = splat(a[i * row + k * step]); });
            each<NV>([&](int v) {
                const V b = panel(k, v);
                each<MR>([&](int i) { acc[i][v] = fma(x[i], b, acc[i][v]); });
            });
        } else {
            V b[NV];
            each<NV>([&](int v) { b[v] = panel(k, v); });
            each<MR>([&](int i) {
                const V x = splat(a[i * row + k * step]);
                each<NV>([&](int v) { acc[i][v] = fma(x, b[v], acc[i][v]); });
            });
        }
    }
}

// Depths beyond this are multiplied in stretches, so that a stretch of a panel stays in the
// first-level cache while all rows pass; each starts from zero, and is added to those before it.
// In numbers, whatever the tier: bfloat16 products have the same bits on all.
inline constexpr int64_t kDepth = 128;

// Rows of the left operand, as they are multiplied, are this far apart: a stretch and a line, for
// neighbours not to fall into the same sets of the first-level cache.
template <class T>
inline constexpr int kLeftStride = kDepth + 64 / int{sizeof(T)};

// Lines are asked for a few at a time: a core waits for some twenty at once, and a product that
// finds all of these taken waits as well.
inline constexpr int64_t kFetchDepth = 16;

template <class T>
struct LinearRows {
    using Number = typename Lanes<T>::Number;
    const T* left;  // a stretch of the left rows
    const Number* start[kMostRows];
    Number* out[kMostRows];
    int64_t start_width;  // 0: start from zero; 1: one number; else a row
    bool adds;            // to what `out` has, instead
    int64_t depth, cols;
    int64_t panel_size;
    const T* packed;
    Ahead* ahead;
    int64_t lines;       // of `ahead` to fetch at a time
    bool stream;         // past the caches, to whole vectors in whole lines
    const char* next;    // the panels after those at work, where they lie in far memory
    int64_t next_lines;  // of them to fetch at a time
};

inline void fetch(Ahead& ahead, int64_t n) {
    constexpr int64_t line = 64;
    ahead.lines -= n;
    for (; n > 0; --n, ahead.at += line) {
        if (ahead.at >= ahead.end) {
            if (ahead.row == ahead.n_rows) return;
            const Columns& c = ahead.streams[ahead.stream];
            ahead.at = c.base + ahead.rows[c.placed][ahead.row] * c.stride;
            ahead.end = ahead.at + c.bytes;
            if (++ahead.stream == ahead.n_streams) ahead.stream = 0, ++ahead.row;
        }
        __builtin_prefetch(ahead.at, 0, 2);
    }
}

// The numbers of the last panel that exist: a vector with n of them, zeros after.
template <class T>
inline typename Lanes<T>::Vec load_part(const T* p, int64_t n) {
    if (n >= kLanes<T>) return load(p);
    return n > 0 ? load_n(p, static_cast<int>(n)) : typename Lanes<T>::Vec{};
}
template <class T>
inline void store_part(T* p, typename Lanes<T>::Vec v, int64_t n) {
    if (n >= kLanes<T>)
        store(p, v);
    else if (n > 0)
        store_n(p, v, static_cast<int>(n));
}

// Rows [r, r + MR) times nv vectors of columns from a panel on. Branches stand outside of the loops
// over the tile, so that its accumulators never leave their registers.
template <class T, int MR, int nv>
UNPAD_FLAT void linear_tile(LinearRows<T>& l, int64_t r, int64_t panel) {
    constexpr int lanes = kLanes<T>;
    using V = typename Lanes<T>::Vec;
    using Number = typename Lanes<T>::Number;
    V acc[MR][nv];
    const int64_t column = panel * kPanel<T>;
    const int64_t left = l.cols - column;
    const bool full = left >= nv * lanes;
    const auto fill = [&](auto start) {
        each<MR>([&](int i) { each<nv>([&](int v) { acc[i][v] = start(i, v); }); });
    };
    if (l.start_width == 0 || l.adds) {
        fill([](int, int) { return V{}; });
    } else if (l.start_width == 1 && l.cols != 1) {
        fill([&](int i, int) { return splat(*l.start[r + i]); });
    } else if (full) {
        fill([&](int i, int v) { return load(l.start[r + i] + column + v * lanes); });
    } else {
        fill([&](int i, int v) {
            return load_part(l.start[r + i] + column + v * lanes, left - v * lanes);
        });
    }
    const T* rows = l.left + r * kLeftStride<T>;
    const T* packed = l.packed + panel * l.panel_size;
    for (int64_t k = 0; k < l.depth; k += kFetchDepth) {
        if (l.lines > 0) fetch(*l.ahead, l.lines);
        for (int64_t i = 0; i < l.next_lines; ++i, l.next += 64) __builtin_prefetch(l.next, 0, 2);
        multiply<T, MR, nv, kLeftStride<T>, 1>(acc, rows + k, packed + k * kPanel<T>, kPanel<T>,
                                               l.panel_size, std::min(kFetchDepth, l.depth - k));
    }
    if (l.adds) {
        each<MR>([&](int i) {
            each<nv>([&](int v) {
                const Number* out = l.out[r + i] + column + v * lanes;
                acc[i][v] += full ? load(out) : load_part(out, left - v * lanes);
            });
        });
    }
    each<MR>([&](int i) {
        each<nv>([&](int v) {
            Number* out = l.out[r + i] + column + v * lanes;
            if (full && l.stream)
                stream(out, acc[i][v]);
            else if (full)
                store(out, acc[i][v]);
            else
                store_part(out, acc[i][v], left - v * lanes);
        });
    });
}

// NV vectors for `rows` rows in tiles of MR and MR - 1 rows: the even split (16 = 6 + 5 + 5).
template <class T, int MR, int NV>
void linear_strip(LinearRows<T>& l, int64_t rows, int64_t panel) {
    const int64_t tiles = (rows + MR - 1) / MR;
    const int64_t full = rows - tiles * (MR - 1);  // tiles of MR rows; the others have one less
    int64_t r = 0, t = 0;
    for (; t < full; ++t, r += MR) linear_tile<T, MR, NV>(l, r, panel);
    if constexpr (MR > 1) {
        for (; t < tiles; ++t, r += MR - 1) linear_tile<T, MR - 1, NV>(l, r, panel);
    }
}

// The last n panels at once: in a tile of one alone, a row would wait for its own additions.
template <class T, int MR, int NP = kPanelsFor<MR> - 1>
inline void linear_rest(LinearRows<T>& l, int64_t rows, int64_t panel, int64_t n) {
    if constexpr (NP > 0) {
        if (n == NP) return linear_strip<T, MR, 2 * NP>(l, rows, panel);
        linear_rest<T, MR, NP - 1>(l, rows, panel, n);
    }
}

template <class T, int MR>
void linear_panels(LinearRows<T>& l, int64_t rows) {
    constexpr int wide = kPanelsFor<MR>;
    const int64_t panels = (l.cols + kPanel<T> - 1) / kPanel<T>;
    const int64_t times = (rows + MR - 1) / MR * ((l.depth + kFetchDepth - 1) / kFetchDepth);
    const auto share = [](int64_t lines, int64_t n) { return (lines + n - 1) / n; };
    l.lines = l.next_lines = 0;
    if (l.ahead != nullptr && l.ahead->lines > 0) {
        l.lines = share(l.ahead->lines, (panels + wide - 1) / wide * times);
    }
    constexpr int64_t bytes = kPanel<T> * int64_t{sizeof(T)};
    if (wide == 1 && panels * l.panel_size * int64_t{sizeof(T)} > kFarMatrix) {
        l.next_lines = share(l.depth * bytes / 64, times);
    }
    // A last panel with one vector in it: 200 columns, or the softmax of a few tokens. Few rows do
    // without, as their chains of a single vector would wait for their own additions.
    const bool half = l.cols - (panels - 1) * kPanel<T> <= kLanes<T> && (wide == 1 || panels == 1);
    const int64_t whole = panels - half;
    int64_t panel = 0;
    for (; panel + wide <= whole; panel += wide) {
        l.next = reinterpret_cast<const char*>(l.packed + (panel + wide) * l.panel_size);
        linear_strip<T, MR, 2 * wide>(l, rows, panel);
    }
    l.next_lines = 0;
    linear_rest<T, MR>(l, rows, panel, whole - panel);
    if (half) linear_strip<T, MR, 1>(l, rows, whole);
}

template <class T, int MR = kTileRows>
inline void linear_with(int tile_rows, LinearRows<T>& l, int64_t rows) {
    if (tile_rows == MR) return linear_panels<T, MR>(l, rows);
    if constexpr (MR > 1) linear_with<T, MR - 1>(tile_rows, l, rows);
}

// Most rows of a tile when `rows` are split evenly into tiles of at most kTileRows.
inline int64_t even_tile(int64_t rows) {
    const int64_t tiles = (rows + kTileRows - 1) / kTileRows;
    return (rows + tiles - 1) / tiles;
}

// `fold(from, n, to)` writes n numbers of a left row as they are multiplied, T each `in_factor` of
// them, and up to a vector more. Copied, the rows lie close together wherever they were: tokens far
// apart fall into the same sets of a cache.
template <class T, int in_factor, class Fold>
inline void linear_folded(const Step& step, RowMaps index, int64_t rows, Fold fold) {
    using Number = typename Lanes<T>::Number;
    alignas(64) T left[kMostRows * kLeftStride<T>];
    LinearRows<T> l;
    const int64_t depth = step.args[0].width;
    const int64_t factors = (depth + in_factor - 1) / in_factor;
    const int64_t stretches = (depth + kDepth - 1) / kDepth;
    // `fold` may work on pairs of pairs.
    const int64_t most = round_up((depth + stretches - 1) / stretches, 4);
    const int tile = static_cast<int>(even_tile(rows));
    l.left = left;
    l.start_width = step.n_args == 2 ? step.args[1].width : 0;
    l.cols = step.out.width;
    l.panel_size = factors * kPanel<T>;
    l.packed = static_cast<const T*>(step.matrix);
    l.ahead = step.ahead;
    l.stream = false;
    const RowsOf<Number> a(step.args[0], index), out(step.out, index);
    const RowsOf<Number> start(step.args[step.n_args - 1], index);
    for (int64_t r = 0; r < rows; ++r) {
        l.out[r] = out[r];
        l.start[r] = start[r];
    }
    for (int64_t k = 0; k < depth; k += most) {
        const int64_t numbers = std::min(most, depth - k);
        for (int64_t r = 0; r < rows; ++r) {
            fold(a[r] + k, numbers, left + r * kLeftStride<T>);
        }
        l.adds = k > 0;
        l.depth = (numbers + in_factor - 1) / in_factor;
        l.stream = step.stream && k + numbers == depth;
        linear_with<T>(tile, l, rows);
        l.packed += l.depth * kPanel<T>;
    }
}

template <class T>
void linear_rows(const Step& step, RowMaps index, int64_t rows) {
    linear_folded<T, 1>(step, index, rows, [](const T* from, int64_t n, T* to) {
        constexpr int64_t lanes = kLanes<T>;
        for (int64_t i = 0; i < n; i += lanes) store(to + i, load_part(from + i, n - i));
    });
}

// One panel of a matrix whose rows lie side by side: to[k][j] = from[k * stride][j].
template <class T>
void pack_rows(const T* from, int64_t stride, int64_t rows, T* to) {
    for (int64_t k = 0; k < rows; ++k, from += stride, to += kPanel<T>) {
        each<2>([&](int v) { store(to + v * kLanes<T>, load(from + v * kLanes<T>)); });
    }
}

template <class T>
void pack(const T* m, int64_t stride_row, int64_t stride_col, int64_t rows, int64_t cols,
          int64_t first, int64_t last, T* out) {
    constexpr int width = kPanel<T>, lanes = kLanes<T>;
    constexpr int64_t block = 32;  // rows of a transposed matrix whose lines stay in cache
    for (int64_t panel = first; panel < last; ++panel) {
        const int64_t column = panel * width;
        const int64_t n = std::min<int64_t>(width, cols - column);
        const T* from = m + column * stride_col;
        T* to = out + panel * rows * width;
        int64_t top = 0;
        if (n < width) {
            std::fill_n(to, rows * width, T(0));
        } else if (stride_col == 1) {
            pack_rows(from, stride_row, rows, to);
            continue;
        } else if (stride_row == 1) {
            for (; top + lanes <= rows; top += lanes) {
                for (int v = 0; v < width; v += lanes) {
                    transpose(from + v * stride_col + top, stride_col, to + top * width + v, width);
                }
            }
        }
        for (; top < rows; top += block) {
            const int64_t end = std::min(top + block, rows);
            for (int64_t j = 0; j < n; ++j) {
                for (int64_t k = top; k < end; ++k) {
                    to[k * width + j] = from[k * stride_row + j * stride_col];
                }
            }
        }
    }
}

// Columns [k, k + n) of the rows [first, last), n <= kTileRows, to [rows][n].
template <class T>
inline void pack_tile(const RowsOf<T>& from, int64_t first, int64_t last, int64_t k, int64_t n,
                      bool roomy, T* to) {
    constexpr int lanes = kLanes<T>;
    if (roomy && n <= lanes) {
        // Vector copies run into the next row, which is written after.
        for (int64_t r = first; r < last; ++r) store(to + r * n, load(from[r] + k));
    } else {
        for (int64_t r = first; r < last; ++r) std::copy_n(from[r] + k, n, to + r * n);
    }
}

template <class T>
void pack_left(const Ref& a, RowMaps index, int64_t rows, T* out) {
    constexpr int64_t block = 16;  // rows whose columns stay in the first-level cache meanwhile
    const RowsOf<T> from(a, index);
    const int64_t most = even_tile(a.width), tiles = (a.width + most - 1) / most;
    const int64_t full = a.width - tiles * (most - 1);
    for (int64_t first = 0; first < rows; first += block) {
        // The last row is copied exactly: nothing comes after it to overwrite an excess.
        const int64_t last = std::min(first + block, rows - 1);
        for (int64_t t = 0, k = 0; t < tiles; ++t) {
            const int64_t n = t < full ? most : most - 1;
            const bool roomy = k + kLanes<T> <= a.width && 2 * n >= kLanes<T>;
            pack_tile(from, first, last, k, n, roomy, out + rows * k);
            if (last == rows - 1) pack_tile(from, last, rows, k, n, false, out + rows * k);
            k += n;
        }
    }
}

template <class T>
void pack_right(const Ref& a, RowMaps index, int64_t rows, int64_t panel, T* out) {
    constexpr int lanes = kLanes<T>;
    const RowsOf<T> from(a, index);
    const int64_t column = panel * kPanel<T>, left = a.width - column;
    if (left >= kPanel<T>) {
        for (int64_t r = 0; r < rows; ++r, out += kPanel<T>) {
            const T* row = from[r] + column;
            store(out, load(row));
            store(out + lanes, load(row + lanes));
        }
        return;
    }
    const int n0 = static_cast<int>(std::min<int64_t>(left, lanes));
    const int n1 = static_cast<int>(left) - n0;
    for (int64_t r = 0; r < rows; ++r, out += kPanel<T>) {
        const T* row = from[r] + column;
        store(out, load_n(row, n0));
        store(out + lanes, n1 > 0 ? load_n(row + lanes, n1) : typename Lanes<T>::Vec{});
    }
}

template <class T, int MR>
UNPAD_FLAT inline void outer_tile(const T* left, const T* right, int64_t right_step, int64_t rows,
                                  typename Lanes<T>::Number* acc, int64_t acc_stride) {
    using V = typename Lanes<T>::Vec;
    using Number = typename Lanes<T>::Number;
    V sum[MR][2];
    each<MR>([&](int i) { sum[i][0] = sum[i][1] = V{}; });
    // Large accumulators lie in far memory. Asked for by half of the depth they are here when the
    // sums are; asked for at once, the operands would wait behind them.
    constexpr int64_t lines = MR * kPanelLines<T>;
    const int64_t share = (2 * lines * kFetchDepth + rows - 1) / rows;
    for (int64_t r = 0, line = 0; r < rows; r += kFetchDepth) {
        for (const int64_t end = std::min(line + share, lines); line < end; ++line) {
            const Number* row = acc + line / kPanelLines<T> * acc_stride;
            __builtin_prefetch(row + line % kPanelLines<T> * kLine<T>, 1, 2);
        }
        multiply<T, MR, 2, 1, MR>(sum, left + r * MR, right + r * right_step, right_step, 0,
                                  std::min(kFetchDepth, rows - r));
    }
    each<MR>([&](int i) {
        each<2>([&](int v) {
            Number* at = acc + i * acc_stride + v * kLanes<T>;
            store(at, load(at) + sum[i][v]);
        });
    });
}

template <class T, int MR = kTileRows>
inline void outer_with(int64_t most, const T* left, const T* right, int64_t right_step,
                       int64_t width, int64_t rows, typename Lanes<T>::Number* acc,
                       int64_t acc_stride) {
    if (most == MR) {
        const int64_t tiles = (width + MR - 1) / MR, full = width - tiles * (MR - 1);
        for (int64_t t = 0, k = 0; t < tiles; ++t) {
            if (t < full) {
                outer_tile<T, MR>(left + rows * k, right, right_step, rows, acc + k * acc_stride,
                                  acc_stride);
                k += MR;
            } else if constexpr (MR > 1) {
                outer_tile<T, MR - 1>(left + rows * k, right, right_step, rows,
                                      acc + k * acc_stride, acc_stride);
                k += MR - 1;
            }
        }
    } else if constexpr (MR > 1) {
        outer_with<T, MR - 1>(most, left, right, right_step, width, rows, acc, acc_stride);
    }
}

template <class T>
void outer_panel(const T* left, const T* right, int64_t right_step, int64_t width, int64_t rows,
                 T* acc, int64_t acc_stride) {
    outer_with<T>(even_tile(width), left, right, right_step, width, rows, acc, acc_stride);
}

// `count` vectors of columns of the sum over rows of a[r], or of a[r] * b[r]; the last of them has
// `last` numbers.
template <class T, int count, bool products>
UNPAD_FLAT inline void sum_columns(const RowsOf<T>& a, const RowsOf<T>& b, int64_t rows,
                                   int64_t column, int last, T* acc) {
    constexpr int lanes = kLanes<T>;
    typename Lanes<T>::Vec sums[count] = {};
    const auto part = [&](const T* row, int v) {
        return count > 1 || last == lanes ? load(row + v * lanes) : load_n(row, last);
    };
    for (int64_t r = 0; r < rows; ++r) {
        const T* x = a[r] + column;
        const T* y = products ? b[r] + column : nullptr;
        each<count>([&](int v) {
            if constexpr (products)
                sums[v] = fma(part(x, v), part(y, v), sums[v]);
            else
                sums[v] += part(x, v);
        });
    }
    each<count>([&](int v) {
        T* at = acc + column + v * lanes;
        store(at, load(at) + sums[v]);
    });
}

template <class T, bool products>
void sum_rows_as(const RowsOf<T>& a, const RowsOf<T>& b, int64_t rows, int64_t width, T* acc) {
    constexpr int lanes = kLanes<T>, most = 4;  // one sum alone would wait for its own additions
    int64_t column = 0;
    for (; column + most * lanes <= width; column += most * lanes) {
        sum_columns<T, most, products>(a, b, rows, column, lanes, acc);
    }
    for (; column < width; column += lanes) {
        const int last = static_cast<int>(std::min<int64_t>(lanes, width - column));
        sum_columns<T, 1, products>(a, b, rows, column, last, acc);
    }
}

template <class T>
void sum_rows(const Ref& a, const Ref* b, RowMaps index, int64_t rows, T* acc) {
    const RowsOf<T> x(a, index);
    if (b == nullptr)
        sum_rows_as<T, false>(x, x, rows, a.width, acc);
    else
        sum_rows_as<T, true>(x, RowsOf<T>(*b, index), rows, a.width, acc);
}

template <class T>
void add_parts(const T* parts, int64_t n_parts, int64_t stride, int64_t n, T* total) {
    std::copy_n(parts, n, total);
    for (int64_t i = 1; i < n_parts; ++i) {
        for (int64_t j = 0; j < n; ++j) total[j] += parts[i * stride + j];
    }
}

}  // namespace UNPAD_TIER
}  // namespace unpad
