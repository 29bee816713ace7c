// Python's view of engine.h. The only file that knows nanobind.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine.h"

namespace nb = nanobind;

namespace {

using Integers = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Array = nb::ndarray<nb::c_contig, nb::device::cpu>;
using Numbers = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

struct Message {
    char text[512] = "";
    // ValueError (nanobind's translation of invalid_argument), MemoryError.
    void raise() const {
        if (text[0] == '\0') return;
        if (std::string(text) == "out of memory") throw std::bad_alloc();
        throw std::invalid_argument(text);
    }
};

class Program {
  public:
    Program(const Integers& code, const Numbers& constants) {
        Message message;
        program_ = unpad_program_create(code.data(), static_cast<int64_t>(code.size()),
                                        constants.data(), static_cast<int64_t>(constants.size()),
                                        message.text, sizeof(message.text));
        message.raise();
    }
    ~Program() { unpad_program_destroy(program_); }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    void run(const std::vector<int64_t>& frame) const {
        Message message;
        {
            const nb::gil_scoped_release release;
            unpad_run(program_, frame.data(), static_cast<int64_t>(frame.size()), message.text,
                      sizeof(message.text));
        }
        message.raise();
    }

    const unpad_program* get() const { return program_; }

  private:
    unpad_program* program_ = nullptr;
};

// Memory by its address, which Python vouches for.
char* at(int64_t address) {
    return reinterpret_cast<char*>(static_cast<intptr_t>(address));
}

// Passes over one token that follow each other, such as a layer's on a layer's: one call from
// Python. States: (address before the step, address after it, bytes). Holds the GIL, so that two
// threads cannot step at once.
class Stepper {
  public:
    Stepper(const std::vector<const Program*>& programs,
            const std::vector<std::vector<int64_t>>& frames,
            const std::vector<std::vector<int64_t>>& states, const std::vector<int64_t>& input,
            const std::vector<int64_t>& output)
        : input_{input.at(0), input.at(1)}, output_{output.at(0), output.at(1)} {
        for (const std::vector<int64_t>& s : states) states_.push_back({s.at(0), s.at(1), s.at(2)});
        for (size_t i = 0; i < programs.size(); ++i) {
            Message message;
            const std::vector<int64_t>& frame = frames.at(i);
            steppers_.push_back(unpad_stepper_create(programs[i]->get(), frame.data(),
                                                     static_cast<int64_t>(frame.size()),
                                                     message.text, sizeof(message.text)));
            if (steppers_.back() == nullptr) {
                clear();
                message.raise();
            }
        }
    }
    ~Stepper() { clear(); }
    Stepper(const Stepper&) = delete;
    Stepper& operator=(const Stepper&) = delete;

    void pack() {
        for (unpad_stepper* s : steppers_) unpad_stepper_pack(s);
    }
    // The states go on from step to step.
    void step(int64_t input, int64_t output) {
        run(input, output);
        for (const State& s : states_) {
            std::memcpy(at(s.before), at(s.after), static_cast<size_t>(s.bytes));
        }
    }
    // From given states to new ones; those that go on are left alone.
    void step_from(int64_t input, int64_t output, const std::vector<int64_t>& from,
                   const std::vector<int64_t>& to) {
        kept_.clear();
        for (size_t i = 0; i < states_.size(); ++i) {
            const State& s = states_[i];
            const size_t bytes = static_cast<size_t>(s.bytes);
            kept_.insert(kept_.end(), at(s.before), at(s.before) + bytes);
            std::memcpy(at(s.before), at(from.at(i)), bytes);
        }
        run(input, output);
        const char* kept = kept_.data();
        for (size_t i = 0; i < states_.size(); ++i) {
            const State& s = states_[i];
            const size_t bytes = static_cast<size_t>(s.bytes);
            std::memcpy(at(to.at(i)), at(s.after), bytes);
            std::memcpy(at(s.before), kept, bytes);
            kept += bytes;
        }
    }

    // The same with arrays, whose addresses are dearer to ask for in Python.
    void step_arrays(const Array& input, const Array& output) {
        step(address_of(input), address_of(output));
    }
    void step_from_arrays(const Array& input, const Array& output, const std::vector<Array>& from,
                          const std::vector<Array>& to) {
        std::vector<int64_t> before, after;
        for (const Array& a : from) before.push_back(address_of(a));
        for (const Array& a : to) after.push_back(address_of(a));
        step_from(address_of(input), address_of(output), before, after);
    }

  private:
    static int64_t address_of(const Array& a) {
        return static_cast<int64_t>(reinterpret_cast<intptr_t>(a.data()));
    }
    struct Memory {
        int64_t address, bytes;
    };
    struct State {
        int64_t before, after, bytes;
    };

    void run(int64_t input, int64_t output) {
        std::memcpy(at(input_.address), at(input), static_cast<size_t>(input_.bytes));
        for (unpad_stepper* s : steppers_) unpad_stepper_step(s);
        std::memcpy(at(output), at(output_.address), static_cast<size_t>(output_.bytes));
    }
    void clear() {
        for (unpad_stepper* s : steppers_) unpad_stepper_destroy(s);
        steppers_.clear();
    }

    Memory input_, output_;
    std::vector<State> states_;
    std::vector<char> kept_;
    std::vector<unpad_stepper*> steppers_;
};

std::vector<std::string> words(const std::string& text) {
    std::vector<std::string> out;
    size_t at = 0;
    while (at < text.size()) {
        const size_t end = std::min(text.find(' ', at), text.size());
        out.push_back(text.substr(at, end - at));
        at = end + 1;
    }
    return out;
}

nb::dict opcodes() {
    nb::dict table;
    int least = 0, most = 0;
    for (int64_t code = 0; const char* name = unpad_opcode(code, &least, &most); ++code) {
        table[name] = nb::make_tuple(code, most);
    }
    return table;
}

struct Owned {
    void* data;
    int64_t size;
};

// A DLPack capsule of [rows, cols] over memory of the pool, which gets it back when the last view
// of what is made of it dies.
nb::object empty(size_t rows, size_t cols, bool wide) {
    const size_t bytes = rows * cols * (wide ? 8 : 4);
    auto* owned = new Owned{nullptr, 0};
    owned->data = unpad_acquire(static_cast<int64_t>(bytes), &owned->size);
    if (owned->data == nullptr) {
        delete owned;
        throw std::bad_alloc();
    }
    const nb::capsule owner(owned, [](void* p) noexcept {
        auto* o = static_cast<Owned*>(p);
        unpad_release(o->data, o->size);
        delete o;
    });
    const size_t shape[2] = {rows, cols};
    const nb::ndarray<> memory(owned->data, 2, shape, owner, nullptr,
                               wide ? nb::dtype<double>() : nb::dtype<float>());
    return nb::cast(memory, nb::rv_policy::reference);
}

}  // namespace

NB_MODULE(_native, m) {
    // Compiled programs live as long as the process: that is a cache, not a leak.
    nb::set_leak_warnings(false);
    m.doc() = "Unpad's native engine (see csrc/engine.h). Use unpad.engine.native_engine.";
    nb::class_<Program>(m, "Program")
        .def(nb::init<Integers, Numbers>(), nb::arg("code"), nb::arg("constants"))
        .def("run", &Program::run, nb::arg("frame"));
    nb::class_<Stepper>(m, "Stepper")
        .def(nb::init<const std::vector<const Program*>&, const std::vector<std::vector<int64_t>>&,
                      const std::vector<std::vector<int64_t>>&, const std::vector<int64_t>&,
                      const std::vector<int64_t>&>(),
             nb::arg("programs"), nb::arg("frames"), nb::arg("states"), nb::arg("input"),
             nb::arg("output"))
        .def("pack", &Stepper::pack)
        .def("step", &Stepper::step, nb::arg("input"), nb::arg("output"))
        .def("step_arrays", &Stepper::step_arrays, nb::arg("input"), nb::arg("output"))
        .def("step_from_arrays", &Stepper::step_from_arrays, nb::arg("input"), nb::arg("output"),
             nb::arg("from_"), nb::arg("to"))
        .def("step_from", &Stepper::step_from, nb::arg("input"), nb::arg("output"),
             nb::arg("from_"), nb::arg("to"));
    m.def("empty", &empty, nb::arg("rows"), nb::arg("cols"), nb::arg("wide"));
    m.def("opcodes", &opcodes, "name -> (code, most arguments)");
    m.def("tiers", [] { return words(unpad_built_tiers()); });
    m.def("supported_tiers", [] { return words(unpad_supported_tiers()); });
    m.def("tier", [] {
        Message message;
        const char* name = unpad_active_tier(message.text, sizeof(message.text));
        message.raise();
        return std::string(name);
    });
    m.def(
        "select_tier",
        [](const std::string& name) {
            Message message;
            unpad_select_tier(name.c_str(), message.text, sizeof(message.text));
            message.raise();
        },
        nb::arg("name"));
    m.def(
        "machine_peak",
        [](int threads, bool wide) {
            Message message;
            const double peak =
                unpad_machine_peak(threads, wide, message.text, sizeof(message.text));
            message.raise();
            return peak;
        },
        nb::arg("threads"), nb::arg("wide"));
    m.def(
        "draw_mask",
        [](int64_t seed, int64_t keep, const Integers& rows, int64_t width, bool wide, int threads,
           int64_t out) {
            const nb::gil_scoped_release release;
            unpad_draw_mask(seed, keep, rows.data(), static_cast<int64_t>(rows.size()), width, wide,
                            threads, at(out));
        },
        nb::arg("seed"), nb::arg("keep"), nb::arg("rows"), nb::arg("width"), nb::arg("wide"),
        nb::arg("threads"), nb::arg("out"));
    m.def(
        "softmax_loss",
        [](const std::vector<int64_t>& frame, const std::vector<double>& numbers) {
            Message message;
            double loss = 0;
            {
                const nb::gil_scoped_release release;
                loss = unpad_softmax_loss(frame.data(), static_cast<int64_t>(frame.size()),
                                          numbers.data(), static_cast<int64_t>(numbers.size()),
                                          message.text, sizeof(message.text));
            }
            message.raise();
            return loss;
        },
        nb::arg("frame"), nb::arg("numbers"));
    m.def(
        "softmax_best",
        [](const std::vector<int64_t>& frame, const std::vector<double>& numbers) {
            Message message;
            {
                const nb::gil_scoped_release release;
                unpad_softmax_best(frame.data(), static_cast<int64_t>(frame.size()), numbers.data(),
                                   static_cast<int64_t>(numbers.size()), message.text,
                                   sizeof(message.text));
            }
            message.raise();
        },
        nb::arg("frame"), nb::arg("numbers"));
    m.def("limit_threads", &unpad_limit_threads, nb::arg("n"));
    m.def("trim", &unpad_trim);
    m.def("idle_bytes", &unpad_idle_bytes);
}
