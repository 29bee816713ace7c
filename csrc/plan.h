#pragma once

// Who runs what when. Sequences are shared out over threads, and within a thread over slots; slots
// are sorted by their tokens, so that at every step the live ones are the first few: the rows of a
// step are a dense block whatever the lengths (continuous batching). A window is a stretch of
// steps.

#include <cstdint>
#include <vector>

namespace unpad {

struct Batch {
    int64_t size;            // B
    const int64_t* offsets;  // [B + 1]
    int direction;           // +1, or -1: last token to first
    // [B]: the row of a sequence's first token in the streams that are placed so; null: none is
    const int64_t* begins = nullptr;

    int64_t tokens() const { return offsets[size]; }
    int64_t length(int64_t b) const { return offsets[b + 1] - offsets[b]; }
    int64_t first_token(int64_t b) const { return direction > 0 ? offsets[b] : offsets[b + 1] - 1; }
    // What a token's row in the placed streams is more than its number.
    int64_t shift(int64_t b) const { return begins == nullptr ? 0 : begins[b] - offsets[b]; }
};

// Sequences of one thread (longest first) and their number of tokens.
struct Share {
    std::vector<int64_t> sequences;
    int64_t tokens = 0;
};

// Longest first to the least loaded of `n` shares; empty sequences go to nobody.
std::vector<Share> share_out(const Batch& batch, int n);

// A thread's slots: slot r runs sequences[begin[r] .. begin[r + 1]) one after the other.
struct Slots {
    std::vector<int64_t> sequences;
    std::vector<int64_t> begin;
    std::vector<int64_t> tokens;  // by slot, descending

    int64_t count() const { return static_cast<int64_t>(tokens.size()); }
};

Slots fill_slots(const Batch& batch, const Share& share);

// Slots are at most this many; a step of one row each.
inline constexpr int64_t kMostSlots = 30;

// A sequence that starts at a row of the window.
struct Start {
    int64_t row;
    int64_t slot;
    int64_t sequence;
};

// The rows of one window, step by step, slot by slot. Arrays hold `capacity` rows; `Windows` fills.
struct Window {
    int64_t rows = 0;
    int64_t first_step = 0;
    std::vector<int64_t> step_begin;  // rows of step s: [step_begin[s], step_begin[s + 1])
    std::vector<Start> starts;        // in order of row
    int64_t* token;                   // [capacity]
    int64_t* place;                   // [capacity] its row in the placed streams
    int64_t* sequence;                // [capacity]
    char* last;                       // [capacity] 1: the sequence ends here

    int64_t steps() const { return static_cast<int64_t>(step_begin.size()) - 1; }
};

// Walks the windows of a thread in reading order.
class Windows {
  public:
    Windows(const Batch& batch, const Slots& slots, int64_t capacity);

    void restart();

    // Fills the next window; false where none is left. `capacity` >= the number of slots.
    bool next(Window& window);

  private:
    struct Cursor {
        int64_t queue;  // next sequence of the slot
        int64_t sequence, token, left, shift;
    };

    const Batch& batch_;
    const Slots& slots_;
    int64_t capacity_;
    int64_t step_ = 0;
    int64_t live_ = 0;
    std::vector<Cursor> cursors_;
};

}  // namespace unpad
