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
        : c_(call), p_(pairs), k_(kernels), steps_(call, kernels) {
        // Pairs sorted by their class.
        starts_.resize(static_cast<size_t>(c_.classes) + 1);
        for (int64_t i = 0; i < p_.count; ++i) ++starts_[static_cast<size_t>(p_.classes[i]) + 1];
        for (size_t i = 1; i < starts_.size(); ++i) starts_[i] += starts_[i - 1];
        order_.resize(static_cast<size_t>(p_.count));
        std::vector<int64_t> at(starts_.begin(), starts_.end() - 1);
        for (int64_t i = 0; i < p_.count; ++i) {
            order_[static_cast<size_t>(at[static_cast<size_t>(p_.classes[i])]++)] = i;
        }
    }

    void run() const {
        if (p_.count == 0) return;
        int64_t words = 0, tokens = 0;
        for (size_t i = 0; i + 1 < starts_.size(); ++i) {
            words = std::max(words, c_.starts[i + 1] - c_.starts[i]);
            tokens = std::max(tokens, starts_[i + 1] - starts_[i]);
        }
        // A tile holds a block: words of a class follow one another through it.
        const Group block{&c_.by_word, nullptr, 0,    std::min<int64_t>(words, kMostRows),
                          nullptr,     tokens,  false};
        const int64_t blocks = (words + kMostRows - 1) / kMostRows;
        const int64_t room = round_up(memory(block, blocks, nullptr).bytes, 4096);
        const std::vector<Piece> pieces = cut(memory(block, blocks, nullptr).scratch.chunk);
        const int n = static_cast<int>(std::min<int64_t>(
            {int64_t{c_.threads}, int64_t{most_threads()}, static_cast<int64_t>(pieces.size())}));
        const Lease lease(static_cast<size_t>(room * n));
        std::atomic<size_t> next{0};
        run_stages(0, 0, n, [&](int, int i) {
            const Memory mine = memory(block, blocks, lease.data() + i * room);
            for (size_t j; (j = next.fetch_add(1)) < pieces.size();) piece(pieces[j], mine);
        });
    }

  private:
    struct Piece {
        int64_t number, first, size;  // class, pairs
    };
    // A thread's.
    struct Memory {
        Scratch scratch;
        int64_t* tokens;
        T* values;  // [chunk, k]
        int64_t* places;
        int64_t bytes;
    };

    Memory memory(const Group& block, int64_t blocks, char* base) const {
        Memory m;
        char* at = base;
        at += round_up(steps_.scratch(block, base, &m.scratch), 64);
        const int64_t chunk = m.scratch.chunk;
        m.scratch.top = carve<T>(at, blocks * chunk);
        m.scratch.sum = carve<T>(at, blocks * chunk);
        m.tokens = carve<int64_t>(at, chunk);
        m.values = carve<T>(at, chunk * p_.k);
        m.places = carve<int64_t>(at, chunk * p_.k);
        m.bytes = at - base;
        return m;
    }

    std::vector<Piece> cut(int64_t chunk) const {
        std::vector<Piece> pieces;
        for (int64_t i = 0; i < c_.classes; ++i) {
            const int64_t end = starts_[static_cast<size_t>(i) + 1];
            for (int64_t first = starts_[static_cast<size_t>(i)]; first < end; first += chunk) {
                pieces.push_back({i, first, std::min(chunk, end - first)});
            }
        }
        return pieces;
    }

    void piece(const Piece& p, const Memory& m) const {
        const Scratch& s = m.scratch;
        const int64_t start = c_.starts[p.number], words = c_.starts[p.number + 1] - start;
        const int64_t* pairs = order_.data() + p.first;
        const int64_t cols = steps_.columns(p.size), k = p_.k;
        for (int64_t i = 0; i < p.size; ++i) m.tokens[i] = p_.tokens[pairs[i]];
        std::fill_n(m.values, p.size * k, -std::numeric_limits<T>::infinity());
        std::fill_n(m.places, p.size * k, int64_t{0});
        steps_.gather(m.tokens, p.size, s, false);
        int64_t blocks = 0;
        for (int64_t w = 0; w < words; w += kMostRows, ++blocks) {
            const int64_t* rows = c_.order == nullptr ? nullptr : c_.order + start + w;
            const Group rest{&c_.by_word, rows, start + w, words - w, m.tokens, p.size, false};
            Scratch here = s;
            here.top += blocks * s.chunk;
            here.sum += blocks * s.chunk;
            const auto b = steps_.product(rest, 0, p.size, here);
            k_.softmax_best(b.tile, cols, b.rows, p.size, w, k, m.values, m.places);
            steps_.exp(b, p.size, here);
        }
        steps_.merge(blocks, p.size, s);
        const T scale = static_cast<T>(c_.inverse_temperature);
        for (int64_t i = 0; i < p.size; ++i) {
            const double top = s.whole_top[i], log_sum = std::log(double{s.whole_sum[i]});
            for (int64_t j = 0; j < k; ++j) {
                const int64_t word = start + m.places[i * k + j], to = pairs[i] * k + j;
                c_.losses[to] =
                    static_cast<T>((double{m.values[i * k + j] * scale} - top) - log_sum);
                p_.words[to] = c_.order == nullptr ? word : c_.order[word];
            }
        }
    }

    const SoftmaxCall<T>& c_;
    const SoftmaxPairs& p_;
    const Kernels<T>& k_;
    const Steps steps_;
    std::vector<int64_t> starts_, order_;
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
