// Python's view of engine.h. The only file that knows nanobind.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine.h"

namespace nb = nanobind;

namespace {

using Integers = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
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

  private:
    unpad_program* program_ = nullptr;
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

// A tensor [rows, cols] over memory of the pool, which gets it back when the last view dies.
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
    const nb::ndarray<nb::pytorch> tensor(owned->data, 2, shape, owner, nullptr,
                                          wide ? nb::dtype<double>() : nb::dtype<float>());
    return nb::cast(tensor, nb::rv_policy::reference);
}

}  // namespace

NB_MODULE(_native, m) {
    // Compiled programs live as long as the process: that is a cache, not a leak.
    nb::set_leak_warnings(false);
    m.doc() = "Unpad's native engine (see csrc/engine.h). Use unpad.engine.native_engine.";
    nb::class_<Program>(m, "Program")
        .def(nb::init<Integers, Numbers>(), nb::arg("code"), nb::arg("constants"))
        .def("run", &Program::run, nb::arg("frame"));
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
    m.def("trim", &unpad_trim);
    m.def("idle_bytes", &unpad_idle_bytes);
}
