// A softmax's call as one flat array of numbers, decoded and checked.

#include <algorithm>
#include <stdexcept>
#include <string>

#include "isa.h"
#include "softmax.h"

namespace unpad {
namespace {

// Reads the frame number by number.
class Frame {
  public:
    Frame(const int64_t* at, int64_t n) : at_(at), end_(at + n) {}
    int64_t number() {
        if (at_ == end_) throw std::invalid_argument("softmax: the frame is too short");
        return *at_++;
    }
    template <class P>
    P* address() {
        return reinterpret_cast<P*>(static_cast<intptr_t>(number()));
    }
    template <class T>
    SoftmaxWeights<T> weights() {
        SoftmaxWeights<T> w;
        w.weight = address<const T>();
        w.stride = number();
        w.bias = address<const T>();
        w.d_weight = address<T>();
        w.d_bias = address<T>();
        return w;
    }
    bool at_end() const { return at_ == end_; }

  private:
    const int64_t* at_;
    const int64_t* end_;
};

void check(bool right, const char* what) {
    if (!right) throw std::invalid_argument(std::string("softmax: ") + what);
}

template <class T>
SoftmaxCall<T> read_call(Frame& f, const double* numbers) {
    SoftmaxCall<T> c;
    c.threads = static_cast<int>(std::clamp<int64_t>(f.number(), 1, 1 << 16));
    c.tokens = f.number();
    c.width = f.number();
    c.words = f.number();
    c.classes = f.number();
    check(c.tokens >= 0 && c.width > 0 && c.words > 0 && c.classes >= 0, "a size is negative");
    c.hidden = f.address<const T>();
    c.hidden_stride = f.number();
    c.target = f.address<const int64_t>();
    c.scale = f.address<const T>();
    c.losses = f.address<T>();
    c.d_hidden = f.address<T>();
    c.by_word = f.weights<T>();
    c.by_class = f.weights<T>();
    c.class_of = f.address<const int64_t>();
    c.order = f.address<const int64_t>();
    c.place_of = f.address<const int64_t>();
    c.starts = f.address<const int64_t>();
    c.scale_all = numbers[0];
    c.inverse_temperature = numbers[1];
    c.smoothing = numbers[2];
    return c;
}

struct Loss {
    template <class T>
    double operator()(const SoftmaxCall<T>& c, Frame& f, const Kernels<T>& kernels) const {
        check(f.at_end(), "the frame is too long");
        for (int64_t t = 0; t < c.tokens; ++t) {
            check(c.target[t] >= 0 && c.target[t] < c.words, "a target is no word");
        }
        return softmax_loss(c, kernels);
    }
};

struct Best {
    template <class T>
    double operator()(const SoftmaxCall<T>& c, Frame& f, const Kernels<T>& kernels) const {
        SoftmaxPairs p;
        p.k = f.number();
        p.count = f.number();
        p.tokens = f.address<const int64_t>();
        p.classes = f.address<const int64_t>();
        p.words = f.address<int64_t>();
        check(f.at_end(), "the frame is too long");
        check(c.classes > 0, "there are no classes");
        check(p.k > 0 && p.count >= 0, "a size is negative");
        for (int64_t i = 0; i < p.count; ++i) {
            check(p.tokens[i] >= 0 && p.tokens[i] < c.tokens, "a pair's token is none");
            check(p.classes[i] >= 0 && p.classes[i] < c.classes, "a pair's class is none");
        }
        softmax_best(c, p, kernels);
        return 0;
    }
};

template <class What>
double run(What what, const int64_t* frame, int64_t n_frame, const double* numbers,
           int64_t n_numbers) {
    Frame f(frame, n_frame);
    check(n_numbers == 3, "three numbers: scale, inverse temperature, smoothing");
    const TierTable& table = tables(active_tier());
    switch (f.number()) {
        case 0:
            return what(read_call<float>(f, numbers), f, *table.f32);
        case 1:
            return what(read_call<double>(f, numbers), f, *table.f64);
        case 2:
            return what(read_call<float>(f, numbers), f, *table.bf16);
        default:
            throw std::invalid_argument("softmax: dtype: 0, 1 or 2");
    }
}

}  // namespace

double softmax_loss(const int64_t* frame, int64_t n_frame, const double* numbers,
                    int64_t n_numbers) {
    return run(Loss{}, frame, n_frame, numbers, n_numbers);
}

void softmax_best(const int64_t* frame, int64_t n_frame, const double* numbers, int64_t n_numbers) {
    run(Best{}, frame, n_frame, numbers, n_numbers);
}

}  // namespace unpad
