#include "plan.h"

#include <algorithm>
#include <numeric>

namespace unpad {
namespace {

// The least loaded bin; the first of equals, so that a plan repeats.
template <class Load>
size_t least(size_t n, Load load) {
    size_t best = 0;
    for (size_t i = 1; i < n; ++i) {
        if (load(i) < load(best)) best = i;
    }
    return best;
}

// Enough slots that the longest sequence does not outlast the others, and enough rows for a
// product.
int64_t slot_count(int64_t tokens, int64_t longest, int64_t sequences) {
    const int64_t wanted = (tokens + longest - 1) / longest;
    return std::min(sequences, std::clamp<int64_t>(wanted, 8, kMostSlots));
}

}  // namespace

std::vector<Share> share_out(const Batch& batch, int n) {
    std::vector<int64_t> order;
    order.reserve(static_cast<size_t>(batch.size));
    for (int64_t b = 0; b < batch.size; ++b) {
        if (batch.length(b) > 0) order.push_back(b);
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return batch.length(a) > batch.length(b); });
    std::vector<Share> shares(static_cast<size_t>(n));
    for (int64_t b : order) {
        Share& s = shares[least(shares.size(), [&](size_t i) { return shares[i].tokens; })];
        s.sequences.push_back(b);
        s.tokens += batch.length(b);
    }
    return shares;
}

Slots fill_slots(const Batch& batch, const Share& share) {
    Slots out;
    if (share.sequences.empty()) {
        out.begin.push_back(0);
        return out;
    }
    const int64_t n = slot_count(share.tokens, batch.length(share.sequences[0]),
                                 static_cast<int64_t>(share.sequences.size()));
    std::vector<Share> slots(static_cast<size_t>(n));
    for (int64_t b : share.sequences) {
        Share& s = slots[least(slots.size(), [&](size_t i) { return slots[i].tokens; })];
        s.sequences.push_back(b);
        s.tokens += batch.length(b);
    }
    std::stable_sort(slots.begin(), slots.end(),
                     [](const Share& a, const Share& b) { return a.tokens > b.tokens; });
    for (const Share& s : slots) {
        out.begin.push_back(static_cast<int64_t>(out.sequences.size()));
        out.sequences.insert(out.sequences.end(), s.sequences.begin(), s.sequences.end());
        out.tokens.push_back(s.tokens);
    }
    out.begin.push_back(static_cast<int64_t>(out.sequences.size()));
    return out;
}

Windows::Windows(const Batch& batch, const Slots& slots, int64_t capacity)
    : batch_(batch), slots_(slots), capacity_(capacity) {
    cursors_.reserve(static_cast<size_t>(slots.count()));
    restart();
}

void Windows::restart() {
    step_ = 0;
    live_ = slots_.count();
    cursors_.clear();
    for (int64_t r = 0; r < live_; ++r) {
        cursors_.push_back({slots_.begin[static_cast<size_t>(r)], -1, -1, 0, 0});
    }
}

bool Windows::next(Window& window) {
    window.rows = 0;
    window.first_step = step_;
    window.step_begin.clear();
    window.step_begin.push_back(0);
    window.starts.clear();
    for (;; ++step_) {
        while (live_ > 0 && slots_.tokens[static_cast<size_t>(live_ - 1)] <= step_) --live_;
        if (live_ == 0 || window.rows + live_ > capacity_) break;
        for (int64_t r = 0; r < live_; ++r) {
            Cursor& c = cursors_[static_cast<size_t>(r)];
            if (c.left == 0) {
                c.sequence = slots_.sequences[static_cast<size_t>(c.queue++)];
                c.left = batch_.length(c.sequence);
                c.token = batch_.first_token(c.sequence);
                c.shift = batch_.shift(c.sequence);
                window.starts.push_back({window.rows, r, c.sequence});
            }
            window.token[window.rows] = c.token;
            window.place[window.rows] = c.token + c.shift;
            window.sequence[window.rows] = c.sequence;
            window.last[window.rows] = c.left == 1;
            c.token += batch_.direction;
            --c.left;
            ++window.rows;
        }
        window.step_begin.push_back(window.rows);
    }
    return window.rows > 0;
}

}  // namespace unpad
