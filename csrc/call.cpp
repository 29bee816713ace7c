#include "call.h"

namespace unpad {
namespace {

void need(bool holds, const char* message) {
    if (!holds) throw ProgramError(std::string("call frame: ") + message);
}

class FrameReader {
  public:
    FrameReader(const int64_t* frame, int64_t tokens) : at_(frame), tokens_(tokens) {}

    int64_t number() { return *at_++; }
    char* pointer(bool may_be_null) {
        char* p = reinterpret_cast<char*>(static_cast<intptr_t>(*at_++));
        need(p != nullptr || may_be_null, "a pointer is null");
        return p;
    }
    // Memory with a row a token.
    char* rows() { return pointer(tokens_ == 0); }

  private:
    const int64_t* at_;
    int64_t tokens_;
};

void check_offsets(const Batch& batch) {
    need(batch.size >= 0 && batch.offsets != nullptr, "no offsets");
    need(batch.offsets[0] == 0, "offsets start at 0");
    for (int64_t b = 0; b < batch.size; ++b) need(batch.length(b) >= 0, "offsets never decrease");
}

}  // namespace

Call read_frame(const Program& p, const int64_t* frame, int64_t size) {
    constexpr int64_t head = 7;
    const int64_t n_states = static_cast<int64_t>(p.states.size());
    const int64_t wanted = head + 3 * p.n_streams + p.n_shared +
                           3 * static_cast<int64_t>(p.matrices.size()) +
                           static_cast<int64_t>(p.accumulators.size()) + 2 * n_states;
    need(size == wanted, "wrong number of entries");
    Call call{};
    need(frame[0] >= 0 && frame[0] <= 2,
         "the dtype is 0 (float32), 1 (float64) or 2 (float32, products in bfloat16)");
    need(frame[1] == 1 || frame[1] == -1, "the direction is +1 or -1");
    call.wide = frame[0] == 1;
    call.bfloat16 = frame[0] == 2;
    call.threads = static_cast<int>(frame[2] < 1 ? 1 : frame[2] > 1024 ? 1024 : frame[2]);
    call.batch = {frame[3], reinterpret_cast<const int64_t*>(static_cast<intptr_t>(frame[4])),
                  static_cast<int>(frame[1]),
                  reinterpret_cast<const int64_t*>(static_cast<intptr_t>(frame[6]))};
    check_offsets(call.batch);
    need(frame[5] < 0 || frame[5] == call.batch.tokens(),
         "the last offset is not the number of rows of the streams");
    FrameReader r(frame + head, call.batch.tokens());
    for (int64_t i = 0; i < p.n_streams; ++i) {
        char* data = r.rows();
        const int64_t stride = r.number();
        call.streams.push_back({data, stride, r.number() != 0});
        need(!call.streams.back().placed || call.batch.begins != nullptr,
             "a stream is placed, but not where its sequences begin");
    }
    for (int64_t i = 0; i < p.n_shared; ++i) call.shared.push_back(r.pointer(false));
    for (size_t i = 0; i < p.matrices.size(); ++i) {
        const char* data = r.pointer(false);
        const int64_t stride_row = r.number();
        call.matrices.push_back({data, stride_row, r.number()});
    }
    for (size_t i = 0; i < p.accumulators.size(); ++i)
        call.accumulators.push_back(r.pointer(false));
    for (int64_t i = 0; i < n_states; ++i) call.initial.push_back(r.pointer(true));
    for (int64_t i = 0; i < n_states; ++i) call.final.push_back(r.pointer(true));
    return call;
}

}  // namespace unpad
