#pragma once

// Masks of ones and zeros from counters: number n of row r is a function of the seed, r and n
// alone, so rows can be drawn in any order, by any thread, and again. Philox4x32-10 (Salmon et al.,
// 2011, "Parallel random numbers: as easy as 1, 2, 3"), which passes BigCrush.
//
// A row of `width` numbers is four quarters of q = ceil(width / 4): number w * q + j is word w of
//     philox(counter = {r mod 2^32, r div 2^32, j, 0}, key = {seed mod 2^32, seed div 2^32}).
// engine/randomness.py has the same in torch operations: the plain reference.

#include <algorithm>
#include <cstdint>

namespace unpad {
namespace UNPAD_TIER {

// Counters at once: two vectors of AVX-512, whose chains hide each other's latency.
inline constexpr int kCounters = 32;

inline void philox(uint64_t seed, int64_t row, int64_t first, uint32_t (&words)[4][kCounters]) {
    for (int i = 0; i < kCounters; ++i) {
        auto a = static_cast<uint32_t>(row);
        auto b = static_cast<uint32_t>(static_cast<uint64_t>(row) >> 32);
        auto c = static_cast<uint32_t>(first + i);
        uint32_t d = 0;
        auto k = static_cast<uint32_t>(seed);
        auto l = static_cast<uint32_t>(seed >> 32);
#pragma GCC unroll 10
        for (int round = 0; round < 10; ++round) {
            const uint64_t p = uint64_t{0xD2511F53} * a, q = uint64_t{0xCD9E8D57} * c;
            a = static_cast<uint32_t>(q >> 32) ^ b ^ k;
            b = static_cast<uint32_t>(q);
            c = static_cast<uint32_t>(p >> 32) ^ d ^ l;
            d = static_cast<uint32_t>(p);
            k += 0x9E3779B9;
            l += 0xBB67AE85;
        }
        words[0][i] = a;
        words[1][i] = b;
        words[2][i] = c;
        words[3][i] = d;
    }
}

// out[i, n] = 1 where number n of row rows[i] is below `limit`, else 0.
template <class T>
void mask_rows(uint64_t seed, uint32_t limit, const int64_t* rows, int64_t n_rows, int64_t width,
               T* out) {
    const int64_t quarter = (width + 3) / 4;
    uint32_t words[4][kCounters];
    for (int64_t i = 0; i < n_rows; ++i, out += width) {
        for (int64_t j = 0; j < quarter; j += kCounters) {
            philox(seed, rows[i], j, words);
            for (int w = 0; w < 4; ++w) {
                const int64_t at = w * quarter + j;
                const int64_t n = std::min(std::min<int64_t>(kCounters, quarter - j), width - at);
                for (int64_t m = 0; m < n; ++m) out[at + m] = words[w][m] < limit ? T(1) : T(0);
            }
        }
    }
}

}  // namespace UNPAD_TIER
}  // namespace unpad
