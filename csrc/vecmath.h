#pragma once

// Elementwise functions on vectors. Own code for float32 exp, tanh, sigmoid (errors measured by
// tests/engine/test_native_math.py); the rest goes lane by lane through the C++ library.
//
// Clamps keep NaN: min_keep(limit, x) returns x where x is NaN.

#include "vec.h"

namespace unpad {
namespace UNPAD_TIER {

// ln 2 in two parts; the first has 10 bits, so n * kLn2High is exact for every exponent n.
inline constexpr float kLog2e = 1.44269504088896341f;
inline constexpr float kLn2High = 0.693359375f;
inline constexpr float kLn2Low = -2.12194440e-4f;
// Adding 1.5 * 2^23 leaves the nearest whole number in the low bits.
inline constexpr float kRounder = 12582912.0f;

struct Reduced {
    VecF r;  // in [-ln2/2, ln2/2]
    VecF p;  // exp(r) - 1
    IntF n;  // x = n ln2 + r
};

// Cody-Waite reduction and the Cephes polynomial (expf.c): exp(r) = 1 + r + r^2 q(r).
inline Reduced reduce_exp(VecF x) {
    const VecF shifted = fma(x, splat(kLog2e), splat(kRounder));
    const VecF n = shifted - kRounder;
    VecF r = fma(n, splat(-kLn2High), x);
    r = fma(n, splat(-kLn2Low), r);
    VecF q = splat(1.9875691500e-4f);
    q = fma(q, r, splat(1.3981999507e-3f));
    q = fma(q, r, splat(8.3334519073e-3f));
    q = fma(q, r, splat(4.1665795894e-2f));
    q = fma(q, r, splat(1.6666665459e-1f));
    q = fma(q, r, splat(5.0000001201e-1f));
    const VecF p = fma(q, r * r, r);
    return {r, p, (IntF)shifted - (IntF)splat(kRounder)};
}

// 2^n for n in [-126, 127].
inline VecF power_of_two(IntF n) {
    return (VecF)((n + 127) << 23);
}

inline VecF exp(VecF x) {
    x = min_keep(splat(88.8f), x);
    x = max_keep(splat(-104.0f), x);
    const Reduced e = reduce_exp(x);
    const IntF half = e.n >> 1;  // in two steps: n reaches 128 and -150
    return (e.p + 1.0f) * power_of_two(half) * power_of_two(e.n - half);
}

// exp(-x) stays in (0, 2^127], one scaling step.
inline VecF sigmoid(VecF x) {
    VecF y = -x;
    y = min_keep(splat(88.0f), y);
    y = max_keep(splat(-87.0f), y);
    const Reduced e = reduce_exp(y);
    const VecF s = power_of_two(e.n);
    return 1.0f / (1.0f + fma(e.p, s, s));
}

// tanh |x| = m / (m + 2) with m = exp(2|x|) - 1; past 10 the quotient is 1.
inline VecF tanh(VecF x) {
    const IntF sign = (IntF)x & INT32_MIN;
    const VecF magnitude = (VecF)((IntF)x & INT32_MAX);
    const Reduced e = reduce_exp(min_keep(splat(20.0f), magnitude + magnitude));
    const VecF s = power_of_two(e.n);
    const VecF m = fma(e.p, s, s - 1.0f);
    return (VecF)((IntF)(m / (m + 2.0f)) | sign);
}

inline VecD exp(VecD x) {
    return lanewise(x, [](double v) { return std::exp(v); });
}
inline VecD sigmoid(VecD x) {
    return 1.0 / (1.0 + exp(-x));
}
inline VecD tanh(VecD x) {
    return lanewise(x, [](double v) { return std::tanh(v); });
}

}  // namespace UNPAD_TIER
}  // namespace unpad
