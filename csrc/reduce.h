#pragma once

// How a REDUCE phase is run: which operands are packed once and shared by several sums.

#include <vector>

#include "program.h"

namespace unpad {

// Outer products that share their right operand are one product: its panels are packed once.
struct OuterGroup {
    Operand right;
    std::vector<int> lefts;         // of ReducePlan::lefts
    std::vector<int> accumulators;  // one each
};

struct ReducePlan {
    std::vector<Operand> lefts;
    std::vector<OuterGroup> groups;
    std::vector<const Instruction*> sums;
};

ReducePlan plan_reduce(const Phase& phase);
std::vector<ReducePlan> plan_reduces(const Program& program);  // by phase

}  // namespace unpad
