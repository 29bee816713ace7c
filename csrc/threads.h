#pragma once

// Threads: OpenMP's, bound to the runtime that torch has loaded. A pool of our own beside torch's
// runs up to twice slower, since torch's workers spin for a while after each of its operations.

#include <functional>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace unpad {

// Threads that a call may use here: 1 without OpenMP, inside of a parallel region, and in a process
// that was forked (OpenMP's threads do not survive a fork).
int most_threads();

// work(stage, i) for the stages first .. last and every i < n: one parallel region, with a barrier
// between stages. `work` must not throw.
void run_stages(int first, int last, int n, const std::function<void(int stage, int i)>& work);

// work(i) for every i < n, on n threads even where fewer would be done sooner: to measure them.
void run_together(int n, const std::function<void(int i)>& work);

// Denormals cost a hundred cycles each; inside the engine they count as zero. The caller's flags
// come back at the end.
class FlushDenormals {
  public:
#if defined(__SSE2__)
    FlushDenormals() : saved_(_mm_getcsr()) {
        _mm_setcsr(saved_ | kFlushToZero | kDenormalsAreZero);
    }
    ~FlushDenormals() { _mm_setcsr(saved_); }

  private:
    static constexpr unsigned kFlushToZero = 0x8000, kDenormalsAreZero = 0x0040;
    unsigned saved_;
#endif
};

// The most threads of parallel regions that the calling thread opens, the framework's too; gives
// what it was. Other threads keep theirs.
int limit_threads(int n);

}  // namespace unpad
