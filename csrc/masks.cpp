#include "masks.h"

#include <algorithm>

#include "isa.h"
#include "threads.h"

namespace unpad {
namespace {

// Numbers that are worth a thread: some 20 us, an empty parallel region takes 2 to 5.
constexpr int64_t kLeastNumbers = 1 << 15;

template <class T>
void draw_as(const Mask& mask, const Kernels<T>& kernels, int threads, T* out) {
    if (mask.keep <= 0 || mask.keep >> 32 != 0) {
        std::fill_n(out, mask.n_rows * mask.width, T(mask.keep > 0));
        return;
    }
    const int64_t most = std::max<int64_t>(mask.n_rows * mask.width / kLeastNumbers, 1);
    const int n = static_cast<int>(std::min<int64_t>({threads, most_threads(), most}));
    run_stages(1, 1, n, [&](int, int i) {
        const int64_t begin = mask.n_rows * i / n, end = mask.n_rows * (i + 1) / n;
        kernels.mask(static_cast<uint64_t>(mask.seed), static_cast<uint32_t>(mask.keep),
                     mask.rows + begin, end - begin, mask.width, out + begin * mask.width);
    });
}

}  // namespace

void draw_mask(const Mask& mask, bool wide, int threads, void* out) {
    const TierTable& table = tables(active_tier());
    if (wide)
        draw_as(mask, *table.f64, threads, static_cast<double*>(out));
    else
        draw_as(mask, *table.f32, threads, static_cast<float*>(out));
}

}  // namespace unpad
