"""`unpad.tf1` against the numbers of TensorFlow's own recurrent functions, on both engines.

What a case of another folder asks for and is not known here fails, by name.
"""

from __future__ import annotations

import contextlib
import warnings

import pytest
import torch
from torch import nn

import unpad
from engine.every_cell import TIERS
from tf1.golden_files import Golden, cases
from unpad import tf1

ENGINES = ["torch", *(["native"] if TIERS else [])]
each_engine = pytest.mark.parametrize("engine", ENGINES)
DYNAMIC = cases("dynamic_rnn")
STATIC = cases("static_rnn")
BOTH = cases("bidirectional_dynamic_rnn")
STATIC_BOTH = cases("static_bidirectional_rnn")
STACKED = cases("bidirectional_stack")
RAW = cases("raw_rnn")
KNOWN = {"sequence_length", "sequence_length_dtype", "initial_state"}
OPTIONS = {"time_major", "scope", "swap_memory", "parallel_iterations"}


def of(found):
    return pytest.mark.parametrize("case", found, ids=[case["id"] for case in found])


class NestedCell(tf1.RNNCell):
    """The manifest's cell of a nest of inputs, a nest of outputs, a nest of states."""

    scope = "nested_cell"

    def __init__(self, n, widths):
        super().__init__()
        self.state_size, self.output_size, self.widths = (n, (1,)), (n, 1), widths
        self.wa = nn.Parameter(torch.zeros(widths[0], n))
        self.wb = nn.Parameter(torch.zeros(widths[1], n))
        self.u = nn.Parameter(torch.zeros(n, n))

    def forward(self, x, state):
        (a, b), (s, (k,)) = x, state
        s = torch.tanh(a @ self.wa + b @ self.wb + s @ self.u)
        k = k + 1
        return (s, (s * k).sum(1, keepdim=True)), (s, (k,))


def make(spec, sizes):
    args = dict(spec.get("args", {}))
    kind = spec["class"]
    if kind == "NestedCell":
        return NestedCell(args["n"], sizes["input"])
    if kind == "MultiRNNCell":
        return tf1.MultiRNNCell([make(inner, sizes) for inner in spec["cells"]], **args)
    if kind == "ResidualWrapper":
        functions = {None: None, "0.5*input + output": lambda x, output: 0.5 * x + output}
        return tf1.ResidualWrapper(make(spec["cell"], sizes), functions[args.get("residual_fn")])
    return getattr(tf1, kind)(**args)


class Port:
    """A cell of a case with the case's own weights, found by their TensorFlow names."""

    def __init__(self, golden, spec, scope, input_size=None):
        self.golden = golden
        sizes = golden.case["sizes"]
        self.cell = make(spec, sizes)
        dtype = getattr(torch, golden.case["dtype"])
        if spec["class"] == "NestedCell":
            self.cell.to(dtype)
        else:
            self.cell.build(input_size or sizes["input"], dtype=dtype)
        self.leaves = {}
        function, *below = scope.split("/")
        scope = "/".join([golden.case["call"].get("scope") or function, *below])
        for name, parameter in self.cell.variables().items():
            value = golden.arrays[f"weights/{scope}/{name}"]
            assert value.shape == parameter.shape, name
            with torch.no_grad():
                parameter.copy_(value)
            self.leaves[f"weights/{scope}/{name}"] = parameter

    def state(self, prefix, path=""):
        """The case's initial state in the cell's form; None where it has none."""
        if not self.golden.keys(prefix):
            return None
        return self._state(prefix, path, self.cell.state_size)

    def _state(self, prefix, path, size):
        if isinstance(size, tf1.LSTMStateTuple):
            return tf1.LSTMStateTuple(*(self._leaf(prefix, path, name) for name in ("c", "h")))
        if isinstance(size, tuple):
            parts = enumerate(size)
            return tuple(self._state(prefix, f"{path}.{n}".strip("."), part) for n, part in parts)
        return self._leaf(prefix, path, "")

    def _leaf(self, prefix, path, name):
        return self.golden.arrays[f"{prefix}/{f'{path}.{name}'.strip('.')}".rstrip("/")]


def by_path(prefix, value, path=""):
    """A nest's leaves by the manifest's keys."""
    if isinstance(value, torch.Tensor):
        return {f"{prefix}/{path}".rstrip("/"): value}
    if isinstance(value, tf1.LSTMStateTuple):
        parts = value._asdict().items()
    else:
        parts = value.items() if isinstance(value, dict) else enumerate(value)
    found = {}
    for name, inner in parts:
        found.update(by_path(prefix, inner, f"{path}.{name}".strip(".")))
    return found


def inputs_of(golden):
    given = golden.nest("inputs")
    return given if isinstance(given, torch.Tensor) else tuple(given.values())


def steps_of(golden):
    given = inputs_of(golden)
    if isinstance(given, torch.Tensor):
        return list(given.unbind(0))
    return list(zip(*(leaf.unbind(0) for leaf in given), strict=True))


def stack(outputs):
    """A list of steps as one tensor, or one nest."""
    if isinstance(outputs[0], torch.Tensor):
        return torch.stack(outputs)
    return tuple(stack(column) for column in zip(*outputs, strict=True))


def options(golden):
    call = golden.case["call"]
    assert call.keys() <= KNOWN | OPTIONS, call
    return {name: call[name] for name in OPTIONS & call.keys()}


@contextlib.contextmanager
def warned(golden):
    """Lengths beyond the steps, or negative ones, are told; others are not."""
    lengths = golden.case["call"]["sequence_length"] or []
    steps = golden.case["sizes"]["max_time"]
    if all(0 <= length <= steps for length in lengths):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            yield
    else:
        with pytest.warns(UserWarning, match="sequence_length"):
            yield


@each_engine
@of(DYNAMIC)
def test_dynamic_rnn(case, engine):
    golden = Golden(case)
    port = Port(golden, case["cell"], "rnn")
    with unpad.engine(engine), warned(golden):
        outputs, final = tf1.dynamic_rnn(
            port.cell,
            inputs_of(golden),
            golden.arrays.get("sequence_length"),
            port.state("initial_state"),
            **options(golden),
        )
        found = {**by_path("outputs", outputs), **by_path("final_state", final)}
        golden.check(found, port.leaves)


@each_engine
@of(STATIC)
def test_static_rnn(case, engine):
    golden = Golden(case)
    port = Port(golden, case["cell"], "rnn")
    with unpad.engine(engine), warned(golden):
        outputs, final = tf1.static_rnn(
            port.cell,
            steps_of(golden),
            port.state("initial_state"),
            sequence_length=golden.arrays.get("sequence_length"),
            **options(golden),
        )
        found = {**by_path("outputs", stack(outputs)), **by_path("final_state", final)}
        golden.check(found, port.leaves)


@each_engine
@of(BOTH)
def test_bidirectional_dynamic_rnn(case, engine):
    golden = Golden(case)
    fw = Port(golden, case["cell_fw"], "bidirectional_rnn/fw")
    bw = Port(golden, case["cell_bw"], "bidirectional_rnn/bw")
    with unpad.engine(engine):
        outputs, finals = tf1.bidirectional_dynamic_rnn(
            fw.cell,
            bw.cell,
            inputs_of(golden),
            golden.arrays.get("sequence_length"),
            fw.state("initial_state", "fw"),
            bw.state("initial_state", "bw"),
            **options(golden),
        )
        sides = {"fw": outputs[0], "bw": outputs[1]}, {"fw": finals[0], "bw": finals[1]}
        found = {**by_path("outputs", sides[0]), **by_path("final_state", sides[1])}
        golden.check(found, {**fw.leaves, **bw.leaves})


@each_engine
@of(STATIC_BOTH)
def test_static_bidirectional_rnn(case, engine):
    golden = Golden(case)
    fw = Port(golden, case["cell_fw"], "bidirectional_rnn/fw")
    bw = Port(golden, case["cell_bw"], "bidirectional_rnn/bw")
    with unpad.engine(engine):
        outputs, final_fw, final_bw = tf1.static_bidirectional_rnn(
            fw.cell,
            bw.cell,
            steps_of(golden),
            fw.state("initial_state", "fw"),
            bw.state("initial_state", "bw"),
            sequence_length=golden.arrays.get("sequence_length"),
            **options(golden),
        )
        found = by_path("final_state", {"fw": final_fw, "bw": final_bw})
        golden.check({"outputs": torch.stack(outputs), **found}, {**fw.leaves, **bw.leaves})


@each_engine
@of(STACKED)
def test_stack_bidirectional_dynamic_rnn(case, engine):
    golden = Golden(case)
    leaves, cells = {}, {"fw": [], "bw": []}
    width = case["sizes"]["input"]
    for number in range(len(case["cell_fw"])):
        for side, layers in cells.items():
            scope = f"stack_bidirectional_rnn/cell_{number}/bidirectional_rnn/{side}"
            port = Port(golden, case[f"cell_{side}"][number], scope, width)
            leaves.update(port.leaves)
            layers.append(port.cell)
        width = sum(layers[-1].output_size for layers in cells.values())
    with unpad.engine(engine):
        outputs, finals_fw, finals_bw = tf1.stack_bidirectional_dynamic_rnn(
            cells["fw"],
            cells["bw"],
            inputs_of(golden),
            sequence_length=golden.arrays.get("sequence_length"),
            **options(golden),
        )
        found = by_path("final_state", {"fw": finals_fw, "bw": finals_bw})
        golden.check({"outputs": outputs, **found}, leaves)


def copying(golden, x, lengths, start):
    """The emulation of dynamic_rnn in raw_rnn's documentation."""

    def loop(time, output, state, loop_state):
        finished = time >= lengths
        x_t = torch.zeros_like(x[:, 0]) if bool(finished.all()) else x[:, time]
        return finished, x_t, start if output is None else state, output, None

    return loop


def feeding_back(golden, x, lengths, start):
    """A decoder that gets its own output back through a projection."""
    projection = golden.arrays["weights/decoder/proj"]

    def loop(time, output, state, loop_state):
        finished = time >= lengths
        if output is None:
            counter = torch.tensor(0, dtype=torch.int32)
            return finished, x[:, 0], start, x.new_zeros(x.shape[2]), counter
        y = output @ projection
        x_t = torch.tanh(y) + x[:, min(time, x.shape[1] - 1)]
        return finished, x_t, state, y, loop_state + 1

    return loop


@of(RAW)
def test_raw_rnn(case):
    golden = Golden(case)
    port = Port(golden, case["cell"], "rnn")
    make_loop = {"The": copying, "A": feeding_back}[case["loop_fn"].split()[0]]
    lengths, start = golden.arrays["sequence_length"], port.state("initial_state")
    emitted, final, loop_state = tf1.raw_rnn(
        port.cell, make_loop(golden, golden.arrays["inputs"], lengths, start), **options(golden)
    )
    if "loop_state" in golden.arrays:
        assert int(loop_state) == int(golden.arrays["loop_state"])
    golden.check({"outputs": emitted.stack(), **by_path("final_state", final)}, port.leaves)
