#include "isa.h"

#include <atomic>
#include <cstdlib>
#include <stdexcept>

namespace unpad {
namespace {

#if defined(__x86_64__) || defined(__i386__)
// GCC's feature bits include the operating system's part (xgetbv).
bool has_avx2() {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
bool has_avx512() {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512vl");
}
bool has_avx512_bf16() {
    return has_avx512() && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512bf16");
}
#else
bool has_avx2() {
    return false;
}
bool has_avx512() {
    return false;
}
bool has_avx512_bf16() {
    return false;
}
#endif

std::atomic<int> chosen{-1};

Tier best() {
    Tier tier = Tier::generic;
    for (Tier t : built_tiers()) {
        if (can_run(t)) tier = t;
    }
    return tier;
}

std::string names(const std::vector<Tier>& tiers) {
    std::string out;
    for (Tier t : tiers) out += (out.empty() ? "" : ", ") + std::string(name_of(t));
    return out;
}

std::vector<Tier> supported() {
    std::vector<Tier> out;
    for (Tier t : built_tiers()) {
        if (can_run(t)) out.push_back(t);
    }
    return out;
}

}  // namespace

const char* name_of(Tier tier) {
    switch (tier) {
        case Tier::avx2:
            return "avx2";
        case Tier::avx512:
            return "avx512";
        case Tier::avx512_bf16:
            return "avx512_bf16";
        default:
            return "generic";
    }
}

std::vector<Tier> built_tiers() {
    return {
        Tier::generic,
#ifdef UNPAD_X86_TIERS
        Tier::avx2,
        Tier::avx512,
        Tier::avx512_bf16,
#endif
    };
}

bool can_run(Tier tier) {
    switch (tier) {
        case Tier::avx2:
            return has_avx2();
        case Tier::avx512:
            return has_avx512();
        case Tier::avx512_bf16:
            return has_avx512_bf16();
        default:
            return tier == Tier::generic;
    }
}

Tier active_tier() {
    const int tier = chosen.load(std::memory_order_relaxed);
    if (tier >= 0) return static_cast<Tier>(tier);
    if (const char* wanted = std::getenv("UNPAD_ISA"); wanted != nullptr && *wanted != '\0') {
        select_tier(wanted);
    } else {
        chosen = static_cast<int>(best());
    }
    return static_cast<Tier>(chosen.load());
}

void select_tier(const std::string& name) {
    for (Tier t : supported()) {
        if (name == name_of(t)) {
            chosen = static_cast<int>(t);
            return;
        }
    }
    throw std::invalid_argument("UNPAD_ISA: got '" + name + "'; allowed on this machine: " +
                                names(supported()) + "; unset it to use the best of them");
}

const TierTable& tables(Tier tier) {
#ifdef UNPAD_X86_TIERS
    if (tier == Tier::avx2) return avx2::table();
    if (tier == Tier::avx512) return avx512::table();
    if (tier == Tier::avx512_bf16) return avx512_bf16::table();
#endif
    (void)tier;
    return generic::table();
}

}  // namespace unpad
