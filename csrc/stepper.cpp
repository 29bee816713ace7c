#include "stepper.h"

#include "isa.h"
#include "pool.h"
#include "threads.h"
#include "worker.h"

namespace unpad {
namespace {

template <class T>
class StepperOf : public Stepper {
  public:
    StepperOf(const Program& p, const Call& call, const Kernels<T>& kernels)
        : call_(call),
          slots_(fill_slots(call_.batch, share_out(call_.batch, 1)[0])),
          geometry_(p, sizeof(T), std::max<int64_t>(slots_.count(), 1), call_.batch.tokens()),
          reduces_(plan_reduces(p)),
          shared_{p, call_, kernels, geometry_, reduces_, {}, nullptr, 0} {
        Bump measure(nullptr);
        carve_shared(shared_, measure);
        shared_.worker_bytes = round_up(Worker<T>::memory_size(shared_), 4096);
        lease_ =
            std::make_unique<Lease>(static_cast<size_t>(measure.used() + shared_.worker_bytes));
        Bump bump(lease_->data());
        carve_shared(shared_, bump);
        std::copy(p.constants.begin(), p.constants.end(), shared_.constants);
        worker_ = std::make_unique<Worker<T>>(shared_, slots_, lease_->data() + bump.used());
        pack();
    }

    void pack() override { pack_matrices(shared_, 0, 1); }
    void step() override {
        const FlushDenormals flush;
        worker_->run();
    }

  private:
    Call call_;
    Slots slots_;
    Geometry geometry_;
    std::vector<ReducePlan> reduces_;
    Shared<T> shared_;
    std::unique_ptr<Lease> lease_;
    std::unique_ptr<Worker<T>> worker_;
};

}  // namespace

std::unique_ptr<Stepper> make_stepper(const Program& program, const Call& call) {
    for (int64_t b = 0; b < call.batch.size; ++b) {
        if (call.batch.length(b) != 1) throw ProgramError("a step has one token a sequence");
    }
    const TierTable& table = tables(active_tier());
    if (call.wide) return std::make_unique<StepperOf<double>>(program, call, *table.f64);
    const Kernels<float>& kernels = call.bfloat16 ? *table.bf16 : *table.f32;
    return std::make_unique<StepperOf<float>>(program, call, kernels);
}

}  // namespace unpad
