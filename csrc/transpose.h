#pragma once

// A square of numbers turned over its diagonal in registers: a matrix that is stored across its
// panels would else be packed number by number, which took a twentieth of a call on one sequence.

#include <algorithm>
#include <type_traits>
#include <utility>

#include "vec.h"

namespace unpad {
namespace UNPAD_TIER {

// Half (0: lower, 1: upper) of the lanes of a and b by turns: a0 b0 a1 b1 ...
template <int half, class V, int... i>
inline V interleave(V a, V b, std::integer_sequence<int, i...>) {
    constexpr int n = sizeof...(i);
#if defined(__clang__)
    return __builtin_shufflevector(a, b, (half * n / 2 + i / 2 + i % 2 * n)...);
#else
    using Index = std::conditional_t<sizeof(V{}[0]) == 4, IntF, IntD>;
    return __builtin_shuffle(a, b, Index{(half * n / 2 + i / 2 + i % 2 * n)...});
#endif
}

// to[j * to_step + i] = from[i * from_step + j] for i, j < lanes. A round of interleaving moves the
// lowest bit of a lane's number to its vector's; after log2(lanes) rounds all have changed places.
template <class T>
inline void transpose(const T* from, int64_t from_step, T* to, int64_t to_step) {
    constexpr int n = kLanes<T>;
    constexpr std::make_integer_sequence<int, n> lanes{};
    typename Lanes<T>::Vec now[n], next[n];
    for (int i = 0; i < n; ++i) now[i] = load(from + i * from_step);
    for (int round = n; round > 1; round /= 2) {
        for (int i = 0; i < n / 2; ++i) {
            next[2 * i] = interleave<0>(now[i], now[i + n / 2], lanes);
            next[2 * i + 1] = interleave<1>(now[i], now[i + n / 2], lanes);
        }
        std::copy_n(next, n, now);
    }
    for (int i = 0; i < n; ++i) store(to + i * to_step, now[i]);
}

}  // namespace UNPAD_TIER
}  // namespace unpad
