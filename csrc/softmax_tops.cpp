// How likely the likeliest word of each class is, of all classes: what an exact search for the
// likeliest words goes by where the classes' own probabilities do not tell enough. The product with
// all words, of which nothing is kept but sums.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "pool.h"
#include "softmax_steps.h"
#include "threads.h"

namespace unpad {
namespace {

constexpr int64_t kPiece = 4096;  // words that a thread takes at a time, in whole classes

template <class T>
class Tops {
    using Group = SoftmaxGroup<T>;
    using Steps = SoftmaxSteps<T>;
    using Scratch = typename Steps::Scratch;

  public:
    Tops(const SoftmaxCall<T>& call, const Kernels<T>& kernels) : c_(call), steps_(call, kernels) {
        std::fill(steps_.target.begin(), steps_.target.end(), int64_t{-1});
        tokens_.resize(static_cast<size_t>(call.tokens));
        for (size_t t = 0; t < tokens_.size(); ++t) tokens_[t] = static_cast<int64_t>(t);
        for (int64_t i = 0; i < call.classes; ++i) {
            if (pieces_.empty() || call.starts[i] - call.starts[pieces_.back()] >= kPiece) {
                pieces_.push_back(i);
            }
            most_ = std::max(most_, call.starts[i + 1] - call.starts[i]);
        }
        pieces_.push_back(call.classes);
    }

    void run() const {
        if (c_.tokens == 0) return;
        // A tile holds a block: words of a class follow one another through it.
        const Group block{&c_.by_word,    nullptr,   0,    std::min<int64_t>(most_, kMostRows),
                          tokens_.data(), c_.tokens, false};
        const int64_t blocks = (most_ + kMostRows - 1) / kMostRows;
        Scratch sizes;
        const int64_t bytes = round_up(steps_.scratch(block, nullptr, &sizes), 64);
        const int64_t sums = round_up(blocks * sizes.chunk * int64_t{sizeof(T)}, 64);
        const int64_t room = round_up(bytes + 2 * sums, 4096);
        const int64_t chunks = (c_.tokens + sizes.chunk - 1) / sizes.chunk;
        const auto pieces = static_cast<int64_t>(pieces_.size()) - 1;
        const int n = static_cast<int>(
            std::min<int64_t>({int64_t{c_.threads}, int64_t{most_threads()}, chunks * pieces}));
        const Lease memory(static_cast<size_t>(room * n));
        std::atomic<int64_t> next{0};
        run_stages(0, 0, n, [&](int, int i) {
            char* mine = memory.data() + i * room;
            Scratch s;
            steps_.scratch(block, mine, &s);
            s.top = reinterpret_cast<T*>(mine + bytes);
            s.sum = reinterpret_cast<T*>(mine + bytes + sums);
            int64_t gathered = -1;
            for (int64_t j; (j = next.fetch_add(1)) < chunks * pieces;) {
                const int64_t first = j / pieces * s.chunk;
                const int64_t size = std::min(s.chunk, c_.tokens - first);
                if (gathered != first) steps_.gather(tokens_.data() + first, size, s);
                gathered = first;
                const size_t piece = static_cast<size_t>(j % pieces);
                for (int64_t k = pieces_[piece]; k < pieces_[piece + 1]; ++k) {
                    tops(k, first, size, s);
                }
            }
        });
    }

  private:
    void tops(int64_t number, int64_t first, int64_t size, const Scratch& s) const {
        const int64_t start = c_.starts[number], words = c_.starts[number + 1] - start;
        const int64_t* tokens = tokens_.data() + first;
        int64_t blocks = 0;
        for (int64_t w = 0; w < words; w += kMostRows, ++blocks) {
            const int64_t* rows = c_.order == nullptr ? nullptr : c_.order + start + w;
            const Group rest{&c_.by_word, rows, start + w, words - w, tokens, size, false};
            Scratch here = s;
            here.top += blocks * s.chunk;
            here.sum += blocks * s.chunk;
            steps_.logits(rest, 0, tokens, size, here);
        }
        steps_.merge(blocks, size, s);
        for (int64_t i = 0; i < size; ++i) {
            const double sum = s.whole_sum[i];
            c_.losses[(first + i) * c_.classes + number] = static_cast<T>(
                sum == 0 ? std::numeric_limits<double>::quiet_NaN() : -std::log(sum));
        }
    }

    const SoftmaxCall<T>& c_;
    Steps steps_;
    std::vector<int64_t> tokens_;
    std::vector<int64_t> pieces_;  // first classes of pieces of the vocabulary, and the end
    int64_t most_ = 0;             // words of a class
};

}  // namespace

template <class T>
void softmax_tops(const SoftmaxCall<T>& call, const Kernels<T>& kernels) {
    Tops<T>(call, kernels).run();
}

template void softmax_tops(const SoftmaxCall<float>&, const Kernels<float>&);
template void softmax_tops(const SoftmaxCall<double>&, const Kernels<double>&);

}  // namespace unpad
