#include "softmax.h"

#include <algorithm>
#include <atomic>
#include <vector>

#include "pool.h"
#include "softmax_steps.h"
#include "threads.h"

// A small group is worked off by one thread, chunk by chunk, with its tile in cache, and groups are
// shared out. A large one is shared by all threads, a stretch of words each. Bits do not depend on
// the threads: sums over words go block by block and stretch by stretch, sums over tokens chunk by
// chunk within parts of a group's tokens; all of these depend on the group's sizes alone.

namespace unpad {
namespace {

constexpr int64_t kPartTokens = 512;  // of a small group that is cut into parts
constexpr int64_t kMostParts = 16;
constexpr double kLeastWork = 1 << 22;  // multiply-adds that are worth a thread

// Part of a small group's tokens. The first part's sums go straight into the gradients, the
// others' into memory of their own.
template <class T>
struct Part {
    size_t group;
    int64_t first, end;  // tokens
    T* sums;             // [words, width + 1]; null: the gradients themselves
};

template <class T>
class Softmax {
    using Group = SoftmaxGroup<T>;
    using Steps = SoftmaxSteps<T>;
    using Scratch = typename Steps::Scratch;

  public:
    Softmax(const SoftmaxCall<T>& call, const Kernels<T>& kernels)
        : c_(call),
          steps_(call, kernels),
          wants_(call.d_hidden != nullptr || wants(call.by_word) || wants(call.by_class)) {}

    double run() {
        std::vector<int64_t>& target = steps_.target;
        std::vector<int64_t> tokens(static_cast<size_t>(c_.tokens));
        for (int64_t t = 0; t < c_.tokens; ++t) tokens[static_cast<size_t>(t)] = t;
        if (c_.classes == 0) {
            std::copy_n(c_.target, c_.tokens, target.data());
            level({{&c_.by_word, nullptr, 0, c_.words, tokens.data(), c_.tokens, false}});
        } else {
            for (int64_t t = 0; t < c_.tokens; ++t) {
                target[static_cast<size_t>(t)] = c_.class_of[c_.target[t]];
            }
            level({{&c_.by_class, nullptr, 0, c_.classes, tokens.data(), c_.tokens, false}});
            level(groups_of_classes(tokens));
        }
        double total = 0;
        for (int64_t t = 0; t < c_.tokens; ++t) total += c_.losses[t] * steps_.scale(t);
        return total;
    }

  private:
    static bool wants(const SoftmaxWeights<T>& w) { return Steps::wants(w); }

    // Tokens sorted by their class, and the place of each target in it.
    std::vector<Group> groups_of_classes(std::vector<int64_t>& tokens) {
        std::vector<int64_t>& target = steps_.target;
        std::vector<int64_t> ends(static_cast<size_t>(c_.classes) + 1);
        for (int64_t t : target) ++ends[static_cast<size_t>(t) + 1];
        for (size_t i = 1; i < ends.size(); ++i) ends[i] += ends[i - 1];
        std::vector<int64_t> at(ends.begin(), ends.end() - 1);
        for (int64_t t = 0; t < c_.tokens; ++t) {
            tokens[static_cast<size_t>(at[static_cast<size_t>(target[static_cast<size_t>(t)])]++)] =
                t;
        }
        for (int64_t t = 0; t < c_.tokens; ++t) {
            target[static_cast<size_t>(t)] = c_.place_of[c_.target[t]];
        }
        std::vector<Group> groups;
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

    void level(std::vector<Group> groups) {
        groups_ = std::move(groups);
        std::vector<Part<T>> parts;
        std::vector<size_t> empty, cut;
        double work = 0;
        int64_t extra = 0;
        for (size_t g = 0; g < groups_.size(); ++g) {
            const Group& group = groups_[g];
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
            const Group& group = groups_[part.group];
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
        for (const Group& group : groups_) {
            if (group.n_tokens > 0 && group.words > kSmallGroup) large(group);
        }
    }

    int threads_for(double work) const {
        const double worth = std::max(1.0, work / kLeastWork);
        return static_cast<int>(
            std::min<double>({double(c_.threads), double(most_threads()), worth}));
    }
    int64_t sums_size(const Group& group) const { return group.words * (c_.width + 1); }

    void small(std::vector<Part<T>>& parts, const std::vector<size_t>& empty,
               const std::vector<size_t>& cut, int n) {
        if (parts.empty() && empty.empty()) return;
        int64_t room = 0;
        for (const Part<T>& part : parts) {
            room = std::max(room, steps_.scratch(groups_[part.group], nullptr, nullptr));
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
                steps_.scratch(groups_[parts[j].group], memory.data() + i * room, &s);
                part(parts[j], s);
            }
            for (size_t j; (j = next_empty.fetch_add(1)) < empty.size();) clear(groups_[empty[j]]);
        });
    }

    void clear(const Group& group) const {
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
        const Group& group = groups_[g];
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

    static int64_t row_of(const Group& group, int64_t i) {
        return group.rows == nullptr ? group.first + i : group.rows[i];
    }

    // -- a small group ----------------------------------------------------------------------------

    void part(const Part<T>& p, const Scratch& s) const {
        const Group& group = groups_[p.group];
        for (int64_t first = p.first; first < p.end; first += s.chunk) {
            const int64_t n = std::min(s.chunk, p.end - first);
            const int64_t* tokens = group.tokens + first;
            steps_.gather(tokens, n, s);
            for (int64_t w = 0; w < group.words; w += kMostRows)
                steps_.logits(group, w, tokens, n, s);
            steps_.finish(group, tokens, n, s);
            if (!wants_) continue;
            if (c_.d_hidden != nullptr) std::fill_n(s.acc, n * steps_.padded(), T(0));
            for (int64_t w = 0; w < group.words; w += kMostRows) {
                steps_.gradients(group, w, tokens, n, s, s.acc, first == p.first, p.sums);
            }
            if (c_.d_hidden != nullptr) steps_.hidden_gradients(group, tokens, n, s);
        }
    }

    // -- a large group ----------------------------------------------------------------------------

    // Two barriers a chunk: on a busy machine each may cost a time slice. Between them the logits
    // of a chunk, with what is left to do for the one before; then its gradients, while one thread
    // gathers the next one's rows.
    void large(const Group& group) const {
        const int n = threads_for(3.0 * group.n_tokens * group.words * c_.width);
        Scratch shared, none;
        const int64_t bytes = round_up(steps_.scratch(group, nullptr, &none), 64);
        const int64_t rows_bytes = steps_.gathered(nullptr, none);
        const int64_t own_bytes = round_up(steps_.own(nullptr, none), 4096);
        const Lease memory(static_cast<size_t>(bytes + rows_bytes)),
            own_memory(static_cast<size_t>(own_bytes * n));
        steps_.scratch(group, memory.data(), &shared);
        Scratch second = shared;  // rows of every other chunk
        steps_.gathered(memory.data() + bytes, second);
        const int64_t chunks = (group.n_tokens + shared.chunk - 1) / shared.chunk;
        std::vector<std::atomic<int64_t>> next(static_cast<size_t>(2 * chunks));
        const auto chunk = [&](int64_t number, int i) {
            Chunk c{number % 2 == 0 ? shared : second, group.tokens + number * shared.chunk, 0};
            c.size = std::min(shared.chunk, group.n_tokens - number * shared.chunk);
            steps_.own(own_memory.data() + i * own_bytes, c.scratch);
            return c;
        };
        const auto gather = [&](int64_t number, int i) {
            if (number == chunks) return;
            const Chunk c = chunk(number, i);
            steps_.gather(c.tokens, c.size, c.scratch);
        };
        run_stages(0, static_cast<int>(2 * chunks + 1), n, [&](int stage, int i) {
            if (stage == 0) {
                if (i == 0) gather(0, i);
                return;
            }
            const int64_t number = (stage - 1) / 2;
            const bool backward = stage % 2 == 0;
            if (!backward && number > 0 && c_.d_hidden != nullptr) {
                const Chunk c = chunk(number - 1, i);
                steps_.hidden_gradients(group, c.tokens, c.size, c.scratch, i, n);
            }
            if (number == chunks) return;
            const Chunk c = chunk(number, i);
            if (backward) steps_.finish(group, c.tokens, c.size, c.scratch, i == 0);
            std::atomic<int64_t>& mine = next[static_cast<size_t>(stage - 1)];
            for (int64_t j; (j = mine.fetch_add(1)) <= c.scratch.stretches;) {
                if (j == 0 && backward) gather(number + 1, i);
                if (j > 0) stretch(group, c, j - 1, backward, number == 0);
            }
        });
    }

    struct Chunk {
        Scratch scratch;
        const int64_t* tokens;
        int64_t size;
    };

    void stretch(const Group& group, const Chunk& c, int64_t number, bool backward,
                 bool first) const {
        if (backward && !wants_) return;
        const int64_t words = Steps::stretch(group) * kMostRows;
        const int64_t end = std::min((number + 1) * words, group.words);
        T* acc = c.scratch.acc + number * c.scratch.chunk * steps_.padded();
        if (backward) std::fill_n(acc, c.size * steps_.padded(), T(0));
        for (int64_t w = number * words; w < end; w += kMostRows) {
            if (backward)
                steps_.gradients(group, w, c.tokens, c.size, c.scratch, acc, first, nullptr);
            else
                steps_.logits(group, w, c.tokens, c.size, c.scratch);
        }
    }

    const SoftmaxCall<T>& c_;
    Steps steps_;
    const bool wants_;
    std::vector<Group> groups_;
};

}  // namespace

template <class T>
double softmax_loss(const SoftmaxCall<T>& call, const Kernels<T>& kernels) {
    return Softmax<T>(call, kernels).run();
}

template double softmax_loss(const SoftmaxCall<float>&, const Kernels<float>&);
template double softmax_loss(const SoftmaxCall<double>&, const Kernels<double>&);

}  // namespace unpad
