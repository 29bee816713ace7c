// The likeliest words of some classes, each for some tokens, within the class: what an exact search
// for the likeliest of all words asks for. A class's tokens make one product; of its logits nothing
// is kept but sums and the best.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <vector>

#include "pool.h"
#include "softmax_steps.h"
#include "threads.h"

namespace unpad {
namespace {

template <class T>
class Best {
    using Group = SoftmaxGroup<T>;
    using Steps = SoftmaxSteps<T>;
    using Scratch = typename Steps::Scratch;

  public:
    Best(const SoftmaxCall<T>& call, const SoftmaxPairs& pairs, const Kernels<T>& kernels)
        : c_(call), p_(pairs), k_(kernels), steps_(call, kernels) {}

    void run() const {
        if (p_.count == 0) return;
        int64_t words = 0, tokens = 0;
        for (int64_t i = 0; i < c_.classes; ++i) {
            words = std::max(words, c_.starts[i + 1] - c_.starts[i]);
            tokens = std::max(tokens, p_.starts[i + 1] - p_.starts[i]);
        }
        // A tile holds a block: words of a class follow one another through it.
        const Group block{&c_.by_word, nullptr, 0,    std::min<int64_t>(words, kMostRows),
                          p_.tokens,   tokens,  false};
        const int64_t blocks = (words + kMostRows - 1) / kMostRows;
        Scratch sizes;
        const int64_t bytes = round_up(steps_.scratch(block, nullptr, &sizes), 64);
        const int64_t sums = round_up(blocks * sizes.chunk * int64_t{sizeof(T)}, 64);
        const int64_t room = round_up(bytes + 2 * sums, 4096);
        const std::vector<Piece> pieces = cut(sizes.chunk);
        const int n = static_cast<int>(std::min<int64_t>(
            {int64_t{c_.threads}, int64_t{most_threads()}, static_cast<int64_t>(pieces.size())}));
        const Lease memory(static_cast<size_t>(room * n));
        std::atomic<size_t> next{0};
        run_stages(0, 0, n, [&](int, int i) {
            char* mine = memory.data() + i * room;
            Scratch s;
            steps_.scratch(block, mine, &s);
            s.top = reinterpret_cast<T*>(mine + bytes);
            s.sum = reinterpret_cast<T*>(mine + bytes + sums);
            for (size_t j; (j = next.fetch_add(1)) < pieces.size();) piece(pieces[j], s);
        });
    }

  private:
    struct Piece {
        int64_t number, first, size;  // class, pairs
    };

    std::vector<Piece> cut(int64_t chunk) const {
        std::vector<Piece> pieces;
        for (int64_t i = 0; i < c_.classes; ++i) {
            for (int64_t first = p_.starts[i]; first < p_.starts[i + 1]; first += chunk) {
                pieces.push_back({i, first, std::min(chunk, p_.starts[i + 1] - first)});
            }
        }
        return pieces;
    }

    void piece(const Piece& p, const Scratch& s) const {
        const int64_t start = c_.starts[p.number], words = c_.starts[p.number + 1] - start;
        const int64_t* tokens = p_.tokens + p.first;
        const int64_t cols = steps_.columns(p.size), k = p_.k;
        T* values = c_.losses + p.first * k;
        int64_t* places = p_.words + p.first * k;
        std::fill_n(values, p.size * k, -std::numeric_limits<T>::infinity());
        std::fill_n(places, p.size * k, int64_t{0});
        steps_.gather(tokens, p.size, s, false);
        int64_t blocks = 0;
        for (int64_t w = 0; w < words; w += kMostRows, ++blocks) {
            const int64_t* rows = c_.order == nullptr ? nullptr : c_.order + start + w;
            const Group rest{&c_.by_word, rows, start + w, words - w, tokens, p.size, false};
            Scratch here = s;
            here.top += blocks * s.chunk;
            here.sum += blocks * s.chunk;
            const auto b = steps_.product(rest, 0, p.size, here);
            k_.softmax_best(b.tile, cols, b.rows, p.size, w, k, values, places);
            steps_.exp(b, p.size, here);
        }
        steps_.merge(blocks, p.size, s);
        const T scale = static_cast<T>(c_.inverse_temperature);
        for (int64_t i = 0; i < p.size; ++i) {
            const double top = s.whole_top[i], log_sum = std::log(double{s.whole_sum[i]});
            for (int64_t j = i * k; j < (i + 1) * k; ++j) {
                values[j] = static_cast<T>((double{values[j] * scale} - top) - log_sum);
                places[j] = c_.order == nullptr ? start + places[j] : c_.order[start + places[j]];
            }
        }
    }

    const SoftmaxCall<T>& c_;
    const SoftmaxPairs& p_;
    const Kernels<T>& k_;
    const Steps steps_;
};

}  // namespace

template <class T>
void softmax_best(const SoftmaxCall<T>& call, const SoftmaxPairs& pairs,
                  const Kernels<T>& kernels) {
    Best<T>(call, pairs, kernels).run();
}

template void softmax_best(const SoftmaxCall<float>&, const SoftmaxPairs&, const Kernels<float>&);
template void softmax_best(const SoftmaxCall<double>&, const SoftmaxPairs&, const Kernels<double>&);

}  // namespace unpad
