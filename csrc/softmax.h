#pragma once

// The loss of a softmax over many words, and its gradients, without the logits: in one level, or
// in two (a class, then one of its words). See softmax.cpp for how.

#include <cstdint>

#include "kernels.h"

namespace unpad {

// One softmax's rows: a word's (class's) weights are weight[number * stride ...]. Gradients are
// overwritten, [rows, H] and [rows] contiguous; null: not wanted.
template <class T>
struct SoftmaxWeights {
    const T* weight;
    int64_t stride;
    const T* bias;  // null: none
    T* d_weight;
    T* d_bias;
};

template <class T>
struct SoftmaxCall {
    int threads;
    int64_t tokens, width, words, classes;  // classes 0: one level
    const T* hidden;                        // [tokens, width]
    int64_t hidden_stride;
    const int64_t* target;  // [tokens]: words
    const T* scale;         // [tokens], what losses are multiplied by; null: all by `scale_all`
    double scale_all, inverse_temperature, smoothing;
    SoftmaxWeights<T> by_word, by_class;
    const int64_t* class_of;  // [words]
    const int64_t* order;     // [words], class by class; null: in the order of words
    const int64_t* place_of;  // [words], the place within its class
    const int64_t* starts;    // [classes + 1], in `order`
    T* losses;                // [tokens], each before its scale
    T* d_hidden;              // [tokens, width], of the scaled sum; null: not wanted
};

// Returns the sum of the scaled losses. Throws std::invalid_argument, std::bad_alloc.
template <class T>
double softmax_loss(const SoftmaxCall<T>& call, const Kernels<T>& kernels);

// Pairs of a token and a class, and of each the k likeliest words of the class, in any order;
// where it has fewer, the others are -inf.
struct SoftmaxPairs {
    int64_t k, count;
    const int64_t* tokens;   // [count]
    const int64_t* classes;  // [count]
    int64_t* words;          // [count, k]
};

// losses[count, k] instead of [T]: the log probabilities within the class.
template <class T>
void softmax_best(const SoftmaxCall<T>& call, const SoftmaxPairs& pairs, const Kernels<T>& kernels);

// The frame as engine.h has it.
double softmax_loss(const int64_t* frame, int64_t n_frame, const double* numbers,
                    int64_t n_numbers);
void softmax_best(const int64_t* frame, int64_t n_frame, const double* numbers, int64_t n_numbers);

}  // namespace unpad
