#pragma once

// How a REDUCE phase is run: which operands are packed once and shared by several sums.

#include <vector>

#include "program.h"

namespace unpad {

// An outer product of a left operand.
struct OuterProduct {
    int right;  // of ReducePlan::rights
    int accumulator;
};

struct ReducePlan {
    std::vector<Operand> lefts, rights;
    std::vector<std::vector<OuterProduct>> products;  // by left
    std::vector<const Instruction*> sums;
};

ReducePlan plan_reduce(const Phase& phase);
std::vector<ReducePlan> plan_reduces(const Program& program);  // by phase

}  // namespace unpad
