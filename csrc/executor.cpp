// Runs a call: shares the sequences out, lends every worker its memory, packs the weights, lets the
// workers run, adds their sums up.

#include <chrono>
#include <cstring>

#include "call.h"
#include "isa.h"
#include "pool.h"
#include "threads.h"
#include "worker.h"

namespace unpad {
namespace {

// Length 0: the final state is the initial one.
void copy_states_of_empty(const Program& p, const Call& call) {
    for (size_t k = 0; k < p.states.size(); ++k) {
        const int64_t bytes = p.states[k].width * (call.wide ? 8 : 4);
        for (int64_t b = 0; b < call.batch.size; ++b) {
            if (call.batch.length(b) > 0 || call.final[k] == nullptr) continue;
            call.copy_initial(k, b, bytes, call.final[k] + b * bytes);
        }
    }
}

// Below this many multiply-adds a thread, waking it costs more than it saves (an empty parallel
// region takes 2 to 5 us).
constexpr int64_t kLeastWork = 500'000;

int threads_for(const Program& p, const Call& call) {
    const int64_t work = p.work_per_token * call.batch.tokens() / kLeastWork;
    int64_t full = 0;
    for (int64_t b = 0; b < call.batch.size; ++b) full += call.batch.length(b) > 0;
    const int64_t n = std::min({int64_t{call.threads}, int64_t{most_threads()}, full, work});
    return static_cast<int>(std::max<int64_t>(n, 1));
}

// Rows of each accumulator over threads; the parts of one number are added in order of thread.
template <class T>
void add_accumulators(const Shared<T>& s, const Worker<T>& first, int thread, int n, int parts) {
    const int64_t part_stride = s.worker_bytes / static_cast<int64_t>(sizeof(T));
    for (size_t i = 0; i < s.program.accumulators.size(); ++i) {
        const Matrix& m = s.program.accumulators[i];
        const int a = static_cast<int>(i);
        T* total = reinterpret_cast<T*>(s.call.accumulators[i]);
        for (int64_t row = m.rows * thread / n; row < m.rows * (thread + 1) / n; ++row) {
            s.kernels.add_parts(first.accumulator(a) + row * first.accumulator_stride(a), parts,
                                part_stride, m.cols, total + row * m.cols);
        }
    }
}

// A barrier among threads costs nothing on an idle machine and a time slice on a busy one: sizes
// below this are handled by one thread, in less than 50 us, outside of the parallel region.
constexpr int64_t kWorthSharing = 150'000;

int64_t numbers_in(const std::vector<Matrix>& matrices) {
    int64_t n = 0;
    for (const Matrix& m : matrices) n += m.rows * m.cols;
    return n;
}

std::vector<Slots> plan_slots(const Batch& batch, int n) {
    std::vector<Slots> slots;
    for (const Share& share : share_out(batch, n)) slots.push_back(fill_slots(batch, share));
    return slots;
}

int64_t most_slots(const std::vector<Slots>& all) {
    int64_t most = 1;
    for (const Slots& s : all) most = std::max(most, s.count());
    return most;
}

template <class T>
void execute_as(const Program& p, const Call& call, const Kernels<T>& kernels) {
    const int n = threads_for(p, call);
    const std::vector<Slots> slots = plan_slots(call.batch, n);
    const Geometry geometry(p, sizeof(T), most_slots(slots), call.batch.tokens());
    const std::vector<ReducePlan> reduces = plan_reduces(p);
    Shared<T> shared{p, call, kernels, geometry, reduces, {}, nullptr, 0};
    Bump measure(nullptr);
    carve_shared(shared, measure);
    shared.worker_bytes = round_up(Worker<T>::memory_size(shared), 4096);

    const Lease lease(static_cast<size_t>(measure.used() + n * shared.worker_bytes));
    Bump bump(lease.data());
    carve_shared(shared, bump);
    std::copy(p.constants.begin(), p.constants.end(), shared.constants);
    std::vector<Worker<T>> workers;
    workers.reserve(static_cast<size_t>(n));
    for (int i = 0; i < n; ++i) {
        workers.emplace_back(shared, slots[static_cast<size_t>(i)],
                             lease.data() + bump.used() + i * shared.worker_bytes);
    }
    const bool share_packing = numbers_in(p.matrices) > kWorthSharing;
    const bool share_adding = numbers_in(p.accumulators) > kWorthSharing;
    const FlushDenormals flush;
    if (!share_packing) pack_matrices(shared, 0, 1);
    const int first = share_packing ? 0 : 1, last = share_adding ? 2 : 1;
    run_stages(first, last, n, [&](int stage, int i) {
        if (stage == 0) pack_matrices(shared, i, n);
        if (stage == 1) workers[static_cast<size_t>(i)].run();
        if (stage == 2) add_accumulators(shared, workers[0], i, n, n);
    });
    if (!share_adding) add_accumulators(shared, workers[0], 0, 1, n);
}

// Floating-point operations a second of n threads at once: the best of several short runs.
template <class T>
double peak_of(const Kernels<T>& kernels, int n) {
    constexpr int64_t kRounds = 400'000;
    double best = 0;
    for (int run = 0; run < 8; ++run) {
        const auto start = std::chrono::steady_clock::now();
        run_together(n, [&](int) {
            volatile T sink = kernels.multiply_adds(kRounds);
            static_cast<void>(sink);
        });
        const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
        best = std::max(best, 2.0 * n * kRounds * kernels.multiply_adds_width / taken.count());
    }
    return best;
}

}  // namespace

double machine_peak(int threads, bool wide) {
    const TierTable& table = tables(active_tier());
    const int n = std::clamp(threads, 1, most_threads());
    return wide ? peak_of(*table.f64, n) : peak_of(*table.f32, n);
}

void execute(const Program& program, const Call& call) {
    copy_states_of_empty(program, call);
    const TierTable& table = tables(active_tier());
    if (call.wide)
        execute_as(program, call, *table.f64);
    else
        execute_as(program, call, call.bfloat16 ? *table.bf16 : *table.f32);
}

}  // namespace unpad
