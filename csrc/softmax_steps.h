#pragma once

// The steps of a softmax's loss over one group of words: memory, products, losses, gradients.
// softmax.cpp shares them out among threads.
//
// How it is done. A *group* is a set of words among which a softmax is taken, with the tokens that
// ask for it: all classes with all tokens, a class's words with the tokens of that class, or all
// words. Tokens come in *chunks*, words in *blocks* of kMostRows.
//
//     logits  tile[w, t] = W[w] . h[t] + b[w]          a linear: W's rows where they are
//     exp     down the columns of the tile             softmax_tile.h
//     d[w, t] = s[t] (p[w, t] - onehot)                a block's, in a near cache
//     dW[w] += sum_t d[w, t] h[t]                      a linear, straight into the gradient's rows
//     dh[t] += sum_w d[w, t] W[w]                      an outer
//
// Words are the rows of the tile, so that weights are read in place, wherever their rows lie, and
// the little there is of hidden rows is packed instead.

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "softmax.h"

namespace unpad {

inline constexpr int64_t kMostChunk = 128;         // tokens of a small group
inline constexpr int64_t kTileNumbers = 96 << 10;  // of its tile
inline constexpr int64_t kSmallGroup = 1024;       // words
inline constexpr int64_t kLargeTile = 8 << 20;     // numbers of a large group's tile, if that is
inline constexpr int64_t kLeastLargeChunk = 128;   // no fewer tokens than this
inline constexpr int64_t kMostLargeChunk = 512;
inline constexpr int64_t kStretchBlocks = 16;  // most blocks of a large group in one sum
inline constexpr int64_t kLeastStretches = 16;
inline constexpr int64_t kCaches = 8 << 20;  // bytes, beyond which gradients go past the caches
inline constexpr int64_t kStrip = 48;        // rows of a product, whose copies stay in a near cache

template <class T>
struct SoftmaxGroup {
    const SoftmaxWeights<T>* weights;
    const int64_t* rows;  // of the weights; null: first, first + 1, ...
    int64_t first, words;
    const int64_t* tokens;  // which
    int64_t n_tokens;
    bool adds;  // to losses and gradients of hidden rows that another level has written
};

template <class T>
inline T* carve(char*& at, int64_t numbers) {
    T* found = reinterpret_cast<T*>(at);
    at += round_up(numbers * static_cast<int64_t>(sizeof(T)), 64);
    return found;
}

template <class T>
class SoftmaxSteps {
  public:
    SoftmaxSteps(const SoftmaxCall<T>& call, const Kernels<T>& kernels)
        : target(static_cast<size_t>(call.tokens)),
          c_(call),
          k_(kernels),
          panel_(kernels.panel),
          padded_(round_up(call.width, kernels.panel)),
          far_(call.words * call.width * static_cast<int64_t>(sizeof(T)) > kCaches &&
               call.width * sizeof(T) % 64 == 0 &&
               reinterpret_cast<uintptr_t>(call.by_word.d_weight) % 64 == 0) {
        for (int64_t i = 0; i < kMostRows + kStrip; ++i) iota_[i] = i;
    }

    std::vector<int64_t> target;  // by token, within the group that it asks for

    static bool wants(const SoftmaxWeights<T>& w) {
        return w.d_weight != nullptr || w.d_bias != nullptr;
    }
    int64_t padded() const { return padded_; }  // the width in whole panels
    double scale(int64_t t) const { return c_.scale == nullptr ? c_.scale_all : c_.scale[t]; }
    // -- memory -----------------------------------------------------------------------------------

    // What a chunk of tokens needs (shared by the threads of a large group), and what a thread
    // needs.
    struct Scratch {
        int64_t chunk;  // most tokens
        int64_t stretches;
        T *tile, *top, *sum, *total, *wanted, *acc;
        T *rows, *across, *along, *factor;
        T *whole_top, *whole_sum, *less, *gradient, *left, *right, *line;
    };

    int64_t chunk_of(const SoftmaxGroup<T>& group) const {
        const bool large = group.words > kSmallGroup;
        const int64_t tile = large ? kLargeTile : kTileNumbers;
        const int64_t fits = tile / std::max<int64_t>(group.words, 1) / panel_ * panel_;
        if (!large) return std::clamp<int64_t>(fits, panel_, kMostChunk);
        // Even ones: every chunk passes over all weights.
        const int64_t most = std::clamp<int64_t>(fits, kLeastLargeChunk, kMostLargeChunk);
        const int64_t chunks = std::max<int64_t>((group.n_tokens + most - 1) / most, 1);
        return round_up((group.n_tokens + chunks - 1) / chunks, panel_);
    }

    // Blocks of a large group that give one sum.
    static int64_t stretch(const SoftmaxGroup<T>& group) {
        const int64_t blocks = (group.words + kMostRows - 1) / kMostRows;
        return std::clamp<int64_t>(blocks / kLeastStretches, 1, kStretchBlocks);
    }

    // Bytes; with memory, also the pointers.
    int64_t scratch(const SoftmaxGroup<T>& group, char* memory, Scratch* s) const {
        Scratch none;
        Scratch& to = s == nullptr ? none : *s;
        char* at = memory;
        to.chunk = std::min(chunk_of(group), round_up(group.n_tokens, panel_));
        const int64_t blocks = (group.words + kMostRows - 1) / kMostRows;
        to.stretches =
            group.words > kSmallGroup ? (blocks + stretch(group) - 1) / stretch(group) : 1;
        const int64_t ld = to.chunk;
        to.tile = carve<T>(at, group.words * ld);
        to.top = carve<T>(at, blocks * ld);
        to.sum = carve<T>(at, blocks * ld);
        to.total = carve<T>(at, blocks * ld);
        to.wanted = carve<T>(at, ld);
        to.acc = carve<T>(at, to.stretches * ld * padded_);
        at += gathered(at, to);
        return (at - memory) + own(at, to);
    }
    // What `gather` makes.
    int64_t gathered(char* memory, Scratch& to) const {
        char* at = memory;
        to.rows = carve<T>(at, to.chunk * c_.width);
        to.across = carve<T>(at, to.chunk * (c_.width + 1));
        to.along = carve<T>(at, (to.chunk + 1) * padded_);
        to.factor = carve<T>(at, to.chunk);
        return at - memory;
    }
    // A thread's own.
    int64_t own(char* memory, Scratch& to) const {
        char* at = memory;
        for (T** p : {&to.whole_top, &to.whole_sum, &to.less}) *p = carve<T>(at, to.chunk);
        to.gradient = carve<T>(at, kMostRows * to.chunk);
        to.left = carve<T>(at, (kMostRows + 1) * (to.chunk + panel_));
        to.right = carve<T>(at, (kMostRows + 1) * padded_);
        to.line = carve<T>(at, kMostRows);
        return at - memory;
    }

    // -- the steps --------------------------------------------------------------------------------

    // A few tokens take half a panel.
    int64_t columns(int64_t n) const { return n <= k_.lanes ? k_.lanes : round_up(n, panel_); }

    void gather(const int64_t* tokens, int64_t n, const Scratch& s, bool gradients = true) const {
        const int64_t width = c_.width, cols = round_up(n, panel_);
        for (int64_t i = 0; i < n; ++i) {
            std::copy_n(c_.hidden + tokens[i] * c_.hidden_stride, width, s.rows + i * width);
        }
        std::fill_n(s.rows + n * width, (cols - n) * width, T(0));
        k_.pack(s.rows, 1, width, width, cols, 0, cols / panel_, s.across);
        if (!gradients) return;
        k_.pack(s.rows, width, 1, n, width, 0, padded_ / panel_, s.along);
        for (int64_t i = 0; i < cols; ++i) {
            const double each = i < n ? scale(tokens[i]) * c_.inverse_temperature : 0.0;
            s.factor[i] = static_cast<T>(each);
        }
    }

    // Words [w, w + kMostRows) of the group.
    struct Block {
        int64_t number, rows;
        T* tile;
        Ref weights;
        const int64_t* map;  // of `weights`, as map 1
    };
    Block block(const SoftmaxGroup<T>& group, int64_t w, const Scratch& s, int64_t cols) const {
        const SoftmaxWeights<T>& from = *group.weights;
        const int64_t bytes = from.stride * static_cast<int64_t>(sizeof(T));
        const int64_t first = group.rows == nullptr ? group.first + w : 0;
        const auto base = reinterpret_cast<const char*>(from.weight) + first * bytes;
        return {w / kMostRows, std::min<int64_t>(kMostRows, group.words - w), s.tile + w * cols,
                Ref{const_cast<char*>(base), bytes, 1, c_.width},
                group.rows == nullptr ? iota_ : group.rows + w};
    }
    // [.., width] whose rows follow each other.
    static Ref dense(const T* base, int64_t stride, int64_t width, int map) {
        return Ref{reinterpret_cast<char*>(const_cast<T*>(base)),
                   stride * static_cast<int64_t>(sizeof(T)), map, width};
    }
    const T* offset(const SoftmaxGroup<T>& group, int64_t w, const T* base, int64_t width) const {
        return group.rows == nullptr ? base + (group.first + w) * width : base;
    }
    // In strips; of each of the `streams`, whose rows have the step's map, those of the next strip
    // (up to the row `end`) are asked for meanwhile: they lie in far memory.
    void linear(Step step, const int64_t* map, int64_t rows, const std::array<Columns, 2>& streams,
                int64_t n_streams, int64_t end) const {
        Ahead ahead{};
        step.ahead = &ahead;
        for (int64_t r = 0; r < rows; r += kStrip) {
            const int64_t size = std::min(kStrip, rows - r);
            const int64_t n = std::clamp<int64_t>(end - r - size, 0, kStrip);
            const int64_t lines = n_streams * n * ((streams[0].bytes + 63) / 64);
            const int64_t* next = map + r + size;
            ahead = {streams.data(), n > 0 ? n_streams : 0, {next, next}, n, lines, 0, 0, nullptr,
                     nullptr};
            const int64_t* maps[] = {iota_ + r, map + r};
            k_.row[op_linear](step, maps, size);
        }
    }
    static Columns columns_of(const Ref& ref) {
        return {ref.base, ref.stride, ref.width * static_cast<int64_t>(sizeof(T)), false};
    }

    // A block's logits, before the temperature.
    Block product(const SoftmaxGroup<T>& group, int64_t w, int64_t n, const Scratch& s) const {
        const int64_t cols = columns(n);
        const Block b = block(group, w, s, cols);
        Step step{};
        step.op = op_linear;
        step.out = dense(b.tile, cols, cols, 0);
        step.args[0] = b.weights;
        step.n_args = 1;
        if (group.weights->bias != nullptr) {
            step.args[1] = dense(offset(group, w, group.weights->bias, 1), 1, 1, 1);
            step.n_args = 2;
        }
        step.matrix = s.across;
        // The next class's words follow, where classes are in the order of words.
        const bool follow = group.rows == nullptr && group.weights == &c_.by_word;
        const int64_t end = follow ? c_.words - group.first : group.words;
        linear(step, b.map, b.rows, {columns_of(b.weights)}, 1, end - w);
        return b;
    }

    // Their powers in place, with the largest logits and the sums.
    void exp(const Block& b, int64_t n, const Scratch& s) const {
        const int64_t cols = columns(n), at = b.number * s.chunk;
        k_.softmax_exp(b.tile, cols, b.rows, cols, static_cast<T>(c_.inverse_temperature),
                       s.top + at, s.sum + at, c_.smoothing > 0 ? s.total + at : nullptr);
    }

    void logits(const SoftmaxGroup<T>& group, int64_t w, const int64_t* tokens, int64_t n,
                const Scratch& s) const {
        const int64_t cols = columns(n);
        const Block b = product(group, w, n, s);
        const T scale = static_cast<T>(c_.inverse_temperature);
        for (int64_t i = 0; i < n; ++i) {
            const int64_t place = target[static_cast<size_t>(tokens[i])] - w;
            if (place >= 0 && place < b.rows) s.wanted[i] = b.tile[place * cols + i] * scale;
        }
        exp(b, n, s);
    }

    // The largest logit of n tokens and the sum relative to it, over blocks of words.
    void merge(int64_t blocks, int64_t n, const Scratch& s) const {
        k_.softmax_merge(s.top, s.sum, s.chunk, blocks, columns(n), s.whole_top, s.whole_sum);
    }

    // Blocks together: what gradients are made with, and the losses where this thread `tells`.
    void finish(const SoftmaxGroup<T>& group, const int64_t* tokens, int64_t n, const Scratch& s,
                bool tells = true) const {
        const int64_t cols = columns(n), blocks = (group.words + kMostRows - 1) / kMostRows;
        merge(blocks, n, s);
        const double each = c_.smoothing / static_cast<double>(group.words);
        for (int64_t i = 0; i < cols; ++i) s.less[i] = static_cast<T>(s.factor[i] * each);
        for (int64_t i = 0; tells && i < n; ++i) {
            T& to = c_.losses[tokens[i]];
            const double found = loss(group, i, blocks, s);
            to = static_cast<T>(group.adds ? to + found : found);
        }
    }
    double loss(const SoftmaxGroup<T>& group, int64_t i, int64_t blocks, const Scratch& s) const {
        const double top = s.whole_top[i], log_sum = std::log(double{s.whole_sum[i]});
        const double found = (top - s.wanted[i]) + log_sum, share = c_.smoothing;
        if (share == 0) return found;
        double total = 0;
        for (int64_t b = 0; b < blocks; ++b) total += s.total[b * s.chunk + i];
        const double mean = total / static_cast<double>(group.words);
        return (1 - share) * found + share * ((top - mean) + log_sum);
    }

    void gradients(const SoftmaxGroup<T>& group, int64_t w, const int64_t* tokens, int64_t n,
                   const Scratch& s, T* acc, bool first, T* sums) const {
        const int64_t cols = columns(n);
        Block b = block(group, w, s, cols);
        k_.softmax_scale(b.tile, cols, b.rows, cols, s.top + b.number * s.chunk, s.whole_top,
                         s.whole_sum, s.factor, s.less, s.gradient);
        b.tile = s.gradient;
        const T share = static_cast<T>(1 - c_.smoothing);
        for (int64_t i = 0; i < n; ++i) {
            const int64_t place = target[static_cast<size_t>(tokens[i])] - w;
            if (place >= 0 && place < b.rows) b.tile[place * cols + i] -= s.factor[i] * share;
        }
        if (wants(*group.weights)) weight_gradients(group, w, b, n, s, first, sums);
        if (c_.d_hidden != nullptr) add_outer(b, n, s, acc);
    }

    void weight_gradients(const SoftmaxGroup<T>& group, int64_t w, const Block& b, int64_t n,
                          const Scratch& s, bool first, T* sums) const {
        const SoftmaxWeights<T>& to = *group.weights;
        const int64_t cols = columns(n), width = c_.width;
        const int64_t* map = sums == nullptr ? b.map : iota_;
        const T* base = sums == nullptr ? nullptr : sums + w * width;
        if (to.d_weight != nullptr) {
            if (sums == nullptr) base = offset(group, w, to.d_weight, width);
            Step step{};
            step.op = op_linear;
            step.out = dense(base, width, width, 1);
            step.args[0] = dense(b.tile, cols, n, 0);
            step.args[1] = step.out;
            step.n_args = first ? 1 : 2;
            step.matrix = s.along;
            step.stream = far_ && sums == nullptr && n == group.n_tokens;
            // What the sums go on from, and what `add_outer` and the next block read.
            const std::array<Columns, 2> streams{columns_of(step.out), columns_of(b.weights)};
            const int64_t n_streams = first || sums != nullptr ? 0 : c_.d_hidden == nullptr ? 1 : 2;
            linear(step, map, b.rows, streams, n_streams, group.words - w);
        }
        if (to.d_bias == nullptr) return;
        k_.softmax_sums(b.tile, cols, b.rows, n, s.line);
        T* bias = sums == nullptr ? const_cast<T*>(offset(group, w, to.d_bias, 1))
                                  : sums + group.words * width + w;
        for (int64_t r = 0; r < b.rows; ++r) {
            T& number = bias[map[r]];
            number = first ? s.line[r] : number + s.line[r];
        }
    }

    // acc[t] += sum over the block's words of d[w, t] W[w].
    void add_outer(const Block& b, int64_t n, const Scratch& s, T* acc) const {
        constexpr int64_t few_pages = int64_t{256} << 10;
        const int64_t* maps[] = {iota_, b.map};
        const int64_t stride = b.weights.stride / static_cast<int64_t>(sizeof(T));
        const bool near =
            k_.outer_in_place && b.map == iota_ && b.rows * b.weights.stride <= few_pages;
        k_.pack_left(dense(b.tile, columns(n), n, 0), maps, b.rows, s.left);
        for (int64_t p = 0; p * panel_ < c_.width; ++p) {
            const T* right = reinterpret_cast<const T*>(b.weights.base) + p * panel_;
            const bool in_place = near && (p + 1) * panel_ <= c_.width;
            if (!in_place) {
                k_.pack_right(b.weights, maps, b.rows, p, s.right);
                right = s.right;
            }
            k_.outer(s.left, right, in_place ? stride : panel_, n, b.rows, acc + p * panel_,
                     padded_);
        }
    }

    // Of every `step`-th token.
    void hidden_gradients(const SoftmaxGroup<T>& group, const int64_t* tokens, int64_t n,
                          const Scratch& s, int64_t first = 0, int64_t step = 1) const {
        for (int64_t i = first; i < n; i += step) {
            T* to = c_.d_hidden + tokens[i] * c_.width;
            bool add = group.adds;
            for (int64_t j = 0; j < s.stretches; ++j, add = true) {
                const T* from = s.acc + j * s.chunk * padded_ + i * padded_;
                if (add)
                    for (int64_t k = 0; k < c_.width; ++k) to[k] += from[k];
                else
                    std::copy_n(from, c_.width, to);
            }
        }
    }

  private:
    const SoftmaxCall<T>& c_;
    const Kernels<T>& k_;
    const int64_t panel_, padded_;
    const bool far_;  // the gradients of words do not fit the caches
    int64_t iota_[kMostRows + kStrip];
};

}  // namespace unpad
