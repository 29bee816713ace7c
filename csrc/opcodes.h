#pragma once

// The instruction set: the single table that C++ code is generated from. Python's view of it
// (`unpad._native.opcodes()`) is compared with the compiler's table by a test.
//
// UNPAD_OP(name, least arguments, most arguments, shape rule). The code is the position in this
// list: append, never reorder. The shape rules are checked in program.cpp; the numbers are made
// in map.cpp (Map), features.cpp (the rules over features) and gemm.cpp (Linear, Outer, SumRows).
#define UNPAD_OPCODES(UNPAD_OP)                   \
    UNPAD_OP(copy, 1, 1, Map)                     \
    UNPAD_OP(neg, 1, 1, Map)                      \
    UNPAD_OP(abs, 1, 1, Map)                      \
    UNPAD_OP(sign, 1, 1, Map)                     \
    UNPAD_OP(exp, 1, 1, Map)                      \
    UNPAD_OP(expm1, 1, 1, Map)                    \
    UNPAD_OP(log, 1, 1, Map)                      \
    UNPAD_OP(log1p, 1, 1, Map)                    \
    UNPAD_OP(log2, 1, 1, Map)                     \
    UNPAD_OP(sqrt, 1, 1, Map)                     \
    UNPAD_OP(rsqrt, 1, 1, Map)                    \
    UNPAD_OP(reciprocal, 1, 1, Map)               \
    UNPAD_OP(square, 1, 1, Map)                   \
    UNPAD_OP(sin, 1, 1, Map)                      \
    UNPAD_OP(cos, 1, 1, Map)                      \
    UNPAD_OP(tan, 1, 1, Map)                      \
    UNPAD_OP(asin, 1, 1, Map)                     \
    UNPAD_OP(acos, 1, 1, Map)                     \
    UNPAD_OP(atan, 1, 1, Map)                     \
    UNPAD_OP(sinh, 1, 1, Map)                     \
    UNPAD_OP(cosh, 1, 1, Map)                     \
    UNPAD_OP(asinh, 1, 1, Map)                    \
    UNPAD_OP(acosh, 1, 1, Map)                    \
    UNPAD_OP(atanh, 1, 1, Map)                    \
    UNPAD_OP(tanh, 1, 1, Map)                     \
    UNPAD_OP(sigmoid, 1, 1, Map)                  \
    UNPAD_OP(relu, 1, 1, Map)                     \
    UNPAD_OP(softplus, 1, 1, Map)                 \
    UNPAD_OP(erf, 1, 1, Map)                      \
    UNPAD_OP(floor, 1, 1, Map)                    \
    UNPAD_OP(ceil, 1, 1, Map)                     \
    UNPAD_OP(round, 1, 1, Map)                    \
    UNPAD_OP(trunc, 1, 1, Map)                    \
    UNPAD_OP(logical_not, 1, 1, Map)              \
    UNPAD_OP(isnan, 1, 1, Map)                    \
    UNPAD_OP(add, 2, 2, Map)                      \
    UNPAD_OP(sub, 2, 2, Map)                      \
    UNPAD_OP(mul, 2, 2, Map)                      \
    UNPAD_OP(div, 2, 2, Map)                      \
    UNPAD_OP(pow, 2, 2, Map)                      \
    UNPAD_OP(maximum, 2, 2, Map)                  \
    UNPAD_OP(minimum, 2, 2, Map)                  \
    UNPAD_OP(atan2, 2, 2, Map)                    \
    UNPAD_OP(fmod, 2, 2, Map)                     \
    UNPAD_OP(remainder, 2, 2, Map)                \
    UNPAD_OP(eq, 2, 2, Map)                       \
    UNPAD_OP(ne, 2, 2, Map)                       \
    UNPAD_OP(lt, 2, 2, Map)                       \
    UNPAD_OP(le, 2, 2, Map)                       \
    UNPAD_OP(gt, 2, 2, Map)                       \
    UNPAD_OP(ge, 2, 2, Map)                       \
    UNPAD_OP(logical_and, 2, 2, Map)              \
    UNPAD_OP(logical_or, 2, 2, Map)               \
    UNPAD_OP(sigmoid_grad, 2, 2, Map)             \
    UNPAD_OP(tanh_grad, 2, 2, Map)                \
    UNPAD_OP(where, 3, 3, Map)                    \
    UNPAD_OP(mul_add, 3, 3, Map)                  \
    UNPAD_OP(sum, 1, 1, Fold)                     \
    UNPAD_OP(max, 1, 1, Fold)                     \
    UNPAD_OP(onehot_max, 1, 1, AlongAxis)         \
    UNPAD_OP(expand, 1, 1, Expand)                \
    UNPAD_OP(softmax, 1, 1, AlongAxis)            \
    UNPAD_OP(normalize, 2, 2, Normalize)          \
    UNPAD_OP(inv_std, 2, 2, InvStd)               \
    UNPAD_OP(normalize_grad, 3, 3, NormalizeGrad) \
    UNPAD_OP(take, 1, 1, Take)                    \
    UNPAD_OP(scatter, 1, 1, Scatter)              \
    UNPAD_OP(linear, 1, 2, Linear)                \
    UNPAD_OP(outer, 2, 2, Outer)                  \
    UNPAD_OP(sum_rows, 1, 2, SumRows)             \
    UNPAD_OP(scaled_normalize_grad, 4, 4, NormalizeGrad)

namespace unpad {

enum class Rule {
    Map,
    Fold,
    AlongAxis,
    Expand,
    Normalize,
    InvStd,
    NormalizeGrad,
    Take,
    Scatter,
    Linear,
    Outer,
    SumRows
};

enum Op : int {
#define UNPAD_OP(name, least, most, rule) op_##name,
    UNPAD_OPCODES(UNPAD_OP)
#undef UNPAD_OP
        op_count
};

struct OpInfo {
    const char* name;
    int least_args;
    int most_args;
    Rule rule;
};

inline constexpr OpInfo kOps[] = {
#define UNPAD_OP(name, least, most, rule) {#name, least, most, Rule::rule},
    UNPAD_OPCODES(UNPAD_OP)
#undef UNPAD_OP
};

// Of any instruction.
inline constexpr int kMostArgs = [] {
    int most = 0;
    for (const OpInfo& op : kOps) most = op.most_args > most ? op.most_args : most;
    return most;
}();

}  // namespace unpad
