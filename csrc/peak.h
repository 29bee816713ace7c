#pragma once

// The most multiply-adds that a core of this tier does: independent chains that never leave their
// registers. What a product reaches is quoted as a share of it.

#include "gemm.h"

namespace unpad {
namespace UNPAD_TIER {

// Enough chains to hide the latency of a multiply-add; two registers are left for its factors.
inline constexpr int kChains = kRegisters >= 32 ? 24 : 12;

// n * kChains * kLanes<T> multiply-adds; a sum of them, so that none can be left out.
template <class T>
T multiply_adds(int64_t n) {
    using V = typename Lanes<T>::Vec;
    V sums[kChains];
    each<kChains>([&](int i) { sums[i] = splat(T(i)); });
    const V x = splat(T(n) * 0 + T(0.5)), y = splat(T(n) * 0 + T(1));
    for (int64_t k = 0; k < n; ++k) {
        each<kChains>([&](int i) { sums[i] = fma(sums[i], x, y); });
    }
    V all{};
    each<kChains>([&](int i) { all += sums[i]; });
    return sum_lanes<T>(all);
}

}  // namespace UNPAD_TIER
}  // namespace unpad
