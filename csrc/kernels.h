#pragma once

// What a tier offers: one table of functions for each number type. Kernels trust their arguments
// (program.cpp has checked them) and allocate nothing.

#include <cstddef>
#include <cstdint>

#include "opcodes.h"

namespace unpad {

// Columns of a buffer, resolved: the numbers of row r start at
//     base + index[map][r] * stride   (bytes)
// where `index` is the executor's set of row maps (token number, window row, ...). A vector that
// all rows share has stride 0; an address that follows no pattern has base null and stride 1.
struct Ref {
    char* base;
    int64_t stride;
    int map;
    int64_t width;
};

using RowMaps = const int64_t* const*;

// The rows of an operand within a kernel. A kernel makes one on its stack: the compiler then knows
// that no store changes it.
template <class T>
struct RowsOf {
    char* base;
    const int64_t* map;
    int64_t stride;

    RowsOf() = default;
    RowsOf(const Ref& ref, RowMaps index)
        : base(ref.base), map(index[ref.map]), stride(ref.stride) {}
    T* operator[](int64_t r) const { return reinterpret_cast<T*>(base + map[r] * stride); }
};

// Columns of a stream's rows, in bytes.
struct Columns {
    const char* base;
    int64_t stride, bytes;
    bool placed;
};

// Rows of streams that the next step or block will touch: far memory, asked for while a product
// works on near memory, line by line. Not started: `at` is null.
struct Ahead {
    const Columns* streams;
    int64_t n_streams;
    const int64_t* rows[2];  // of streams that are not placed, and that are
    int64_t n_rows;
    int64_t lines;  // left, or a few more
    int64_t stream, row;
    const char* at;
    const char* end;
};

// An instruction whose operands are resolved.
struct Step {
    Op op;
    int n_args;
    Ref out;
    Ref args[kMostArgs];
    Ref also;  // normalize: where the inverse deviations go as well; without columns: nowhere
    int64_t dims[3];       // outer, n, inner
    const int32_t* table;  // take, scatter
    const void* matrix;    // linear: packed panels, as the table's own `pack` makes them
    Ahead* ahead;          // linear: what to fetch meanwhile, or null
    bool stream;           // linear: the rows of `out` are whole lines and not read again soon
};

using RowKernel = void (*)(const Step& step, RowMaps index, int64_t rows);

// Larger matrices, in bytes, do not stay in a second-level cache beside what they multiply.
inline constexpr int64_t kFarMatrix = int64_t{512} << 10;

// Rows that one call of a row kernel may be given (a block, or the live slots of a step).
inline constexpr int kMostRows = 128;

template <class T>
struct Kernels {
    int lanes;  // of a vector
    int panel;  // columns of a packed panel; accumulators are padded to a multiple of it

    // Every opcode but outer and sum_rows: out = op(args), row by row.
    RowKernel row[op_count];

    // Panels [first, last) of a matrix M[rows, cols] with any strides (in numbers): panel p holds
    // columns [p * panel, (p + 1) * panel) as [rows][panel], zeros past the last column.
    void (*pack)(const T* m, int64_t stride_row, int64_t stride_col, int64_t rows, int64_t cols,
                 int64_t first, int64_t last, T* out);

    // Whether `outer` takes rows of `right` as they are, unpacked.
    bool outer_in_place;

    // The operands of `outer`, packed from their rows. Left: tiles of columns, each
    // [rows][tile columns]; one panel of right: [rows][panel].
    void (*pack_left)(const Ref& a, RowMaps index, int64_t rows, T* out);
    void (*pack_right)(const Ref& a, RowMaps index, int64_t rows, int64_t panel, T* out);

    // acc[k, n] += sum over rows of left[r, k] * right[r, n] for the columns of one panel, packed
    // or read in place: rows of `right` are right_step numbers apart. The rows are summed from zero
    // first: the error grows with the rows of a window, not with all of them.
    void (*outer)(const T* left, const T* right, int64_t right_step, int64_t width, int64_t rows,
                  T* acc, int64_t acc_stride);
    // acc[n] += sum over rows of a[r, n], or of a[r, n] * b[r, n].
    void (*sum_rows)(const Ref& a, const Ref* b, RowMaps index, int64_t rows, T* acc);

    // total[j] = sum over i of parts[i * stride + j], in order of i.
    void (*add_parts)(const T* parts, int64_t n_parts, int64_t stride, int64_t n, T* total);

    // Rows of a mask (philox.h): 1 where a number from the seed is below `limit`, else 0.
    void (*mask)(uint64_t seed, uint32_t limit, const int64_t* rows, int64_t n_rows, int64_t width,
                 T* out);

    // A tile of logits, words by tokens (softmax_tile.h); `cols` whole vectors.
    void (*softmax_exp)(T* tile, int64_t ld, int64_t rows, int64_t cols, T scale, T* top, T* sum,
                        T* total);
    void (*softmax_merge)(const T* top, const T* sum, int64_t stride, int64_t blocks, int64_t cols,
                          T* whole_top, T* whole_sum);
    void (*softmax_scale)(const T* tile, int64_t ld, int64_t rows, int64_t cols, const T* top,
                          const T* whole_top, const T* whole_sum, const T* factor, const T* less,
                          T* out);
    void (*softmax_sums)(const T* tile, int64_t ld, int64_t rows, int64_t cols, T* out);
    void (*softmax_best)(const T* tile, int64_t ld, int64_t rows, int64_t cols, int64_t first,
                         int64_t k, T* values, int64_t* places);

    // Asks for the next n lines of `ahead`, into the second-level cache.
    void (*fetch)(Ahead& ahead, int64_t n);

    // n * `width` multiply-adds in registers, to measure what the machine can do at best.
    int multiply_adds_width;
    T (*multiply_adds)(int64_t n);
};

inline int64_t round_up(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

enum class Tier : int { generic, avx2, avx512, avx512_bf16, count };

// `bf16`: that of float32, but products round their operands to bfloat16 (gemm_bf16.h). Packed
// operands have a form of their own, in no more memory.
struct TierTable {
    const Kernels<float>* f32;
    const Kernels<double>* f64;
    const Kernels<float>* bf16;
};

// One definition a tier, in tier.cpp; isa.cpp picks.
namespace generic {
const TierTable& table();
}
namespace avx2 {
const TierTable& table();
}
namespace avx512 {
const TierTable& table();
}
namespace avx512_bf16 {
const TierTable& table();
}

}  // namespace unpad
