#include "reduce.h"

#include <algorithm>

namespace unpad {

ReducePlan plan_reduce(const Phase& phase) {
    ReducePlan plan;
    for (const Instruction& in : phase.instructions) {
        if (in.op != op_outer) {
            plan.sums.push_back(&in);
            continue;
        }
        const auto same_left = [&](const Operand& o) { return o.same(in.args[0]); };
        const auto left = std::find_if(plan.lefts.begin(), plan.lefts.end(), same_left);
        const int number = static_cast<int>(left - plan.lefts.begin());
        if (left == plan.lefts.end()) plan.lefts.push_back(in.args[0]);
        const auto same_right = [&](const OuterGroup& g) { return g.right.same(in.args[1]); };
        auto group = std::find_if(plan.groups.begin(), plan.groups.end(), same_right);
        if (group == plan.groups.end()) {
            plan.groups.push_back({in.args[1], {}, {}});
            group = plan.groups.end() - 1;
        }
        group->lefts.push_back(number);
        group->accumulators.push_back(in.matrix);
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
