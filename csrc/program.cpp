#include "program.h"

#include <algorithm>

namespace unpad {
namespace {

constexpr int64_t kMagic = 0x756e706164;  // "unpad"
constexpr int64_t kVersion = 1;
constexpr int64_t kMostColumns = int64_t{1} << 28;

class Reader {
  public:
    Reader(const int64_t* code, int64_t size) : code_(code), size_(size) {}

    int64_t next() {
        if (at_ >= size_) throw ProgramError("program: the code array ends early");
        return code_[at_++];
    }
    int64_t next_in(int64_t low, int64_t high, const char* what) {
        const int64_t value = next();
        if (value < low || value >= high) {
            throw ProgramError(std::string("program: ") + what + " is " + std::to_string(value) +
                               "; allowed: " + std::to_string(low) + " to " +
                               std::to_string(high - 1));
        }
        return value;
    }
    // A count of things that each take at least one number of the array.
    int64_t count(const char* what) { return next_in(0, size_ - at_ + 1, what); }
    int64_t columns(const char* what) { return next_in(1, kMostColumns, what); }
    bool done() const { return at_ == size_; }

  private:
    const int64_t* code_;
    int64_t size_;
    int64_t at_ = 0;
};

class Checker {
  public:
    Checker(const Program& program, const Phase& phase, const Instruction& instruction)
        : p_(program), phase_(phase), in_(instruction) {}

    void check() const {
        const OpInfo& info = kOps[in_.op];
        const int n = static_cast<int>(in_.args.size());
        require(n >= info.least_args && n <= info.most_args, "wrong number of arguments");
        for (const Operand& arg : in_.args) operand(arg);
        const bool reduces = info.rule == Rule::Outer || info.rule == Rule::SumRows;
        require(reduces == (phase_.kind == PhaseKind::Reduce),
                "outer and sum_rows belong to a REDUCE phase, everything else outside of one");
        if (reduces) {
            for (const Operand& arg : in_.args) {
                require(kind(arg) != Kind::Scratch, "a REDUCE phase reads no SCRATCH buffer");
            }
        } else {
            operand(in_.out);
            require(kind(in_.out) != Kind::Shared && kind(in_.out) != Kind::Const &&
                        kind(in_.out) != Kind::Prev,
                    "the result goes to a STREAM, WINDOW, SCRATCH or NEXT buffer");
        }
        shapes(info.rule);
    }

  private:
    Kind kind(const Operand& o) const { return p_.buffers[o.buffer].kind; }

    void require(bool holds, const char* message) const {
        if (!holds)
            throw ProgramError(std::string("instruction ") + kOps[in_.op].name + ": " + message);
    }

    void operand(const Operand& o) const {
        require(o.offset >= 0 && o.offset + o.width <= p_.buffers[o.buffer].width,
                "operand columns lie outside of their buffer");
        if (kind(o) == Kind::Prev || kind(o) == Kind::Next) {
            require(phase_.kind == PhaseKind::Loop, "PREV and NEXT are for LOOP phases");
        }
    }

    void disjoint(const Operand& arg) const {
        require(!in_.out.overlaps(arg), "the result overlaps an argument");
    }

    int64_t dims(size_t n) const {
        require(in_.dims.size() == n, "wrong number of dims");
        int64_t product = 1;
        for (int64_t d : in_.dims) {
            require(d >= 1 && d < kMostColumns, "dims must be positive");
            product *= d;
            require(product < kMostColumns, "dims are too large");
        }
        return product;
    }

    const Matrix& matrix(const std::vector<Matrix>& all) const {
        require(in_.matrix >= 0 && in_.matrix < static_cast<int>(all.size()), "no such matrix");
        return all[in_.matrix];
    }

    void widths(int64_t out, int64_t arg) const {
        require(in_.out.width == out, "the result's width does not fit");
        require(in_.args[0].width == arg, "the argument's width does not fit");
        disjoint(in_.args[0]);
    }

    void table(int64_t size, int64_t limit) const {
        require(in_.table >= 0 && in_.table < static_cast<int>(p_.tables.size()), "no such table");
        const auto& entries = p_.tables[in_.table];
        require(static_cast<int64_t>(entries.size()) == size, "the table's length does not fit");
        for (int32_t e : entries) require(e >= 0 && e < limit, "a table entry is out of range");
    }

    void shapes(Rule rule) const {
        switch (rule) {
            case Rule::Map:
                for (const Operand& arg : in_.args) {
                    require(arg.width == in_.out.width || arg.width == 1,
                            "each argument is as wide as the result, or one column");
                    if (!in_.out.same(arg)) disjoint(arg);
                }
                break;
            case Rule::Fold:
                widths(dims(3) / in_.dims[1], dims(3));
                break;
            case Rule::AlongAxis:
                widths(dims(3), dims(3));
                break;
            case Rule::Expand:
                widths(dims(3), dims(3) / in_.dims[1]);
                break;
            case Rule::Normalize:
            case Rule::InvStd:
                widths(rule == Rule::Normalize ? dims(2) : (dims(2), in_.dims[0]), dims(2));
                require(in_.args[1].width == 1, "eps is one number");
                disjoint(in_.args[1]);
                break;
            case Rule::NormalizeGrad:
                widths(dims(2), dims(2));
                require(in_.args[1].width == dims(2),
                        "the normalized row is as wide as its gradient");
                require(in_.args[2].width == in_.dims[0], "one factor a group");
                disjoint(in_.args[1]);
                disjoint(in_.args[2]);
                if (in_.args.size() == 4) {
                    require(in_.args[3].width == dims(2), "one gain a column");
                    disjoint(in_.args[3]);
                }
                break;
            case Rule::Take:
                table(in_.out.width, in_.args[0].width);
                disjoint(in_.args[0]);
                break;
            case Rule::Scatter:
                table(in_.args[0].width, in_.out.width);
                disjoint(in_.args[0]);
                break;
            case Rule::Linear: {
                const Matrix& m = matrix(p_.matrices);
                widths(m.cols, m.rows);
                if (in_.args.size() == 2) {
                    require(in_.args[1].width == m.cols || in_.args[1].width == 1,
                            "the start value is as wide as the result, or one column");
                    if (!in_.out.same(in_.args[1])) disjoint(in_.args[1]);
                }
                break;
            }
            case Rule::Outer: {
                const Matrix& m = matrix(p_.accumulators);
                require(in_.args[0].width == m.rows && in_.args[1].width == m.cols,
                        "the accumulator's size does not fit");
                break;
            }
            case Rule::SumRows: {
                const Matrix& m = matrix(p_.accumulators);
                for (const Operand& arg : in_.args) {
                    require(m.rows == 1 && arg.width == m.cols,
                            "the accumulator's size does not fit");
                }
                break;
            }
        }
    }

    const Program& p_;
    const Phase& phase_;
    const Instruction& in_;
};

Operand read_operand(Reader& r, int64_t n_buffers) {
    Operand o{};
    o.buffer = static_cast<int>(r.next_in(0, n_buffers, "operand buffer"));
    o.offset = r.next_in(0, kMostColumns, "operand offset");
    o.width = r.columns("operand width");
    return o;
}

Instruction read_instruction(Reader& r, const Program& p) {
    const int64_t n_buffers = static_cast<int64_t>(p.buffers.size());
    Instruction in{};
    in.op = static_cast<Op>(r.next_in(0, op_count, "opcode"));
    const bool reduces = kOps[in.op].rule == Rule::Outer || kOps[in.op].rule == Rule::SumRows;
    if (reduces) {  // the result is an accumulator: the operand is not looked at
        for (int i = 0; i < 3; ++i) r.next();
    } else {
        in.out = read_operand(r, n_buffers);
    }
    const int64_t n_args = r.next_in(0, kMostArgs + 1, "number of arguments");
    for (int64_t i = 0; i < n_args; ++i) in.args.push_back(read_operand(r, n_buffers));
    const int64_t n_dims = r.next_in(0, 4, "number of dims");
    for (int64_t i = 0; i < n_dims; ++i) in.dims.push_back(r.next());
    in.matrix = static_cast<int>(r.next_in(-1, INT32_MAX, "matrix"));
    in.table = static_cast<int>(r.next_in(-1, INT32_MAX, "table"));
    return in;
}

void check_buffer(const Program& p, const Buffer& b) {
    const auto need = [](bool holds, const char* message) {
        if (!holds) throw ProgramError(std::string("buffer: ") + message);
    };
    const auto in_range = [&](size_t n) {
        return b.index >= 0 && b.index < static_cast<int64_t>(n);
    };
    switch (b.kind) {
        case Kind::Stream:
            need(in_range(static_cast<size_t>(p.n_streams)), "no such stream");
            break;
        case Kind::Shared:
            need(in_range(static_cast<size_t>(p.n_shared)), "no such shared vector");
            break;
        case Kind::Const:
            need(in_range(p.constants.size()), "no such constant");
            need(b.width == 1, "a constant is one column");
            break;
        case Kind::Prev:
        case Kind::Next:
            need(in_range(p.states.size()), "no such state");
            need(b.width == p.states[b.index].width, "the width is not the state's");
            break;
        default:
            break;
    }
}

// A state lives in the one loop that writes it: two loops would disagree about the step.
void assign_states(Program& p) {
    for (size_t k = 0; k < p.states.size(); ++k) {
        std::vector<char> written(static_cast<size_t>(p.states[k].width), 0);
        int home = -1;
        const auto visit = [&](const Operand& o, int phase) {
            const Buffer& b = p.buffers[o.buffer];
            if ((b.kind != Kind::Prev && b.kind != Kind::Next) ||
                b.index != static_cast<int64_t>(k)) {
                return false;
            }
            if (home >= 0 && home != phase) {
                throw ProgramError("state " + std::to_string(k) + ": used by more than one loop");
            }
            home = phase;
            return b.kind == Kind::Next;
        };
        for (size_t i = 0; i < p.phases.size(); ++i) {
            if (p.phases[i].kind != PhaseKind::Loop) continue;
            for (const Instruction& in : p.phases[i].instructions) {
                for (const Operand& arg : in.args) visit(arg, static_cast<int>(i));
                if (visit(in.out, static_cast<int>(i))) {
                    std::fill_n(written.begin() + in.out.offset, in.out.width, 1);
                }
            }
        }
        if (std::count(written.begin(), written.end(), 1) != p.states[k].width) {
            throw ProgramError("state " + std::to_string(k) +
                               ": no loop writes every column of NEXT");
        }
        p.phases[static_cast<size_t>(home)].states.push_back(static_cast<int>(k));
    }
}

int64_t work(const Program& p, const Instruction& in) {
    switch (kOps[in.op].rule) {
        case Rule::Linear:
            return p.matrices[in.matrix].rows * p.matrices[in.matrix].cols;
        case Rule::Outer:
            return p.accumulators[in.matrix].rows * p.accumulators[in.matrix].cols;
        case Rule::SumRows:
            return in.args[0].width;
        default:
            return 4 *
                   in.out.width;  // a rough price: an elementwise column costs a few multiply-adds
    }
}

void read_phases(Reader& r, Program& p, int64_t n_phases) {
    for (int64_t i = 0; i < n_phases; ++i) {
        Phase phase{};
        phase.kind =
            static_cast<PhaseKind>(r.next_in(0, static_cast<int>(PhaseKind::count), "phase kind"));
        const int64_t n = r.count("number of instructions");
        for (int64_t j = 0; j < n; ++j) {
            Instruction in = read_instruction(r, p);
            Checker(p, phase, in).check();
            p.work_per_token += work(p, in);
            phase.instructions.push_back(std::move(in));
        }
        p.phases.push_back(std::move(phase));
    }
}

}  // namespace

Program decode(const int64_t* code, int64_t n_code, const double* constants, int64_t n_constants) {
    Reader r(code, n_code);
    Program p;
    r.next_in(kMagic, kMagic + 1, "magic number");
    r.next_in(kVersion, kVersion + 1, "version of the encoding");
    const int64_t n_buffers = r.count("number of buffers");
    const int64_t n_phases = r.count("number of phases");
    const int64_t n_states = r.count("number of states");
    const int64_t n_matrices = r.count("number of matrices");
    const int64_t n_accumulators = r.count("number of accumulators");
    const int64_t n_tables = r.count("number of tables");
    p.n_streams = r.next_in(0, INT32_MAX, "number of streams");
    p.n_shared = r.next_in(0, INT32_MAX, "number of shared vectors");
    p.constants.assign(constants, constants + n_constants);
    for (int64_t i = 0; i < n_states; ++i) {
        State s{};
        s.width = r.columns("state width");
        s.stream = static_cast<int>(r.next_in(-1, p.n_streams, "state stream"));
        p.states.push_back(s);
    }
    for (int64_t i = 0; i < n_buffers; ++i) {
        Buffer b{};
        b.kind = static_cast<Kind>(r.next_in(0, static_cast<int>(Kind::count), "buffer kind"));
        b.width = r.columns("buffer width");
        b.index = r.next();
        check_buffer(p, b);
        p.buffers.push_back(b);
    }
    const auto read_matrices = [&](int64_t n, std::vector<Matrix>& out) {
        for (int64_t i = 0; i < n; ++i) {
            const int64_t rows = r.columns("matrix rows");
            out.push_back({rows, r.columns("matrix columns")});
        }
    };
    read_matrices(n_matrices, p.matrices);
    read_matrices(n_accumulators, p.accumulators);
    for (int64_t i = 0; i < n_tables; ++i) {
        std::vector<int32_t> table(static_cast<size_t>(r.count("table length")));
        for (int32_t& e : table)
            e = static_cast<int32_t>(r.next_in(0, kMostColumns, "table entry"));
        p.tables.push_back(std::move(table));
    }
    read_phases(r, p, n_phases);
    if (!r.done()) throw ProgramError("program: the code array has numbers left over");
    assign_states(p);
    return p;
}

}  // namespace unpad
