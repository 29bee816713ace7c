#include "threads.h"

#include <pthread.h>

#include <atomic>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace unpad {
namespace {

std::atomic<bool> forked{false};

[[maybe_unused]] const int fork_hook =
    pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });

}  // namespace

int most_threads() {
#ifdef _OPENMP
    if (forked.load(std::memory_order_relaxed) || omp_in_parallel()) return 1;
    return omp_get_thread_limit();
#else
    return 1;
#endif
}

void run_stages(int first, int last, int n, const std::function<void(int, int)>& work) {
    const auto member = [&](int stage, int thread, int team) {
        const FlushDenormals flush;
        for (int i = thread; i < n; i += team) work(stage, i);
    };
#ifdef _OPENMP
    if (n > 1) {
#pragma omp parallel num_threads(n)
        for (int stage = first; stage <= last; ++stage) {
            member(stage, omp_get_thread_num(), omp_get_num_threads());
            if (stage < last) {
#pragma omp barrier
            }
        }
        return;
    }
#endif
    for (int stage = first; stage <= last; ++stage) member(stage, 0, 1);
}

int limit_threads([[maybe_unused]] int n) {
#ifdef _OPENMP
    const int before = omp_get_max_threads();
    omp_set_num_threads(n);
    return before;
#else
    return 1;
#endif
}

}  // namespace unpad
