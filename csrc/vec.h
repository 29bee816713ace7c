#pragma once

// The vector layer: the only file with intrinsics. Kernels are written once over `Vec<T>` (GCC's
// vector extension) and compiled once per tier, in a namespace of the tier's name.
//
// Tails: load_n and store_n touch exactly n numbers, and the lanes past n hold zeros, so that a
// tail goes through the very operations of the body: its bits are the body's.

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#ifndef UNPAD_TIER
#error "compile with -DUNPAD_TIER=generic|avx2|avx512|avx512_bf16"
#endif

namespace unpad {
namespace UNPAD_TIER {

#if defined(__AVX512F__)
inline constexpr int kVectorBytes = 64;
inline constexpr int kRegisters = 32;
inline constexpr int kTileRows = 12;  // 12 rows x 2 vectors + 2 + 1 of 32 registers
#elif defined(__AVX2__)
inline constexpr int kVectorBytes = 32;
inline constexpr int kRegisters = 16;
inline constexpr int kTileRows = 6;  // 6 rows x 2 vectors + 2 + 1 of 16 registers
#else
inline constexpr int kVectorBytes = 16;
inline constexpr int kRegisters = 16;
inline constexpr int kTileRows = 6;
#endif

// Two neighbours along the depth of a product, rounded to bfloat16; the first is the low half.
struct Pair {
    uint32_t bits;
};

// `Number`: what products of T add up to.
template <class T>
struct Lanes;
template <>
struct Lanes<float> {
    using Number = float;
    typedef float Vec __attribute__((vector_size(kVectorBytes)));
    typedef int32_t Int __attribute__((vector_size(kVectorBytes)));
    typedef uint32_t Bits __attribute__((vector_size(kVectorBytes)));
};
template <>
struct Lanes<Pair> : Lanes<float> {};
template <>
struct Lanes<double> {
    using Number = double;
    typedef double Vec __attribute__((vector_size(kVectorBytes)));
    typedef int64_t Int __attribute__((vector_size(kVectorBytes)));
};

using VecF = Lanes<float>::Vec;
using VecD = Lanes<double>::Vec;
using IntF = Lanes<float>::Int;
using IntD = Lanes<double>::Int;

template <class T>
inline constexpr int kLanes = kVectorBytes / static_cast<int>(sizeof(T));

template <class T>
inline typename Lanes<T>::Vec load(const T* p) {
    typename Lanes<T>::Vec v;
    std::memcpy(&v, p, kVectorBytes);
    return v;
}
template <class T, class V>
inline void store(T* p, V v) {
    std::memcpy(p, &v, kVectorBytes);
}
// Past the caches, to an address that is a multiple of kVectorBytes.
template <class T, class V>
inline void stream(T* p, V v) {
#if defined(__AVX512F__)
    __m512i bits;
    std::memcpy(&bits, &v, sizeof(bits));
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), bits);
#elif defined(__AVX2__)
    __m256i bits;
    std::memcpy(&bits, &v, sizeof(bits));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(p), bits);
#else
    store(p, v);
#endif
}
template <class T>
inline typename Lanes<T>::Vec splat(T x) {
    return x - typename Lanes<T>::Vec{};  // x - 0 keeps -0 and NaN
}

// The lanes of `v` through a scalar function: the slow road, the same for body and tail.
template <class V, class F>
inline V lanewise(V v, F f) {
    V out{};
    for (unsigned i = 0; i < sizeof(V) / sizeof(v[0]); ++i) out[i] = f(v[i]);
    return out;
}
template <class V, class F>
inline V lanewise(V a, V b, F f) {
    V out{};
    for (unsigned i = 0; i < sizeof(V) / sizeof(a[0]); ++i) out[i] = f(a[i], b[i]);
    return out;
}

#if defined(__AVX512F__)

inline VecF load_n(const float* p, int n) {
    return _mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p);
}
inline VecD load_n(const double* p, int n) {
    return _mm512_maskz_loadu_pd(static_cast<__mmask8>((1u << n) - 1), p);
}
inline void store_n(float* p, VecF v, int n) {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), v);
}
inline void store_n(double* p, VecD v, int n) {
    _mm512_mask_storeu_pd(p, static_cast<__mmask8>((1u << n) - 1), v);
}
inline VecF fma(VecF a, VecF b, VecF c) {
    return _mm512_fmadd_ps(a, b, c);
}
inline VecD fma(VecD a, VecD b, VecD c) {
    return _mm512_fmadd_pd(a, b, c);
}
inline VecF sqrt(VecF a) {
    return _mm512_sqrt_ps(a);
}
inline VecD sqrt(VecD a) {
    return _mm512_sqrt_pd(a);
}
template <int mode>
inline VecF rounded(VecF a) {
    return _mm512_roundscale_ps(a, mode);
}
template <int mode>
inline VecD rounded(VecD a) {
    return _mm512_roundscale_pd(a, mode);
}
// The second argument where either is NaN, as minps does: keep the one that may be NaN second.
inline VecF min_keep(VecF a, VecF b) {
    return _mm512_min_ps(a, b);
}
inline VecF max_keep(VecF a, VecF b) {
    return _mm512_max_ps(a, b);
}

#elif defined(__AVX2__)

// A window into ones and zeros: kMask + 8 - n starts with n ones.
alignas(64) inline constexpr int32_t kMask[16] = {-1, -1, -1, -1, -1, -1, -1, -1};
alignas(64) inline constexpr int64_t kMaskWide[8] = {-1, -1, -1, -1};

inline __m256i mask_f(int n) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMask + 8 - n));
}
inline __m256i mask_d(int n) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(kMaskWide + 4 - n));
}
inline VecF load_n(const float* p, int n) {
    return _mm256_maskload_ps(p, mask_f(n));
}
inline VecD load_n(const double* p, int n) {
    return _mm256_maskload_pd(p, mask_d(n));
}
// vmaskmov stores are microcoded on older Zen (tens of cycles): scalar stores are faster there.
inline void store_n(float* p, VecF v, int n) {
    alignas(32) float out[8];
    store(out, v);
    for (int i = 0; i < n; ++i) p[i] = out[i];
}
inline void store_n(double* p, VecD v, int n) {
    alignas(32) double out[4];
    store(out, v);
    for (int i = 0; i < n; ++i) p[i] = out[i];
}
inline VecF fma(VecF a, VecF b, VecF c) {
    return _mm256_fmadd_ps(a, b, c);
}
inline VecD fma(VecD a, VecD b, VecD c) {
    return _mm256_fmadd_pd(a, b, c);
}
inline VecF sqrt(VecF a) {
    return _mm256_sqrt_ps(a);
}
inline VecD sqrt(VecD a) {
    return _mm256_sqrt_pd(a);
}
template <int mode>
inline VecF rounded(VecF a) {
    return _mm256_round_ps(a, mode | 8);
}
template <int mode>
inline VecD rounded(VecD a) {
    return _mm256_round_pd(a, mode | 8);
}
inline VecF min_keep(VecF a, VecF b) {
    return _mm256_min_ps(a, b);
}
inline VecF max_keep(VecF a, VecF b) {
    return _mm256_max_ps(a, b);
}

#else

template <class T>
inline typename Lanes<T>::Vec load_n(const T* p, int n) {
    typename Lanes<T>::Vec v{};
    for (int i = 0; i < n; ++i) v[i] = p[i];
    return v;
}
template <class T, class V>
inline void store_n(T* p, V v, int n) {
    for (int i = 0; i < n; ++i) p[i] = v[i];
}
// Without the instruction, a fused product costs a library call: two roundings here.
inline VecF fma(VecF a, VecF b, VecF c) {
    return a * b + c;
}
inline VecD fma(VecD a, VecD b, VecD c) {
    return a * b + c;
}
inline VecF sqrt(VecF a) {
    return lanewise(a, [](float x) { return std::sqrt(x); });
}
inline VecD sqrt(VecD a) {
    return lanewise(a, [](double x) { return std::sqrt(x); });
}
template <int mode, class V>
inline V rounded(V a) {
    return lanewise(a, [](auto x) {
        if constexpr (mode == 0) return std::nearbyint(x);
        if constexpr (mode == 1) return std::floor(x);
        if constexpr (mode == 2) return std::ceil(x);
        if constexpr (mode == 3) return std::trunc(x);
    });
}
inline VecF min_keep(VecF a, VecF b) {
    return a < b ? a : b;
}
inline VecF max_keep(VecF a, VecF b) {
    return a > b ? a : b;
}

#endif

#if defined(__AVX512BF16__)

using Pairs = __m512i;

inline Pairs load(const Pair* p) {
    return _mm512_loadu_si512(p);
}
inline Pairs splat(Pair x) {
    return _mm512_set1_epi32(static_cast<int>(x.bits));
}
inline void store_n(Pair* p, Pairs v, int n) {
    _mm512_mask_storeu_epi32(p, static_cast<__mmask16>((1u << n) - 1), v);
}
// c + both products of each pair: two fused multiply-adds, the second of the pair first.
inline VecF fma(Pairs a, Pairs b, VecF c) {
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}
// Numbers in a row, two vectors of them: each even one with the odd one behind it.
inline Pairs pair_neighbours(VecF first, VecF second) {
    return (Pairs)_mm512_cvtne2ps_pbh(second, first);
}
// Lane by lane.
inline Pairs pair_lanes(VecF even, VecF odd) {
    const Pairs order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, pair_neighbours(even, odd));
}

#else

// Rounded to bfloat16, nearest even, as the instruction does it; NaN stays as it is.
inline VecF round_to_bfloat16(VecF x) {
    using Bits = Lanes<float>::Bits;
    Bits bits;
    std::memcpy(&bits, &x, sizeof(bits));
    bits = (bits + (0x7fff + (bits >> 16 & 1))) & 0xffff0000;
    VecF r;
    std::memcpy(&r, &bits, sizeof(r));
    return x == x ? r : x;
}

#endif

// Modes of `rounded`.
inline constexpr int kNearestEven = 0, kFloor = 1, kCeil = 2, kTruncate = 3;

// Sum of the lanes as a tree of halves, lane i with lane i + half: an order that depends on the
// tier only.
template <class T, class V>
inline T sum_lanes(V v) {
    if constexpr (sizeof(V) == 2 * sizeof(T)) {
        return v[0] + v[1];
    } else {
        typedef T Half __attribute__((vector_size(sizeof(V) / 2)));
        Half halves[2];
        std::memcpy(halves, &v, sizeof(V));
        return sum_lanes<T>(halves[0] + halves[1]);
    }
}

}  // namespace UNPAD_TIER
}  // namespace unpad
