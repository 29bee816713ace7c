#pragma once

// One thread's part of a call: its memory, its windows, and the phases over each of them.

#include <algorithm>
#include <cstring>
#include <numeric>

#include "shared.h"

namespace unpad {

// Row maps of Ref::map; kNextMap + k is the map of NEXT(k), whose entries are addresses.
enum Map : int { kTokenMap, kPlaceMap, kRowMap, kLocalMap, kSlotMap, kNextMap };

// Instructions [begin, end) of a phase that go over the rows together, `rows` at a time.
struct Stretch {
    size_t begin, end;
    int64_t rows;
};

// A phase's instructions, resolved.
struct Steps {
    std::vector<Step> list;
    std::vector<Stretch> stretches;

    bool multiply() const {
        return std::any_of(list.begin(), list.end(),
                           [](const Step& step) { return step.op == op_linear; });
    }
};

// The memory and the loop of one thread.
template <class T>
class Worker {
  public:
    // Everything is allocated here: run() may not throw.
    Worker(const Shared<T>& shared, const Slots& slots, char* memory)
        : s_(shared),
          p_(shared.program),
          n_slots_(shared.geometry.slots),
          windows_(shared.call.batch, slots, shared.geometry.window) {
        Bump bump(memory);
        carve(bump);
        size_ = bump.used();
        if (memory == nullptr) return;
        std::iota(iota_, iota_ + iota_size(), int64_t{0});
        resolve_phases();
    }

    static int64_t memory_size(const Shared<T>& shared) {
        return Worker(shared, Slots{}, nullptr).size_;
    }

    T* accumulator(int i) const { return accumulators_[static_cast<size_t>(i)]; }
    int64_t accumulator_stride(int i) const {
        return round_up(p_.accumulators[static_cast<size_t>(i)].cols, s_.kernels.panel);
    }

    // From the first token on, any number of times.
    void run() {
        windows_.restart();
        for (size_t i = 0; i < accumulators_.size(); ++i) {
            const int64_t n = p_.accumulators[i].rows * accumulator_stride(static_cast<int>(i));
            std::fill_n(accumulators_[i], n, T(0));
        }
        while (windows_.next(window_)) {
            address_next();
            for (size_t i = 0; i < p_.phases.size(); ++i) {
                switch (p_.phases[i].kind) {
                    case PhaseKind::Bulk:
                        bulk(steps_[i], ahead_[i]);
                        break;
                    case PhaseKind::Loop:
                        loop(steps_[i], ahead_[i], p_.phases[i].states);
                        break;
                    default:
                        reduce(s_.reduces[i]);
                }
            }
        }
    }

  private:
    int64_t iota_size() const {
        return std::max({s_.geometry.window, s_.geometry.scratch, 2 * n_slots_});
    }
    // Rows of the engine's buffers are whole vectors, and not a multiple of 4 KB apart: neighbours
    // would fall into the same sets of the first-level cache.
    static int64_t padded(int64_t width) {
        const int64_t line = 64 / static_cast<int64_t>(sizeof(T));
        const int64_t w = round_up(width, line);
        return w % (8 * line) == 0 ? w + line : w;
    }

    void carve(Bump& bump) {
        const int64_t window = s_.geometry.window;
        for (const Buffer& b : p_.buffers) {
            const int64_t rows = b.kind == Kind::Window    ? window
                                 : b.kind == Kind::Scratch ? s_.geometry.scratch
                                                           : 0;
            buffers_.push_back(bump.take<T>(rows * padded(b.width)));
        }
        for (size_t k = 0; k < p_.states.size(); ++k) {
            const State& state = p_.states[k];
            const bool here = state.stream < 0 || s_.call.final[k] == nullptr;
            slot_states_.push_back(here ? bump.take<T>(2 * n_slots_ * padded(state.width))
                                        : nullptr);
            next_.push_back(bump.take<int64_t>(window));
        }
        for (size_t i = 0; i < p_.accumulators.size(); ++i) {
            accumulators_.push_back(
                bump.take<T>(p_.accumulators[i].rows * accumulator_stride(static_cast<int>(i))));
        }
        carve_packs(bump);
        window_.token = bump.take<int64_t>(window);
        window_.place = bump.take<int64_t>(window);
        window_.sequence = bump.take<int64_t>(window);
        window_.last = bump.take<char>(window);
        window_.step_begin.reserve(static_cast<size_t>(window) + 1);
        window_.starts.reserve(static_cast<size_t>(window));
        iota_ = bump.take<int64_t>(iota_size());
    }

    // Columns of a left operand that are packed together: a quarter of a second-level cache.
    int64_t piece() const {
        constexpr int64_t most = int64_t{256} << 10;
        const int64_t columns = most / (s_.geometry.window * static_cast<int64_t>(sizeof(T)));
        return std::max<int64_t>(columns / 12 * 12, 12);
    }

    void carve_packs(Bump& bump) {
        const int64_t window = s_.geometry.window;
        int64_t most = 0;
        for (const ReducePlan& plan : s_.reduces) {
            int64_t size = window * piece() + 16;  // pack_left writes past the end
            for (const Operand& o : plan.rights) {
                size += window * round_up(o.width, s_.kernels.panel);
            }
            most = std::max(most, size);
            panels_.reserve(plan.rights.size());
        }
        packs_ = bump.take<T>(most);
    }

    Ref resolve(const Operand& o) const {
        const Buffer& b = p_.buffers[static_cast<size_t>(o.buffer)];
        const int64_t size = sizeof(T);
        const auto at = [&](const void* base, int64_t stride, int map) {
            char* start = const_cast<char*>(static_cast<const char*>(base));
            return Ref{start + o.offset * size, stride, map, o.width};
        };
        const auto of_stream = [&](size_t number) {
            const StreamPointer& s = s_.call.streams[number];
            return at(s.data, s.row_stride * size, s.placed ? kPlaceMap : kTokenMap);
        };
        const size_t i = static_cast<size_t>(b.index);
        switch (b.kind) {
            case Kind::Stream:
                return of_stream(i);
            case Kind::Window:
                return at(buffers_[static_cast<size_t>(o.buffer)], padded(b.width) * size, kRowMap);
            case Kind::Scratch:
                return at(buffers_[static_cast<size_t>(o.buffer)], padded(b.width) * size,
                          kLocalMap);
            case Kind::Shared:
                return at(s_.call.shared[i], 0, kLocalMap);
            case Kind::Const:
                return at(s_.constants + i, 0, kLocalMap);
            case Kind::Prev:
                if (p_.states[i].stream < 0) {
                    return at(slot_states_[i], padded(b.width) * size, kSlotMap);
                } else {
                    return of_stream(static_cast<size_t>(p_.states[i].stream));
                }
            default:
                return at(nullptr, 1, kNextMap + static_cast<int>(i));
        }
    }

    Step resolve(const Instruction& in) const {
        Step step{};
        step.op = in.op;
        step.out = resolve(in.out);
        step.n_args = static_cast<int>(in.args.size());
        for (size_t i = 0; i < in.args.size(); ++i) step.args[i] = resolve(in.args[i]);
        for (size_t i = 0; i < 3; ++i) step.dims[i] = i < in.dims.size() ? in.dims[i] : 1;
        if (in.table >= 0) step.table = p_.tables[static_cast<size_t>(in.table)].data();
        if (in.op == op_linear) step.matrix = s_.packed[static_cast<size_t>(in.matrix)];
        return step;
    }

    // A `normalize` gives the `inv_std` of the same row as well, where one follows.
    void resolve_steps(const std::vector<Instruction>& all, std::vector<Step>& list) const {
        std::vector<char> given(all.size(), 0);
        for (size_t i = 0; i < all.size(); ++i) {
            if (given[i]) continue;
            list.push_back(resolve(all[i]));
            if (all[i].op != op_normalize) continue;
            const size_t other = with_moments(all, i);
            if (other == i) continue;
            list.back().also = resolve(all[other].out);
            given[other] = 1;
        }
    }

    // The `inv_std` of what instruction i normalizes, or i. Nothing between them writes its row or
    // touches its result.
    size_t with_moments(const std::vector<Instruction>& all, size_t i) const {
        const Instruction& first = all[i];
        size_t k = i + 1;
        while (k < all.size() &&
               !(all[k].op == op_inv_std && all[k].dims == first.dims &&
                 all[k].args[0].same(first.args[0]) && all[k].args[1].same(first.args[1]))) {
            ++k;
        }
        if (k == all.size()) return i;
        for (size_t j = i; j < k; ++j) {
            if (shares(all[j].out, first.args[0]) || shares(all[j].out, all[k].out)) return i;
            for (const Operand& arg : all[j].args) {
                if (shares(arg, all[k].out)) return i;
            }
        }
        return k;
    }

    // Whether two operands lie in one piece of memory.
    bool shares(const Operand& a, const Operand& b) const {
        const Buffer& x = p_.buffers[static_cast<size_t>(a.buffer)];
        const Buffer& y = p_.buffers[static_cast<size_t>(b.buffer)];
        return a.buffer == b.buffer || (x.index >= 0 && x.kind == y.kind && x.index == y.index);
    }

    void resolve_phases() {
        steps_.resize(p_.phases.size());
        ahead_.resize(p_.phases.size());
        std::vector<Columns> seen;
        size_t fetching = 0;  // the phase that fetches what is first touched now
        for (size_t i = 0; i < p_.phases.size(); ++i) {
            const bool steps = p_.phases[i].kind != PhaseKind::Reduce;
            for (const Instruction& in : p_.phases[i].instructions) {
                if (in.op == op_linear) fetching = i;
            }
            if (steps) resolve_steps(p_.phases[i].instructions, steps_[i].list);
            if (i == 0 && !steps) continue;
            for (const Instruction& in : p_.phases[i].instructions) {
                for (const Operand& o : in.args) fetch_ahead(resolve(o), seen, fetching);
                if (steps) fetch_ahead(resolve(in.out), seen, fetching);
            }
        }
        for (size_t i = 0; i < p_.phases.size(); ++i) {
            for (Step& step : steps_[i].list) {
                if (step.op == op_linear && !ahead_[i].empty()) step.ahead = &now_;
            }
            cut(steps_[i]);
        }
        maps_.resize(kNextMap + p_.states.size());
        moved_.resize(maps_.size());
    }

    static void cut(Steps& steps) {
        const std::vector<Step>& list = steps.list;
        for (size_t begin = 0, end = 0; begin < list.size(); begin = end) {
            const bool product = list[begin].op == op_linear;
            for (end = begin + 1; end < list.size(); ++end) {
                if (product || list[end].op == op_linear) break;
            }
            const int64_t rows = product ? kMostRows : rows_at_once(list, begin, end);
            steps.stretches.push_back({begin, end, rows});
        }
    }

    // As many rows as the first-level cache holds of everything that the instructions touch.
    static int64_t rows_at_once(const std::vector<Step>& list, size_t begin, size_t end) {
        constexpr int64_t cache = int64_t{24} << 10;
        std::vector<Ref> seen;
        int64_t row = 0, shared = 0;
        const auto count = [&](const Ref& ref) {
            for (const Ref& s : seen) {
                if (s.base == ref.base && s.map == ref.map && s.width >= ref.width) return;
            }
            seen.push_back(ref);
            (ref.stride == 0 ? shared : row) += ref.width * static_cast<int64_t>(sizeof(T));
        };
        for (size_t i = begin; i < end; ++i) {
            count(list[i].out);
            for (int k = 0; k < list[i].n_args; ++k) count(list[i].args[k]);
        }
        return std::clamp<int64_t>((cache - shared) / std::max<int64_t>(row, 1), 4, kMostRows);
    }

    // A stream's rows wait in far memory until the window first touches them.
    void fetch_ahead(const Ref& ref, std::vector<Columns>& seen, size_t phase) {
        if (ref.map != kTokenMap && ref.map != kPlaceMap) return;
        const Columns columns{ref.base, ref.stride, ref.width * static_cast<int64_t>(sizeof(T)),
                              ref.map == kPlaceMap};
        for (const Columns& s : seen) {
            if (s.base == columns.base && s.bytes >= columns.bytes) return;
        }
        seen.push_back(columns);
        ahead_[phase].push_back(columns);
    }

    // NEXT(k) of every row of the window: the row of the next token in the state's history, the
    // other half of the slot buffer (also where nobody wants the final state), or the final state.
    void address_next() {
        const int64_t size = sizeof(T);
        for (size_t k = 0; k < p_.states.size(); ++k) {
            const State& state = p_.states[k];
            const int64_t width = state.width * size;
            const intptr_t final = reinterpret_cast<intptr_t>(s_.call.final[k]);
            for (int64_t s = 0; s < window_.steps(); ++s) {
                const int64_t begin = window_.step_begin[static_cast<size_t>(s)];
                const int64_t end = window_.step_begin[static_cast<size_t>(s) + 1];
                const int64_t half = (window_.first_step + s + 1) % 2 * n_slots_;
                for (int64_t w = begin; w < end; ++w) {
                    if (window_.last[w] && final != 0) {
                        next_[k][w] = final + window_.sequence[w] * width;
                    } else if (state.stream < 0 || window_.last[w]) {
                        next_[k][w] = reinterpret_cast<intptr_t>(
                            slot_states_[k] + (half + w - begin) * padded(state.width));
                    } else {
                        next_[k][w] = history_row(state, w, s_.call.batch.direction);
                    }
                }
            }
        }
    }

    // Of the token that is `after` the one in a row of the window.
    intptr_t history_row(const State& state, int64_t row, int64_t after) const {
        const StreamPointer& s = s_.call.streams[static_cast<size_t>(state.stream)];
        const int64_t at = (s.placed ? window_.place : window_.token)[row] + after;
        return reinterpret_cast<intptr_t>(s.data) +
               at * s.row_stride * static_cast<int64_t>(sizeof(T));
    }

    RowMaps maps_at(int64_t row, int64_t step) {
        maps_[kTokenMap] = window_.token + row;
        maps_[kPlaceMap] = window_.place + row;
        maps_[kRowMap] = iota_ + row;
        maps_[kLocalMap] = iota_;
        maps_[kSlotMap] = iota_ + step % 2 * n_slots_;
        for (size_t k = 0; k < next_.size(); ++k) maps_[kNextMap + k] = next_[k] + row;
        return maps_.data();
    }

    // A product takes all rows at once. What stands between two products takes a few rows at a time
    // through all of its instructions, so that what one gives the next still lies in the
    // first-level cache.
    void run_steps(const Steps& steps, RowMaps maps, int64_t rows) {
        for (const Stretch& stretch : steps.stretches) {
            for (int64_t row = 0; row < rows; row += stretch.rows) {
                const RowMaps moved = row == 0 ? maps : moved_by(maps, row);
                const int64_t n = std::min(stretch.rows, rows - row);
                for (size_t i = stretch.begin; i < stretch.end; ++i) {
                    const Step& step = steps.list[i];
                    s_.kernels.row[step.op](step, moved, n);
                }
            }
        }
    }
    RowMaps moved_by(RowMaps maps, int64_t rows) {
        for (size_t i = 0; i < maps_.size(); ++i) moved_[i] = maps[i] + rows;
        return moved_.data();
    }

    // Rows [row, row + rows) of the window come next: products fetch them, or they are fetched now.
    void look_ahead(const std::vector<Columns>& streams, int64_t row, int64_t rows, bool now) {
        constexpr int64_t line = 64;
        now_ = Ahead{streams.data(),
                     static_cast<int64_t>(streams.size()),
                     {window_.token + row, window_.place + row},
                     std::min(rows, window_.rows - row),
                     0,
                     0,
                     0,
                     nullptr,
                     nullptr};
        for (const Columns& c : streams) now_.lines += (c.bytes + line - 1) / line;
        now_.lines *= now_.n_rows;
        if (now_.n_streams == 0) now_.n_rows = 0;
        if (now) s_.kernels.fetch(now_, now_.lines);
    }

    void bulk(const Steps& steps, const std::vector<Columns>& ahead) {
        const int64_t blocks = (window_.rows + s_.geometry.block - 1) / s_.geometry.block;
        const int64_t size = (window_.rows + blocks - 1) / blocks;
        const bool at_once = !steps.multiply();
        look_ahead(ahead, 0, size, true);
        for (int64_t row = 0; row < window_.rows; row += size) {
            const int64_t rows = std::min(size, window_.rows - row);
            look_ahead(ahead, row + rows, size, at_once);
            run_steps(steps, maps_at(row, 0), rows);
        }
    }

    void loop(const Steps& steps, const std::vector<Columns>& ahead,
              const std::vector<int>& states) {
        const bool at_once = !steps.multiply();
        look_ahead(ahead, 0, window_.step_begin[1], true);
        size_t start = 0;
        for (int64_t s = 0; s < window_.steps(); ++s) {
            const int64_t begin = window_.step_begin[static_cast<size_t>(s)];
            const int64_t end = window_.step_begin[static_cast<size_t>(s) + 1];
            for (; start < window_.starts.size() && window_.starts[start].row < end; ++start) {
                begin_sequence(window_.starts[start], window_.first_step + s, states);
            }
            look_ahead(ahead, end, end - begin, at_once);
            run_steps(steps, maps_at(begin, window_.first_step + s), end - begin);
        }
    }

    void begin_sequence(const Start& start, int64_t step, const std::vector<int>& states) {
        for (int k : states) {
            const State& state = p_.states[static_cast<size_t>(k)];
            void* to =
                state.stream < 0
                    ? static_cast<void*>(slot_states_[static_cast<size_t>(k)] +
                                         (step % 2 * n_slots_ + start.slot) * padded(state.width))
                    : reinterpret_cast<void*>(history_row(state, start.row, 0));
            s_.call.copy_initial(static_cast<size_t>(k), start.sequence,
                                 state.width * static_cast<int64_t>(sizeof(T)), to);
        }
    }

    // Rights are packed once, lefts piece by piece: a piece stays in the second-level cache while
    // all panels of all its rights pass through the first.
    void reduce(const ReducePlan& plan) {
        const RowMaps maps = maps_at(0, 0);
        T* free = packs_;
        panels_.clear();
        for (const Operand& o : plan.rights) panels_.push_back(panels_of(resolve(o), maps, free));
        for (size_t i = 0; i < plan.lefts.size(); ++i) {
            const Operand& o = plan.lefts[i];
            for (int64_t column = 0; column < o.width; column += piece()) {
                const int64_t width = std::min(piece(), o.width - column);
                const Operand part{o.buffer, o.offset + column, width};
                s_.kernels.pack_left(resolve(part), maps, window_.rows, free);
                for (const OuterProduct& product : plan.products[i]) {
                    outer(free, column, width, panels_[static_cast<size_t>(product.right)],
                          product.accumulator);
                }
            }
        }
        for (const Instruction* in : plan.sums) {
            const Ref a = resolve(in->args[0]), b = resolve(in->args.back());
            s_.kernels.sum_rows(a, in->args.size() > 1 ? &b : nullptr, maps, window_.rows,
                                accumulator(in->matrix));
        }
    }

    // The panels of a right operand: panel k starts at first + k * next, its rows are `step` apart.
    struct Panels {
        const T* first;
        int64_t next, step, width;
    };

    // A window's rows follow one another, and whole panels of them can be read where they are,
    // unless they spread over more pages than the first-level TLB knows.
    Panels panels_of(const Ref& ref, RowMaps maps, T*& free) const {
        constexpr int64_t few_pages = int64_t{256} << 10;
        const int64_t panel = s_.kernels.panel, rows = window_.rows;
        if (s_.kernels.outer_in_place && ref.map == kRowMap && ref.width % panel == 0 &&
            rows * ref.stride <= few_pages) {
            const int64_t step = ref.stride / static_cast<int64_t>(sizeof(T));
            return {reinterpret_cast<const T*>(ref.base), panel, step, ref.width};
        }
        const Panels packed{free, rows * panel, panel, ref.width};
        for (int64_t k = 0; k * panel < ref.width; ++k, free += rows * panel) {
            s_.kernels.pack_right(ref, maps, rows, k, free);
        }
        return packed;
    }

    void outer(const T* left, int64_t row, int64_t width, const Panels& right, int a) const {
        const int64_t stride = accumulator_stride(a);
        const T* from = right.first;
        for (int64_t n = 0; n < right.width; n += s_.kernels.panel, from += right.next) {
            s_.kernels.outer(left, from, right.step, width, window_.rows,
                             accumulator(a) + row * stride + n, stride);
        }
    }

    const Shared<T>& s_;
    const Program& p_;
    int64_t n_slots_;
    Windows windows_;
    int64_t size_ = 0;
    std::vector<T*> buffers_, slot_states_, accumulators_;
    std::vector<int64_t*> next_;
    T* packs_ = nullptr;
    int64_t* iota_ = nullptr;
    std::vector<Panels> panels_;  // of a REDUCE phase
    Window window_;
    std::vector<Steps> steps_;  // by phase
    std::vector<std::vector<Columns>>
        ahead_;  // by phase: streams whose next rows its products fetch
    Ahead now_{};
    std::vector<const int64_t*> maps_, moved_;
};

}  // namespace unpad
