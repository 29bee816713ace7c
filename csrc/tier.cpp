// One tier's kernel table. Compiled once per tier with its instruction-set flags; everything below
// lives in the tier's namespace, so that no inline function of one tier is linked into another.

#include "features.h"
#include "gemm.h"
#include "gemm_bf16.h"
#include "kernels.h"
#include "map.h"
#include "peak.h"
#include "philox.h"
#include "softmax_tile.h"

namespace unpad {
namespace UNPAD_TIER {
namespace {

template <class T, Op op>
constexpr RowKernel row_kernel() {
    if constexpr (kOps[op].rule == Rule::Map)
        return map_rows<T, op>;
    else if constexpr (op == op_sum)
        return sum_features<T>;
    else if constexpr (op == op_max)
        return max_features<T>;
    else if constexpr (op == op_onehot_max)
        return onehot_max_features<T>;
    else if constexpr (op == op_expand)
        return expand_features<T>;
    else if constexpr (op == op_softmax)
        return softmax_features<T>;
    else if constexpr (op == op_normalize)
        return normalize_features<T>;
    else if constexpr (op == op_inv_std)
        return inv_std_features<T>;
    else if constexpr (op == op_normalize_grad)
        return normalize_grad_features<T, false>;
    else if constexpr (op == op_scaled_normalize_grad)
        return normalize_grad_features<T, true>;
    else if constexpr (op == op_take)
        return take_features<T>;
    else if constexpr (op == op_scatter)
        return scatter_features<T>;
    else if constexpr (op == op_linear)
        return linear_rows<T>;
    else
        return nullptr;
}

template <class T>
constexpr Kernels<T> kKernels = {
    kLanes<T>,
    kPanel<T>,
    {
#define UNPAD_OP(name, least, most, rule) row_kernel<T, op_##name>(),
        UNPAD_OPCODES(UNPAD_OP)
#undef UNPAD_OP
    },
    pack<T>,
    true,
    pack_left<T>,
    pack_right<T>,
    outer_panel<T>,
    sum_rows<T>,
    add_parts<T>,
    mask_rows<T>,
    softmax_exp<T>,
    softmax_merge<T>,
    softmax_scale<T>,
    softmax_sums<T>,
    softmax_best<T>,
    fetch,
    kChains * kLanes<T>,
    multiply_adds<T>,
};

constexpr Kernels<float> bf16_kernels() {
    Kernels<float> kernels = kKernels<float>;
    kernels.row[op_linear] = linear_rows_bf16;
    kernels.pack = pack_bf16;
    kernels.outer_in_place = false;
    kernels.pack_left = pack_left_bf16;
    kernels.pack_right = pack_right_bf16;
    kernels.outer = outer_panel_bf16;
    return kernels;
}
constexpr Kernels<float> kKernelsBf16 = bf16_kernels();

}  // namespace

const TierTable& table() {
    static constexpr TierTable tables{&kKernels<float>, &kKernels<double>, &kKernelsBf16};
    return tables;
}

}  // namespace UNPAD_TIER
}  // namespace unpad
