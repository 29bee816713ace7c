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

void run_stages(int stages, int n, const std::function<void(int, int)>& work) {
  const auto member = [&](int stage, int thread, int team) {
    const FlushDenormals flush;
    for (int i = thread; i < n; i += team) work(stage, i);
  };
  if (n == 1) {
    for (int stage = 0; stage < stages; ++stage) member(stage, 0, 1);
    return;
  }
#ifdef _OPENMP
#pragma omp parallel num_threads(n)
  for (int stage = 0; stage < stages; ++stage) {
    member(stage, omp_get_thread_num(), omp_get_num_threads());
#pragma omp barrier
  }
#else
  for (int stage = 0; stage < stages; ++stage) member(stage, 0, 1);
#endif
}

}  // namespace unpad
