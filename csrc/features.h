#pragma once

// Instructions over features: a row is seen as [outer, n, inner], the work is along n. The order of
// every sum depends on n and the tier only, never on the other rows.

#include <array>

#include "map.h"

namespace unpad {
namespace UNPAD_TIER {

// sum_j f(x[j], ...)[k] for j < n and k < count, each in four chains of lanes (one alone would wait
// for its own additions) and then across them; `f` gives `count` vectors, the tail masked.
template <class T, int count, class F, class... X>
inline void sums_along(int64_t n, T* sums, F f, const X*... x) {
    using V = typename Lanes<T>::Vec;
    constexpr int lanes = kLanes<T>, chains = 4;
    V parts[chains][count] = {};
    const auto add = [&](int c, const std::array<V, count>& values) {
        for (int k = 0; k < count; ++k) parts[c][k] += values[static_cast<size_t>(k)];
    };
    int64_t i = 0;
    for (; i + chains * lanes <= n; i += chains * lanes) {
        for (int c = 0; c < chains; ++c) add(c, f(load(x + i + c * lanes)...));
    }
    for (; i + lanes <= n; i += lanes) add(0, f(load(x + i)...));
    const int rest = static_cast<int>(n - i);
    std::array<V, count> last{};
    if (rest > 0) last = f(load_n(x + i, rest)...);
    for (int k = 0; k < count; ++k) {
        V total = (parts[0][k] + parts[1][k]) + (parts[2][k] + parts[3][k]);
        T tail[lanes] = {};
        // f(0) of the lanes past the end is dropped
        if (rest > 0) store_n(tail, last[static_cast<size_t>(k)], rest);
        if (rest > 0) total += load(tail);
        sums[k] = sum_lanes<T>(total);
    }
}

template <class T, class F, class... X>
inline T sum_along(int64_t n, F f, const X*... x) {
    using V = typename Lanes<T>::Vec;
    T sum;
    sums_along<T, 1>(n, &sum, [f](auto... v) { return std::array<V, 1>{f(v...)}; }, x...);
    return sum;
}

// out[j] = f(x[j], ...) for j < n; out may be one of x.
template <class T, class F, class... X>
inline void map_along(int64_t n, F f, T* out, const X*... x) {
    constexpr int lanes = kLanes<T>;
    int64_t i = 0;
    for (; i + lanes <= n; i += lanes) store(out + i, f(load(x + i)...));
    const int rest = static_cast<int>(n - i);
    if (rest > 0) store_n(out + i, f(load_n(x + i, rest)...), rest);
}

template <class T>
inline T max_of(T a, T b) {
    return a != a || a > b ? a : b;
}

template <class T>
void sum_features(const Step& step, RowMaps index, int64_t rows) {
    const auto [outer, n, inner] = step.dims;
    for (int64_t r = 0; r < rows; ++r) {
        const T* x = RowsOf<T>(step.args[0], index)[r];
        T* out = RowsOf<T>(step.out, index)[r];
        for (int64_t o = 0; o < outer; ++o, x += n * inner, out += inner) {
            if (inner == 1) {
                *out = sum_along<T>(n, [](auto v) { return v; }, x);
                continue;
            }
            for (int64_t i = 0; i < inner; ++i) out[i] = x[i];
            for (int64_t j = 1; j < n; ++j) {
                for (int64_t i = 0; i < inner; ++i) out[i] += x[j * inner + i];
            }
        }
    }
}

template <class T>
void max_features(const Step& step, RowMaps index, int64_t rows) {
    const auto [outer, n, inner] = step.dims;
    for (int64_t r = 0; r < rows; ++r) {
        const T* x = RowsOf<T>(step.args[0], index)[r];
        T* out = RowsOf<T>(step.out, index)[r];
        for (int64_t o = 0; o < outer; ++o, x += n * inner, out += inner) {
            for (int64_t i = 0; i < inner; ++i) out[i] = x[i];
            for (int64_t j = 1; j < n; ++j) {
                for (int64_t i = 0; i < inner; ++i) out[i] = max_of(out[i], x[j * inner + i]);
            }
        }
    }
}

template <class T>
void onehot_max_features(const Step& step, RowMaps index, int64_t rows) {
    const auto [outer, n, inner] = step.dims;
    for (int64_t r = 0; r < rows; ++r) {
        const T* x = RowsOf<T>(step.args[0], index)[r];
        T* out = RowsOf<T>(step.out, index)[r];
        for (int64_t o = 0; o < outer; ++o, x += n * inner, out += n * inner) {
            for (int64_t i = 0; i < inner; ++i) {
                int64_t best = 0;
                for (int64_t j = 0; j < n; ++j) {
                    const T v = x[j * inner + i], top = x[best * inner + i];
                    if (v > top || (v != v && top == top))
                        best = j;  // the first NaN wins, as in torch
                    out[j * inner + i] = 0;
                }
                out[best * inner + i] = 1;
            }
        }
    }
}

template <class T>
void expand_features(const Step& step, RowMaps index, int64_t rows) {
    const auto [outer, n, inner] = step.dims;
    for (int64_t r = 0; r < rows; ++r) {
        const T* x = RowsOf<T>(step.args[0], index)[r];
        T* out = RowsOf<T>(step.out, index)[r];
        for (int64_t o = 0; o < outer; ++o, x += inner) {
            for (int64_t j = 0; j < n; ++j) {
                for (int64_t i = 0; i < inner; ++i) *out++ = x[i];
            }
        }
    }
}

// exp(x - top) into out, both with the given stride; returns nothing: the sum is taken after.
template <class T>
inline void exp_minus(const T* x, T top, int64_t n, int64_t stride, T* out) {
    constexpr int lanes = kLanes<T>;
    for (int64_t j = 0; j < n; j += lanes) {
        const int count = static_cast<int>(n - j < lanes ? n - j : lanes);
        T block[lanes] = {};
        for (int i = 0; i < count; ++i) block[i] = x[(j + i) * stride];
        store(block, exp(load(block) - top));
        for (int i = 0; i < count; ++i) out[(j + i) * stride] = block[i];
    }
}

// softmax(x) = exp(x - max x) / sum exp(x - max x)
template <class T>
void softmax_features(const Step& step, RowMaps index, int64_t rows) {
    const auto [outer, n, inner] = step.dims;
    for (int64_t r = 0; r < rows; ++r) {
        const T* x = RowsOf<T>(step.args[0], index)[r];
        T* out = RowsOf<T>(step.out, index)[r];
        for (int64_t o = 0; o < outer; ++o, x += n * inner, out += n * inner) {
            for (int64_t i = 0; i < inner; ++i) {
                T top = x[i];
                for (int64_t j = 1; j < n; ++j) top = max_of(top, x[j * inner + i]);
                exp_minus(x + i, top, n, inner, out + i);
                T total = out[i];
                for (int64_t j = 1; j < n; ++j) total += out[j * inner + i];
                for (int64_t j = 0; j < n; ++j) out[j * inner + i] /= total;
            }
        }
    }
}

template <class T>
struct Moments {
    T mean, inv_std;
};

// Two passes: the one-pass variance loses every digit of inputs far from zero.
template <class T>
inline Moments<T> moments(const T* x, int64_t n, T eps) {
    const T mean = sum_along<T>(n, [](auto v) { return v; }, x) / static_cast<T>(n);
    const auto square = [mean](auto v) { return (v - mean) * (v - mean); };
    const T variance = sum_along<T>(n, square, x) / static_cast<T>(n);
    return {mean, 1 / std::sqrt(variance + eps)};
}

template <class T>
void normalize_features(const Step& step, RowMaps index, int64_t rows) {
    const int64_t outer = step.dims[0], n = step.dims[1];
    const bool both = step.also.width > 0;
    for (int64_t r = 0; r < rows; ++r) {
        const T* x = RowsOf<T>(step.args[0], index)[r];
        const T eps = *RowsOf<T>(step.args[1], index)[r];
        T* out = RowsOf<T>(step.out, index)[r];
        T* inv_std = both ? RowsOf<T>(step.also, index)[r] : nullptr;
        for (int64_t o = 0; o < outer; ++o, x += n, out += n) {
            const Moments<T> m = moments(x, n, eps);
            map_along(n, [m](auto v) { return (v - m.mean) * m.inv_std; }, out, x);
            if (both) inv_std[o] = m.inv_std;
        }
    }
}

template <class T>
void inv_std_features(const Step& step, RowMaps index, int64_t rows) {
    const int64_t outer = step.dims[0], n = step.dims[1];
    for (int64_t r = 0; r < rows; ++r) {
        const T* x = RowsOf<T>(step.args[0], index)[r];
        const T eps = *RowsOf<T>(step.args[1], index)[r];
        T* out = RowsOf<T>(step.out, index)[r];
        for (int64_t o = 0; o < outer; ++o) out[o] = moments(x + o * n, n, eps).inv_std;
    }
}

// r (h - mean(h) - y mean(h y)): h the gradient of y = normalize(x), r = inv_std(x); what is given
// is h, or the gradient g of y * gain, and h = g * gain.
template <class T, bool scaled>
void normalize_grad_features(const Step& step, RowMaps index, int64_t rows) {
    const int64_t outer = step.dims[0], n = step.dims[1];
    for (int64_t i = 0; i < rows; ++i) {
        const T* g = RowsOf<T>(step.args[0], index)[i];
        const T* y = RowsOf<T>(step.args[1], index)[i];
        const T* r = RowsOf<T>(step.args[2], index)[i];
        T* out = RowsOf<T>(step.out, index)[i];
        const auto group = [&](T factor, auto h, const auto*... given) {
            using V = typename Lanes<T>::Vec;
            const auto both = [=](auto w, auto... v) {
                return std::array<V, 2>{h(v...), h(v...) * w};
            };
            T sums[2];
            sums_along<T, 2>(n, sums, both, y, given...);
            const T mean = sums[0] / static_cast<T>(n), pull = sums[1] / static_cast<T>(n);
            const auto pulled = [=](auto w, auto... v) {
                return factor * (h(v...) - mean - w * pull);
            };
            map_along(n, pulled, out, y, given...);
        };
        for (int64_t o = 0; o < outer; ++o, g += n, y += n, out += n) {
            if constexpr (scaled) {
                const T* gain = RowsOf<T>(step.args[3], index)[i] + o * n;
                group(r[o], [](auto v, auto w) { return v * w; }, g, gain);
            } else {
                group(r[o], [](auto v) { return v; }, g);
            }
        }
    }
}

template <class T>
void take_features(const Step& step, RowMaps index, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
        const T* x = RowsOf<T>(step.args[0], index)[r];
        T* out = RowsOf<T>(step.out, index)[r];
        for (int64_t j = 0; j < step.out.width; ++j) out[j] = x[step.table[j]];
    }
}

template <class T>
void scatter_features(const Step& step, RowMaps index, int64_t rows) {
    for (int64_t r = 0; r < rows; ++r) {
        const T* x = RowsOf<T>(step.args[0], index)[r];
        T* out = RowsOf<T>(step.out, index)[r];
        for (int64_t j = 0; j < step.out.width; ++j) out[j] = 0;
        for (int64_t j = 0; j < step.args[0].width; ++j) out[step.table[j]] += x[j];
    }
}

}  // namespace UNPAD_TIER
}  // namespace unpad
