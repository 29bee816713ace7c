#include "threads.h"

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace unpad {
namespace {

std::atomic<bool> forked{false};

[[maybe_unused]] const int fork_hook =
    pthread_atfork(nullptr, nullptr, [] { forked.store(true, std::memory_order_relaxed); });

#ifdef _OPENMP
int64_t nanoseconds(clockid_t clock) {
    timespec now{};
    clock_gettime(clock, &now);
    return int64_t{1'000'000'000} * now.tv_sec + now.tv_nsec;
}

// How many of its threads a region gets. A thread that waits for a core holds up all the others,
// which spin for it: two processes of two threads on two cores ran at 36 % of their speed alone.
// Where a region took more than twice as long as its busiest thread worked, half as many threads
// would have been done sooner; so the next regions get half, and later ones try again. What each
// share of the work computes does not depend on it.
class Crew {
  public:
    int size(int n) {
        int halvings = halvings_.load(std::memory_order_relaxed);
        if (halvings > 0 && rest_.fetch_sub(1, std::memory_order_relaxed) <= 0) {
            halvings_.store(--halvings, std::memory_order_relaxed);
            rest_.store(period_.load(std::memory_order_relaxed), std::memory_order_relaxed);
            slow_.store(1, std::memory_order_relaxed);
        }
        return std::max(n >> halvings, 1);
    }

    void took(int64_t all, int64_t busiest) {
        if (all < 2 * busiest + kWaking) {
            slow_.store(0, std::memory_order_relaxed);
            if (halvings_.load(std::memory_order_relaxed) == 0) period_ = kShortest;
        } else if (slow_.fetch_add(1, std::memory_order_relaxed) > 0) {
            slow_.store(0, std::memory_order_relaxed);
            halvings_.fetch_add(1, std::memory_order_relaxed);
            const int period = period_.load(std::memory_order_relaxed);
            rest_.store(period, std::memory_order_relaxed);
            period_.store(std::min(2 * period, kLongest), std::memory_order_relaxed);
        }
    }

  private:
    static constexpr int64_t kWaking = 50'000;           // ns
    static constexpr int kShortest = 8, kLongest = 256;  // regions
    // Written by every thread that opens a region; a lost update costs some regions their best
    // size.
    std::atomic<int> halvings_{0}, rest_{0}, slow_{0}, period_{kShortest};
};

Crew crew;
#endif

}  // namespace

int most_threads() {
#ifdef _OPENMP
    if (forked.load(std::memory_order_relaxed) || omp_in_parallel()) return 1;
    return omp_get_thread_limit();
#else
    return 1;
#endif
}

void run_together(int n, const std::function<void(int)>& work) {
#ifdef _OPENMP
    if (n > 1) {
#pragma omp parallel num_threads(n)
        {
            for (int i = omp_get_thread_num(); i < n; i += omp_get_num_threads()) work(i);
        }
        return;
    }
#endif
    for (int i = 0; i < n; ++i) work(i);
}

void run_stages(int first, int last, int n, const std::function<void(int, int)>& work) {
    const auto member = [&](int stage, int thread, int team) {
        const FlushDenormals flush;
        for (int i = thread; i < n; i += team) work(stage, i);
    };
#ifdef _OPENMP
    const int size = n > 1 ? crew.size(n) : 1;
    if (size > 1) {
        const int64_t start = nanoseconds(CLOCK_MONOTONIC);
        std::atomic<int64_t> busiest{0};
#pragma omp parallel num_threads(size)
        {
            int64_t busy = 0;
            for (int stage = first; stage <= last; ++stage) {
                busy -= nanoseconds(CLOCK_THREAD_CPUTIME_ID);
                member(stage, omp_get_thread_num(), omp_get_num_threads());
                busy += nanoseconds(CLOCK_THREAD_CPUTIME_ID);
                if (stage < last) {
#pragma omp barrier
                }
            }
            int64_t most = busiest.load();
            while (busy > most && !busiest.compare_exchange_weak(most, busy)) {
            }
        }
        crew.took(nanoseconds(CLOCK_MONOTONIC) - start, busiest.load());
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
