#ifndef UNPAD_ENGINE_H
#define UNPAD_ENGINE_H

/* The engine's face: C, so that any language can call it. It knows no framework.

   Errors: functions that can fail take `error`, a buffer of `error_size` bytes (at least 1), and
   fill it with a message; an empty message means success. Nothing is thrown, nothing is printed.
   Threads: every function may be called from several threads at once; a program may run in several
   calls at once. Ownership: memory named in a call stays the caller's and is not kept. */

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct unpad_program unpad_program;

/* A pass from its encoding (unpad/engine/native_engine.py, `encode`, has the layout), all of it
   checked. Returns null and a message where it is not a program. */
unpad_program* unpad_program_create(const int64_t* code, int64_t n_code, const double* constants,
                                    int64_t n_constants, char* error, int64_t error_size);
void unpad_program_destroy(unpad_program* program);

/* Runs a pass over the B sequences of a ragged batch. `frame` is one flat array:

     dtype        0 float32, 1 float64: of everything below; 2: float32, but the operands of every
                  linear and outer are rounded to bfloat16 (nearest even) before they are multiplied
     direction    +1, or -1 to read every sequence from its last token to its first
     threads      the most to use
     B            number of sequences
     offsets      address of int64[B + 1], offsets[0] = 0, never decreasing; T = offsets[B]
     tokens       T as the streams have it, compared with offsets[B]; -1: no comparison
     begins       address of int64[B]: the row of each sequence's first token in placed streams, of
                  which the sequences are stretches; null where no stream is placed
     streams      for each: address of [T, width], in or out; numbers from row to row; 1 where it is
                  placed, else 0
     shared       for each: address of [width], in
     matrices     for each [K, N]: address, in; numbers from row to row, from column to column
     accumulators for each [rows, cols]: address, contiguous, out: overwritten with the sum
     initial      for each state: address of [B, width], contiguous, in; null: zeros
     final        for each state: address of [B, width], contiguous, out; aliases no other memory;
                  null: nobody wants it

   Addresses of memory with T (B) rows may be null where T (B) is 0. A sequence of length 0 has its
   initial state as its final state. The engine trusts addresses and strides; it cannot check them.
 */
void unpad_run(const unpad_program* program, const int64_t* frame, int64_t n_frame, char* error,
               int64_t error_size);

/* For streaming: a pass over one token of each sequence, prepared once and run again and again. The
   frame is that of unpad_run with B sequences of length 1. The program and all memory that the
   frame names must outlive the stepper. One thread at a time may use it; a step cannot fail. */
typedef struct unpad_stepper unpad_stepper;
unpad_stepper* unpad_stepper_create(const unpad_program* program, const int64_t* frame,
                                    int64_t n_frame, char* error, int64_t error_size);
void unpad_stepper_destroy(unpad_stepper* stepper);
void unpad_stepper_pack(unpad_stepper* stepper); /* takes the matrices as they are now */
void unpad_stepper_step(unpad_stepper* stepper);

/* Tiers of instruction sets, best last: what was built, what this machine runs, what is active.
   Lists are names separated by spaces. The active tier is the best, or what the environment
   variable UNPAD_ISA says at first use, or the last selection. */
const char* unpad_built_tiers(void);
const char* unpad_supported_tiers(void);
const char* unpad_active_tier(char* error, int64_t error_size);
void unpad_select_tier(const char* name, char* error, int64_t error_size);

/* Memory from the engine's pool, 64-byte aligned, not cleared. Null where there is none left. */
void* unpad_acquire(int64_t bytes, int64_t* size);
void unpad_release(void* data, int64_t size); /* `size` as acquire gave it */
int64_t unpad_trim(void);                     /* frees idle memory; returns its bytes */
int64_t unpad_idle_bytes(void);

/* Masks of ones and zeros: row i of out[n_rows, width] is drawn from the seed for row rows[i]; a
   one has the probability keep / 2^32, for keep from 0 to 2^32. The numbers depend on nothing else
   (csrc/philox.h). wide: 0 float32, 1 float64. */
void unpad_draw_mask(int64_t seed, int64_t keep, const int64_t* rows, int64_t n_rows, int64_t width,
                     int wide, int threads, void* out);

// clang-format off
/* The loss of a softmax over many words and its gradients, in one level or in two (softmax.h).
   `frame` is one flat array:

     dtype        as in unpad_run
     threads      the most to use
     T, H, V, C   tokens, width, words, classes; C = 0: one level
     hidden       address of [T, H], in; numbers from row to row
     target       address of int64[T], in: words
     scale        address of [T], in: what each loss is multiplied by; null: all by numbers[0]
     losses       address of [T], out: before their scale
     d_hidden     address of [T, H], contiguous, out: the gradient of the scaled sum; null: not wanted
     by word      weight: address of [V, H], in; numbers from row to row; bias: address of [V], in, or
                  null; their gradients, contiguous, out, or null
     by class     the same of [C, H]; zeros where C = 0
     class_of     address of int64[V], in
     order        address of int64[V], in: the words class by class; null: 0, 1, 2, ...
     place_of     address of int64[V], in: each word's place in its class
     starts       address of int64[C + 1], in: where classes begin in `order`

   `numbers`: scale, 1 / temperature, label smoothing (one level only). Returns the sum of the
   scaled losses. Targets are checked; classes and addresses are trusted. */
// clang-format on
double unpad_softmax_loss(const int64_t* frame, int64_t n_frame, const double* numbers,
                          int64_t n_numbers, char* error, int64_t error_size);

/* The k likeliest words of classes, each within its class, for pairs [P] of a token and a class.
   The same frame, where C > 0 and no target is read, with

     k            how many, at least 1
     P            how many pairs
     tokens       address of int64[P], in
     classes      address of int64[P], in
     words        address of int64[P, k], out

   Log probabilities go into `losses` [P, k], in any order; -inf, and any word of the class, where it
   has fewer. Nothing else is written. Tokens and classes are checked. */
void unpad_softmax_best(const int64_t* frame, int64_t n_frame, const double* numbers,
                        int64_t n_numbers, char* error, int64_t error_size);

/* The most threads (at least 1) of OpenMP regions that the calling thread opens from now on, in
   this library or another of its runtime; returns what it was. */
int unpad_limit_threads(int n);

/* Floating-point operations a second (a multiply-add is two) that `threads` threads of the active
   tier reach at best, in registers. Takes some 20 ms. */
double unpad_machine_peak(int threads, int wide, char* error, int64_t error_size);

/* The opcode table: entry i has code i. Null past the end. */
const char* unpad_opcode(int64_t code, int* least_args, int* most_args);

#ifdef __cplusplus
}
#endif

#endif
