#include "softmax.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <vector>

#include "pool.h"
#include "threads.h"

// How it is done. A *group* is a set of words among which a softmax is taken, with the tokens that
// ask for it: all classes with all tokens, a class's words with the tokens of that class, or all
// words. Tokens come in *chunks*, words in *blocks* of kMostRows.
//
//     logits  tile[w, t] = W[w] . h[t] + b[w]          a linear: W's rows where they are
//     exp     down the columns of the tile             softmax_tile.h
//     d       tile[w, t] = s[t] (p[w, t] - onehot)     in place
//     dW[w] += sum_t d[w, t] h[t]                      a linear, straight into the gradient's rows
//     dh[t] += sum_w d[w, t] W[w]                      an outer
//
// Words are the rows of the tile, so that weights are read in place, wherever their rows lie, and
// the little there is of hidden rows is packed instead.
//
// A small group is worked off by one thread, chunk by chunk, with its tile in cache, and groups are
// shared out. A large one is shared by all threads, a stretch of words each. Bits do not depend on
// the threads: sums over words go block by block and stretch by stretch, sums over tokens chunk by
// chunk within parts of a group's tokens; all of these depend on the group's sizes alone.

namespace unpad {
namespace {

constexpr int64_t kMostChunk = 128;         // tokens
constexpr int64_t kTileNumbers = 96 << 10;  // of a small group's tile
constexpr int64_t kSmallGroup = 1024;       // words
constexpr int64_t kPartTokens = 512;        // of a small group that is cut into parts
constexpr int64_t kMostParts = 16;
constexpr int64_t kStretchBlocks = 16;  // of a large group, that give one sum
constexpr int64_t kCaches = 32 << 20;   // bytes, beyond which gradients go past the caches
constexpr int64_t kStrip = 48;  // rows of a product, whose copies stay in a first-level cache
constexpr double kLeastWork = 1 << 20;  // multiply-adds that are worth a thread

template <class T>
struct Group {
    const SoftmaxWeights<T>* weights;
    const int64_t* rows;  // of the weights; null: first, first + 1, ...
    int64_t first, words;
    const int64_t* tokens;  // which
    int64_t n_tokens;
    bool adds;  // to losses and gradients of hidden rows that another level has written
};

// Part of a small group's tokens. The first part's sums go straight into the gradients, the
// others' into memory of their own.
template <class T>
struct Part {
    size_t group;
    int64_t first, end;  // tokens
    T* sums;             // [words, width + 1]; null: the gradients themselves
};

template <class T>
T* carve(char*& at, int64_t numbers) {
    T* found = reinterpret_cast<T*>(at);
    at += round_up(numbers * static_cast<int64_t>(sizeof(T)), 64);
    return found;
}

template <class T>
class Softmax {
  public:
    Softmax(const SoftmaxCall<T>& call, const Kernels<T>& kernels)
        : c_(call),
          k_(kernels),
          panel_(kernels.panel),
          padded_(round_up(call.width, kernels.panel)),
          far_(call.words * call.width * static_cast<int64_t>(sizeof(T)) > kCaches &&
               call.width * sizeof(T) % 64 == 0 &&
               reinterpret_cast<uintptr_t>(call.by_word.d_weight) % 64 == 0),
          wants_(call.d_hidden != nullptr || wants(call.by_word) || wants(call.by_class)) {
        for (int64_t i = 0; i < kMostRows + kStrip; ++i) iota_[i] = i;
    }

    double run() {
        std::vector<int64_t> places(static_cast<size_t>(c_.tokens));
        target_.resize(static_cast<size_t>(c_.tokens));
        std::vector<int64_t> tokens(static_cast<size_t>(c_.tokens));
        for (int64_t t = 0; t < c_.tokens; ++t) tokens[static_cast<size_t>(t)] = t;
        if (c_.classes == 0) {
            std::copy_n(c_.target, c_.tokens, target_.data());
            level({{&c_.by_word, nullptr, 0, c_.words, tokens.data(), c_.tokens, false}});
        } else {
            for (int64_t t = 0; t < c_.tokens; ++t) {
                target_[static_cast<size_t>(t)] = c_.class_of[c_.target[t]];
            }
            level({{&c_.by_class, nullptr, 0, c_.classes, tokens.data(), c_.tokens, false}});
            level(groups_of_classes(tokens));
        }
        double total = 0;
        for (int64_t t = 0; t < c_.tokens; ++t) total += c_.losses[t] * scale(t);
        return total;
    }

  private:
    static bool wants(const SoftmaxWeights<T>& w) {
        return w.d_weight != nullptr || w.d_bias != nullptr;
    }
    double scale(int64_t t) const { return c_.scale == nullptr ? c_.scale_all : c_.scale[t]; }

    // Tokens sorted by their class, and the place of each target in it.
    std::vector<Group<T>> groups_of_classes(std::vector<int64_t>& tokens) {
        std::vector<int64_t> ends(static_cast<size_t>(c_.classes) + 1);
        for (int64_t t : target_) ++ends[static_cast<size_t>(t) + 1];
        for (size_t i = 1; i < ends.size(); ++i) ends[i] += ends[i - 1];
        std::vector<int64_t> at(ends.begin(), ends.end() - 1);
        for (int64_t t = 0; t < c_.tokens; ++t) {
            tokens[static_cast<size_t>(
                at[static_cast<size_t>(target_[static_cast<size_t>(t)])]++)] = t;
        }
        for (int64_t t = 0; t < c_.tokens; ++t) {
            target_[static_cast<size_t>(t)] = c_.place_of[c_.target[t]];
        }
        std::vector<Group<T>> groups;
        for (int64_t i = 0; i < c_.classes; ++i) {
            const int64_t first = c_.starts[i], words = c_.starts[i + 1] - first;
            const int64_t begin = ends[static_cast<size_t>(i)];
            const int64_t n = ends[static_cast<size_t>(i) + 1] - begin;
            groups.push_back({&c_.by_word, c_.order == nullptr ? nullptr : c_.order + first, first,
                              words, tokens.data() + begin, n, true});
        }
        return groups;
    }

    // -- sharing out ------------------------------------------------------------------------------

    void level(std::vector<Group<T>> groups) {
        groups_ = std::move(groups);
        std::vector<Part<T>> parts;
        std::vector<size_t> empty, cut;
        double work = 0;
        int64_t extra = 0;
        for (size_t g = 0; g < groups_.size(); ++g) {
            const Group<T>& group = groups_[g];
            if (group.n_tokens == 0) {
                if (wants(*group.weights)) empty.push_back(g);
                continue;
            }
            if (group.words > kSmallGroup) continue;
            const int64_t n =
                std::min(kMostParts, (group.n_tokens + kPartTokens - 1) / kPartTokens);
            for (int64_t i = 0; i < n; ++i) {
                parts.push_back({g, group.n_tokens * i / n, group.n_tokens * (i + 1) / n, nullptr});
            }
            if (n > 1 && wants(*group.weights)) {
                cut.push_back(g);
                extra += (n - 1) * sums_size(group);
            }
            work += 3.0 * group.n_tokens * group.words * c_.width;
        }
        const Lease sums(static_cast<size_t>(extra) * sizeof(T));
        T* free = reinterpret_cast<T*>(sums.data());
        for (Part<T>& part : parts) {
            const Group<T>& group = groups_[part.group];
            if (part.first == 0 || !wants(*group.weights)) continue;
            part.sums = free;
            free += sums_size(group);
        }
        const auto size = [&](const Part<T>& p) {
            return (p.end - p.first + 4) * groups_[p.group].words;
        };
        std::stable_sort(parts.begin(), parts.end(),
                         [&](const Part<T>& a, const Part<T>& b) { return size(a) > size(b); });
        small(parts, empty, cut, threads_for(work + 8.0 * empty.size() * c_.width));
        for (const Group<T>& group : groups_) {
            if (group.n_tokens > 0 && group.words > kSmallGroup) large(group);
        }
    }

    int threads_for(double work) const {
        const double worth = std::max(1.0, work / kLeastWork);
        return static_cast<int>(
            std::min<double>({double(c_.threads), double(most_threads()), worth}));
    }
    int64_t sums_size(const Group<T>& group) const { return group.words * (c_.width + 1); }

    void small(std::vector<Part<T>>& parts, const std::vector<size_t>& empty,
               const std::vector<size_t>& cut, int n) {
        if (parts.empty() && empty.empty()) return;
        int64_t room = 0;
        for (const Part<T>& part : parts) {
            room = std::max(room, scratch(groups_[part.group], nullptr, nullptr));
        }
        room = round_up(room, 4096);
        const Lease memory(static_cast<size_t>(room * n));
        std::atomic<size_t> next_part{0}, next_empty{0}, next_cut{0};
        run_stages(0, cut.empty() ? 0 : 1, n, [&](int stage, int i) {
            if (stage == 1) {
                for (size_t j; (j = next_cut.fetch_add(1)) < cut.size();) add_up(cut[j], parts);
                return;
            }
            Scratch s;
            for (size_t j; (j = next_part.fetch_add(1)) < parts.size();) {
                scratch(groups_[parts[j].group], memory.data() + i * room, &s);
                part(parts[j], s);
            }
            for (size_t j; (j = next_empty.fetch_add(1)) < empty.size();) clear(groups_[empty[j]]);
        });
    }

    void clear(const Group<T>& group) const {
        const SoftmaxWeights<T>& w = *group.weights;
        if (group.rows == nullptr) {
            if (w.d_weight != nullptr) {
                std::fill_n(w.d_weight + group.first * c_.width, group.words * c_.width, T(0));
            }
            if (w.d_bias != nullptr) std::fill_n(w.d_bias + group.first, group.words, T(0));
            return;
        }
        for (int64_t i = 0; i < group.words; ++i) {
            if (w.d_weight != nullptr) {
                std::fill_n(w.d_weight + group.rows[i] * c_.width, c_.width, T(0));
            }
            if (w.d_bias != nullptr) w.d_bias[group.rows[i]] = 0;
        }
    }

    // The parts of a group that was cut, in order of their tokens.
    void add_up(size_t g, const std::vector<Part<T>>& parts) const {
        const Group<T>& group = groups_[g];
        std::vector<const Part<T>*> mine;
        for (const Part<T>& part : parts) {
            if (part.group == g && part.sums != nullptr) mine.push_back(&part);
        }
        std::sort(mine.begin(), mine.end(),
                  [](const Part<T>* a, const Part<T>* b) { return a->first < b->first; });
        const SoftmaxWeights<T>& w = *group.weights;
        for (const Part<T>* part : mine) {
            for (int64_t i = 0; i < group.words; ++i) {
                const int64_t row = row_of(group, i);
                const T* from = part->sums + i * c_.width;
                T* to = w.d_weight + row * c_.width;
                if (w.d_weight != nullptr) {
                    for (int64_t j = 0; j < c_.width; ++j) to[j] += from[j];
                }
                if (w.d_bias != nullptr) w.d_bias[row] += part->sums[group.words * c_.width + i];
            }
        }
    }

    static int64_t row_of(const Group<T>& group, int64_t i) {
        return group.rows == nullptr ? group.first + i : group.rows[i];
    }

    // -- memory -----------------------------------------------------------------------------------

    // What a chunk of tokens needs (shared by the threads of a large group), and what a thread
    // needs.
    struct Scratch {
        int64_t chunk;  // most tokens
        T *rows, *across, *along, *tile, *top, *sum, *total, *whole_top, *whole_sum, *factor, *less,
            *wanted, *mean;
        T *left, *right, *acc, *line;
        int64_t stretches;
    };

    int64_t chunk_of(const Group<T>& group) const {
        if (group.words > kSmallGroup) return kMostChunk;
        const int64_t fits = kTileNumbers / std::max<int64_t>(group.words, 1) / panel_ * panel_;
        return std::clamp<int64_t>(fits, panel_, kMostChunk);
    }

    // Bytes; with memory, also the pointers.
    int64_t scratch(const Group<T>& group, char* memory, Scratch* s) const {
        Scratch none;
        Scratch& to = s == nullptr ? none : *s;
        char* at = memory;
        to.chunk = std::min(chunk_of(group), round_up(group.n_tokens, panel_));
        const int64_t blocks = (group.words + kMostRows - 1) / kMostRows;
        to.stretches =
            group.words > kSmallGroup ? (blocks + kStretchBlocks - 1) / kStretchBlocks : 1;
        const int64_t ld = to.chunk;
        to.rows = carve<T>(at, ld * c_.width);
        to.across = carve<T>(at, ld * (c_.width + 1));
        to.along = carve<T>(at, (ld + 1) * padded_);
        to.tile = carve<T>(at, group.words * ld);
        to.top = carve<T>(at, blocks * ld);
        to.sum = carve<T>(at, blocks * ld);
        to.total = carve<T>(at, blocks * ld);
        for (T** p : {&to.whole_top, &to.whole_sum, &to.factor, &to.less, &to.wanted, &to.mean}) {
            *p = carve<T>(at, ld);
        }
        to.acc = carve<T>(at, to.stretches * ld * padded_);
        return (at - memory) + own(at, to);
    }
    int64_t own(char* memory, Scratch& to) const {
        char* at = memory;
        to.left = carve<T>(at, (kMostRows + 1) * (to.chunk + panel_));
        to.right = carve<T>(at, (kMostRows + 1) * padded_);
        to.line = carve<T>(at, kMostRows);
        return at - memory;
    }

    // -- a small group ----------------------------------------------------------------------------

    void part(const Part<T>& p, const Scratch& s) const {
        const Group<T>& group = groups_[p.group];
        for (int64_t first = p.first; first < p.end; first += s.chunk) {
            const int64_t n = std::min(s.chunk, p.end - first);
            const int64_t* tokens = group.tokens + first;
            gather(tokens, n, s);
            for (int64_t w = 0; w < group.words; w += kMostRows) logits(group, w, tokens, n, s);
            finish(group, tokens, n, s);
            if (!wants_) continue;
            if (c_.d_hidden != nullptr) std::fill_n(s.acc, n * padded_, T(0));
            for (int64_t w = 0; w < group.words; w += kMostRows) {
                gradients(group, w, tokens, n, s, s.acc, first == p.first, p.sums);
            }
            if (c_.d_hidden != nullptr) hidden_gradients(group, tokens, n, s);
        }
    }

    // -- a large group ----------------------------------------------------------------------------

    void large(const Group<T>& group) const {
        const int n = threads_for(3.0 * group.n_tokens * group.words * c_.width);
        Scratch none;
        const int64_t bytes = scratch(group, nullptr, &none);
        const int64_t own_bytes = round_up(own(nullptr, none), 4096);
        const Lease memory(static_cast<size_t>(bytes)),
            own_memory(static_cast<size_t>(own_bytes * n));
        Scratch shared;
        scratch(group, memory.data(), &shared);
        const int64_t chunks = (group.n_tokens + shared.chunk - 1) / shared.chunk;
        const int64_t stretch = kStretchBlocks * kMostRows;
        std::vector<std::atomic<int64_t>> next(static_cast<size_t>(5 * chunks));
        run_stages(0, static_cast<int>(5 * chunks) - 1, n, [&](int stage, int i) {
            Scratch s = shared;
            own(own_memory.data() + i * own_bytes, s);
            const int64_t first = stage / 5 * s.chunk;
            const int64_t size = std::min(s.chunk, group.n_tokens - first);
            const int64_t* tokens = group.tokens + first;
            if (stage % 5 == 0) {
                if (i == 0) gather(tokens, size, s);
            } else if (stage % 5 == 2) {
                if (i == 0) finish(group, tokens, size, s);
            } else if (stage % 5 == 4) {
                if (c_.d_hidden != nullptr) hidden_gradients(group, tokens, size, s, i, n);
            } else {
                std::atomic<int64_t>& mine = next[static_cast<size_t>(stage)];
                for (int64_t j; (j = mine.fetch_add(1)) < s.stretches;) {
                    const int64_t end = std::min((j + 1) * stretch, group.words);
                    T* acc = s.acc + j * s.chunk * padded_;
                    if (stage % 5 == 3) std::fill_n(acc, size * padded_, T(0));
                    for (int64_t w = j * stretch; w < end; w += kMostRows) {
                        if (stage % 5 == 1)
                            logits(group, w, tokens, size, s);
                        else if (wants_)
                            gradients(group, w, tokens, size, s, acc, first == 0, nullptr);
                    }
                }
            }
        });
    }

    // -- the steps --------------------------------------------------------------------------------

    // A few tokens take half a panel.
    int64_t columns(int64_t n) const { return n <= k_.lanes ? k_.lanes : round_up(n, panel_); }

    void gather(const int64_t* tokens, int64_t n, const Scratch& s) const {
        const int64_t width = c_.width, cols = round_up(n, panel_);
        for (int64_t i = 0; i < n; ++i) {
            std::copy_n(c_.hidden + tokens[i] * c_.hidden_stride, width, s.rows + i * width);
        }
        std::fill_n(s.rows + n * width, (cols - n) * width, T(0));
        k_.pack(s.rows, 1, width, width, cols, 0, cols / panel_, s.across);
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
    Block block(const Group<T>& group, int64_t w, const Scratch& s, int64_t cols) const {
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
    const T* offset(const Group<T>& group, int64_t w, const T* base, int64_t width) const {
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
            ahead = {streams.data(), n > 0 ? n_streams : 0, map + r + size, n, lines, 0, 0, nullptr,
                     nullptr};
            const int64_t* maps[] = {iota_ + r, map + r};
            k_.row[op_linear](step, maps, size);
        }
    }
    static Columns columns_of(const Ref& ref) {
        return {ref.base, ref.stride, ref.width * static_cast<int64_t>(sizeof(T))};
    }

    void logits(const Group<T>& group, int64_t w, const int64_t* tokens, int64_t n,
                const Scratch& s) const {
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
        linear(step, b.map, b.rows, {columns_of(b.weights)}, 1, group.words - w);
        const T scale = static_cast<T>(c_.inverse_temperature);
        for (int64_t i = 0; i < n; ++i) {
            const int64_t place = target_[static_cast<size_t>(tokens[i])] - w;
            if (place >= 0 && place < b.rows) s.wanted[i] = b.tile[place * cols + i] * scale;
        }
        const int64_t at = b.number * s.chunk;
        k_.softmax_exp(b.tile, cols, b.rows, cols, scale, s.top + at, s.sum + at,
                       c_.smoothing > 0 ? s.total + at : nullptr);
    }

    // Blocks together: losses, and what gradients are made with.
    void finish(const Group<T>& group, const int64_t* tokens, int64_t n, const Scratch& s) const {
        const int64_t cols = columns(n), blocks = (group.words + kMostRows - 1) / kMostRows;
        k_.softmax_merge(s.top, s.sum, s.chunk, blocks, cols, s.whole_top, s.whole_sum);
        const double share = c_.smoothing, each = share / static_cast<double>(group.words);
        for (int64_t i = 0; i < cols; ++i) s.less[i] = static_cast<T>(s.factor[i] * each);
        for (int64_t i = 0; i < n; ++i) {
            const double top = s.whole_top[i], log_sum = std::log(double{s.whole_sum[i]});
            double loss = (top - s.wanted[i]) + log_sum;
            if (share > 0) {
                double total = 0;
                for (int64_t b = 0; b < blocks; ++b) total += s.total[b * s.chunk + i];
                const double mean = total / static_cast<double>(group.words);
                loss = (1 - share) * loss + share * ((top - mean) + log_sum);
            }
            T& to = c_.losses[tokens[i]];
            to = static_cast<T>(group.adds ? to + loss : loss);
        }
    }

    void gradients(const Group<T>& group, int64_t w, const int64_t* tokens, int64_t n,
                   const Scratch& s, T* acc, bool first, T* sums) const {
        const int64_t cols = columns(n);
        const Block b = block(group, w, s, cols);
        k_.softmax_scale(b.tile, cols, b.rows, cols, s.top + b.number * s.chunk, s.whole_top,
                         s.whole_sum, s.factor, s.less);
        const T share = static_cast<T>(1 - c_.smoothing);
        for (int64_t i = 0; i < n; ++i) {
            const int64_t place = target_[static_cast<size_t>(tokens[i])] - w;
            if (place >= 0 && place < b.rows) b.tile[place * cols + i] -= s.factor[i] * share;
        }
        if (wants(*group.weights)) weight_gradients(group, w, b, n, s, first, sums);
        if (c_.d_hidden != nullptr) add_outer(b, n, s, acc);
    }

    void weight_gradients(const Group<T>& group, int64_t w, const Block& b, int64_t n,
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
        const bool in_place = k_.outer_in_place && b.map == iota_ && c_.width % panel_ == 0 &&
                              b.rows * b.weights.stride <= few_pages;
        k_.pack_left(dense(b.tile, columns(n), n, 0), maps, b.rows, s.left);
        for (int64_t p = 0; p * panel_ < c_.width; ++p) {
            const T* right = reinterpret_cast<const T*>(b.weights.base) + p * panel_;
            if (!in_place) {
                k_.pack_right(b.weights, maps, b.rows, p, s.right);
                right = s.right;
            }
            k_.outer(s.left, right, in_place ? stride : panel_, n, b.rows, acc + p * panel_,
                     padded_);
        }
    }

    // Of every `step`-th token.
    void hidden_gradients(const Group<T>& group, const int64_t* tokens, int64_t n, const Scratch& s,
                          int64_t first = 0, int64_t step = 1) const {
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

    const SoftmaxCall<T>& c_;
    const Kernels<T>& k_;
    const int64_t panel_, padded_;
    const bool wants_;
    bool far_;  // the gradients of words do not fit the caches
    int64_t iota_[kMostRows + kStrip];
    std::vector<int64_t> target_;  // by token, within the group that it asks for
    std::vector<Group<T>> groups_;
};

}  // namespace

template <class T>
double softmax_loss(const SoftmaxCall<T>& call, const Kernels<T>& kernels) {
    return Softmax<T>(call, kernels).run();
}

template double softmax_loss(const SoftmaxCall<float>&, const Kernels<float>&);
template double softmax_loss(const SoftmaxCall<double>&, const Kernels<double>&);

}  // namespace unpad
