// The C face over the C++ core: exceptions become messages here.

#include "engine.h"

#include <cstring>
#include <new>

#include "call.h"
#include "isa.h"
#include "masks.h"
#include "pool.h"
#include "softmax.h"
#include "stepper.h"
#include "threads.h"

struct unpad_program {
    unpad::Program program;
};

struct unpad_stepper {
    std::unique_ptr<unpad::Stepper> stepper;
};

namespace {

void set_error(char* error, int64_t size, const char* message) {
    std::strncpy(error, message, static_cast<size_t>(size) - 1);
    error[size - 1] = '\0';
}

// f() with its exceptions as a message; `failed` where it threw.
template <class F>
auto guarded(char* error, int64_t size, F f, decltype(f()) failed) {
    set_error(error, size, "");
    try {
        return f();
    } catch (const std::bad_alloc&) {
        set_error(error, size, "out of memory");
    } catch (const std::exception& e) {
        set_error(error, size, e.what());
    }
    return failed;
}

const char* join(const std::vector<unpad::Tier>& tiers, bool only_supported, std::string& out) {
    for (unpad::Tier t : tiers) {
        if (only_supported && !unpad::can_run(t)) continue;
        out += (out.empty() ? "" : " ") + std::string(unpad::name_of(t));
    }
    return out.c_str();
}

}  // namespace

extern "C" {

unpad_program* unpad_program_create(const int64_t* code, int64_t n_code, const double* constants,
                                    int64_t n_constants, char* error, int64_t error_size) {
    return guarded(
        error, error_size,
        [&] { return new unpad_program{unpad::decode(code, n_code, constants, n_constants)}; },
        nullptr);
}

void unpad_program_destroy(unpad_program* program) {
    delete program;
}

void unpad_run(const unpad_program* program, const int64_t* frame, int64_t n_frame, char* error,
               int64_t error_size) {
    guarded(
        error, error_size,
        [&] {
            unpad::execute(program->program, unpad::read_frame(program->program, frame, n_frame));
            return 0;
        },
        1);
}

unpad_stepper* unpad_stepper_create(const unpad_program* program, const int64_t* frame,
                                    int64_t n_frame, char* error, int64_t error_size) {
    return guarded(
        error, error_size,
        [&] {
            const unpad::Program& p = program->program;
            return new unpad_stepper{unpad::make_stepper(p, unpad::read_frame(p, frame, n_frame))};
        },
        nullptr);
}

void unpad_stepper_destroy(unpad_stepper* stepper) {
    delete stepper;
}
void unpad_stepper_pack(unpad_stepper* stepper) {
    stepper->stepper->pack();
}
void unpad_stepper_step(unpad_stepper* stepper) {
    stepper->stepper->step();
}

const char* unpad_built_tiers(void) {
    static std::string names;
    static const char* text = join(unpad::built_tiers(), false, names);
    return text;
}

const char* unpad_supported_tiers(void) {
    static std::string names;
    static const char* text = join(unpad::built_tiers(), true, names);
    return text;
}

const char* unpad_active_tier(char* error, int64_t error_size) {
    return guarded(
        error, error_size, [&] { return unpad::name_of(unpad::active_tier()); }, nullptr);
}

void unpad_select_tier(const char* name, char* error, int64_t error_size) {
    guarded(
        error, error_size,
        [&] {
            unpad::select_tier(name);
            return 0;
        },
        1);
}

void* unpad_acquire(int64_t bytes, int64_t* size) {
    char error[64];
    const unpad::Block block = guarded(
        error, sizeof(error), [&] { return unpad::acquire(static_cast<size_t>(bytes)); },
        unpad::Block{});
    *size = static_cast<int64_t>(block.size);
    return block.data;
}

void unpad_release(void* data, int64_t size) {
    unpad::release({data, static_cast<size_t>(size)});
}

int64_t unpad_trim(void) {
    return static_cast<int64_t>(unpad::trim());
}
int64_t unpad_idle_bytes(void) {
    return static_cast<int64_t>(unpad::idle_bytes());
}

void unpad_draw_mask(int64_t seed, int64_t keep, const int64_t* rows, int64_t n_rows, int64_t width,
                     int wide, int threads, void* out) {
    unpad::draw_mask({seed, keep, rows, n_rows, width}, wide != 0, threads, out);
}

double unpad_softmax_loss(const int64_t* frame, int64_t n_frame, const double* numbers,
                          int64_t n_numbers, char* error, int64_t error_size) {
    return guarded(
        error, error_size, [&] { return unpad::softmax_loss(frame, n_frame, numbers, n_numbers); },
        0.0);
}

void unpad_softmax_best(const int64_t* frame, int64_t n_frame, const double* numbers,
                        int64_t n_numbers, char* error, int64_t error_size) {
    guarded(
        error, error_size,
        [&] {
            unpad::softmax_best(frame, n_frame, numbers, n_numbers);
            return 0;
        },
        1);
}

int unpad_limit_threads(int n) {
    return unpad::limit_threads(n);
}

double unpad_machine_peak(int threads, int wide, char* error, int64_t error_size) {
    return guarded(error, error_size, [&] { return unpad::machine_peak(threads, wide != 0); }, 0.0);
}

const char* unpad_opcode(int64_t code, int* least_args, int* most_args) {
    if (code < 0 || code >= unpad::op_count) return nullptr;
    *least_args = unpad::kOps[code].least_args;
    *most_args = unpad::kOps[code].most_args;
    return unpad::kOps[code].name;
}

}  // extern "C"
