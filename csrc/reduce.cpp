#include "reduce.h"

#include <algorithm>

namespace unpad {

namespace {

// The position of an operand among others; it is added where it is new.
size_t find(std::vector<Operand>& all, const Operand& wanted) {
    const auto same = [&](const Operand& o) { return o.same(wanted); };
    const auto at = std::find_if(all.begin(), all.end(), same);
    const size_t number = static_cast<size_t>(at - all.begin());
    if (at == all.end()) all.push_back(wanted);
    return number;
}

}  // namespace

ReducePlan plan_reduce(const Phase& phase) {
    ReducePlan plan;
    for (const Instruction& in : phase.instructions) {
        if (in.op != op_outer) {
            plan.sums.push_back(&in);
            continue;
        }
        const size_t left = find(plan.lefts, in.args[0]);
        const int right = static_cast<int>(find(plan.rights, in.args[1]));
        plan.products.resize(plan.lefts.size());
        plan.products[left].push_back({right, in.matrix});
    }
    return plan;
}

std::vector<ReducePlan> plan_reduces(const Program& p) {
    std::vector<ReducePlan> plans;
    for (const Phase& phase : p.phases) {
        plans.push_back(phase.kind == PhaseKind::Reduce ? plan_reduce(phase) : ReducePlan{});
    }
    return plans;
}

}  // namespace unpad
