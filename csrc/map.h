#pragma once

// The elementwise instructions: out = f(args), column by column. Each function says itself by its
// opcode; `map_rows<T, op>` is the kernel.

#include "kernels.h"
#include "vecmath.h"

namespace unpad {
namespace UNPAD_TIER {

// Functions that go through the C++ library, number by number.
template <Op op, class T>
inline T library(T x) {
    if constexpr (op == op_expm1) return std::expm1(x);
    if constexpr (op == op_log) return std::log(x);
    if constexpr (op == op_log1p) return std::log1p(x);
    if constexpr (op == op_log2) return std::log2(x);
    if constexpr (op == op_sin) return std::sin(x);
    if constexpr (op == op_cos) return std::cos(x);
    if constexpr (op == op_tan) return std::tan(x);
    if constexpr (op == op_asin) return std::asin(x);
    if constexpr (op == op_acos) return std::acos(x);
    if constexpr (op == op_atan) return std::atan(x);
    if constexpr (op == op_sinh) return std::sinh(x);
    if constexpr (op == op_cosh) return std::cosh(x);
    if constexpr (op == op_asinh) return std::asinh(x);
    if constexpr (op == op_acosh) return std::acosh(x);
    if constexpr (op == op_atanh) return std::atanh(x);
    if constexpr (op == op_erf) return std::erf(x);
    if constexpr (op == op_softplus) {  // log(1 + e^x) without overflow; x != x lets NaN through
        return (x > 0 || x != x ? x : T(0)) + std::log1p(std::exp(-std::abs(x)));
    }
}

template <Op op, class T>
inline T library(T x, T y) {
    if constexpr (op == op_pow) return std::pow(x, y);
    if constexpr (op == op_atan2) return std::atan2(x, y);
    if constexpr (op == op_fmod) return std::fmod(x, y);
    if constexpr (op == op_remainder) {  // the sign of the divisor, as in Python
        const T r = std::fmod(x, y);
        return r != 0 && (r < 0) != (y < 0) ? r + y : r;
    }
}

template <class V, class M>
inline V truth(M mask) {
    return mask ? V{} + 1 : V{};
}

template <Op op, class V>
inline V apply(V x) {
    using T = decltype(x[0] + x[0]);
    if constexpr (op == op_copy)
        return x;
    else if constexpr (op == op_neg)
        return -x;
    else if constexpr (op == op_abs)
        return x < 0 ? -x : (x == 0 ? V{} : x);
    else if constexpr (op == op_sign)
        return truth<V>(x > 0) - truth<V>(x < 0);
    else if constexpr (op == op_exp)
        return exp(x);
    else if constexpr (op == op_sqrt)
        return sqrt(x);
    else if constexpr (op == op_rsqrt)
        return 1 / sqrt(x);
    else if constexpr (op == op_reciprocal)
        return 1 / x;
    else if constexpr (op == op_square)
        return x * x;
    else if constexpr (op == op_tanh)
        return tanh(x);
    else if constexpr (op == op_sigmoid)
        return sigmoid(x);
    else if constexpr (op == op_relu)
        return x < 0 ? V{} : x;
    else if constexpr (op == op_floor)
        return rounded<kFloor>(x);
    else if constexpr (op == op_ceil)
        return rounded<kCeil>(x);
    else if constexpr (op == op_round)
        return rounded<kNearestEven>(x);
    else if constexpr (op == op_trunc)
        return rounded<kTruncate>(x);
    else if constexpr (op == op_logical_not)
        return truth<V>(x == 0);
    else if constexpr (op == op_isnan)
        return truth<V>(x != x);
    else
        return lanewise(x, [](T v) { return library<op>(v); });
}

template <Op op, class V>
inline V apply(V x, V y) {
    using T = decltype(x[0] + x[0]);
    if constexpr (op == op_add)
        return x + y;
    else if constexpr (op == op_sub)
        return x - y;
    else if constexpr (op == op_mul)
        return x * y;
    else if constexpr (op == op_div)
        return x / y;
    else if constexpr (op == op_maximum)
        return x != x ? x : (x > y ? x : y);
    else if constexpr (op == op_minimum)
        return x != x ? x : (x < y ? x : y);
    else if constexpr (op == op_eq)
        return truth<V>(x == y);
    else if constexpr (op == op_ne)
        return truth<V>(x != y);
    else if constexpr (op == op_lt)
        return truth<V>(x < y);
    else if constexpr (op == op_le)
        return truth<V>(x <= y);
    else if constexpr (op == op_gt)
        return truth<V>(x > y);
    else if constexpr (op == op_ge)
        return truth<V>(x >= y);
    else if constexpr (op == op_logical_and)
        return truth<V>((x != 0) & (y != 0));
    else if constexpr (op == op_logical_or)
        return truth<V>((x != 0) | (y != 0));
    else if constexpr (op == op_sigmoid_grad)
        return x * y * (1 - y);
    else if constexpr (op == op_tanh_grad)
        return x * (1 - y * y);
    else
        return lanewise(x, y, [](T v, T w) { return library<op>(v, w); });
}

template <Op op, class V>
inline V apply(V x, V y, V z) {
    if constexpr (op == op_where)
        return x != 0 ? y : z;
    else
        return fma(x, y, z);
}

// `repeats`: some argument is one column, repeated over the row.
template <class T, Op op, bool repeats>
void map_rows_as(const Step& step, RowMaps index, int64_t rows) {
    using V = typename Lanes<T>::Vec;
    constexpr int arity = kOps[op].most_args, lanes = kLanes<T>;
    const int64_t width = step.out.width;
    const RowsOf<T> outs(step.out, index);
    RowsOf<T> args[arity];
    bool single[arity];
    for (int k = 0; k < arity; ++k) {
        args[k] = RowsOf<T>(step.args[k], index);
        single[k] = step.args[k].width == 1;
    }
    for (int64_t r = 0; r < rows; ++r) {
        const T* a[arity];
        V one[arity] = {};
        for (int k = 0; k < arity; ++k) {
            a[k] = args[k][r];
            if (repeats && single[k]) one[k] = splat(*a[k]);
        }
        const auto value = [&](auto get) {
            if constexpr (arity == 1) return apply<op>(get(0));
            if constexpr (arity == 2) return apply<op>(get(0), get(1));
            if constexpr (arity == 3) return apply<op>(get(0), get(1), get(2));
        };
        T* out = outs[r];
        int64_t i = 0;
        for (; i + lanes <= width; i += lanes) {
            store(out + i, value([&](int k) -> V {
                      return repeats && single[k] ? one[k] : load(a[k] + i);
                  }));
        }
        if (i < width) {
            const int n = static_cast<int>(width - i);
            store_n(out + i, value([&](int k) -> V {
                        return repeats && single[k] ? one[k] : load_n(a[k] + i, n);
                    }),
                    n);
        }
    }
}

template <class T, Op op>
void map_rows(const Step& step, RowMaps index, int64_t rows) {
    bool repeats = false;
    if (step.out.width > 1) {
        for (int k = 0; k < step.n_args; ++k) repeats |= step.args[k].width == 1;
    }
    if (repeats) {
        map_rows_as<T, op, true>(step, index, rows);
    } else {
        map_rows_as<T, op, false>(step, index, rows);
    }
}

}  // namespace UNPAD_TIER
}  // namespace unpad
