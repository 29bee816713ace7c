"""When a cell is traced again, and when never."""

from __future__ import annotations

import copy
import functools
import gc
import random
import weakref
from fractions import Fraction
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import oracle
import unpad
from compiler.test_trace import Own, Sorts, assert_current, run_float32
from unpad import Cell
from unpad.compiler.build import compile_cell
from unpad.compiler.glance import Glance
from unpad.compiler.trace import Refused
from unpad.engine import choose
from unpad.nn import GRUCell, LSTMCell, Stack


class Chosen(Own):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.rates, self.options = 1.0, (0.5, 0.25), {"shift": 0.0}
        self.function, self.activation = torch.tanh, nn.Tanh()

    def forward(self, x, h):
        h = self.function(self.map(h) * self.scale + x * self.rates[0]) + self.options["shift"]
        return self.activation(h), h


def python_changes():
    def scale(cell):
        cell.scale = 2.0

    def rates(cell):
        cell.rates = (0.1, 0.25)

    def options(cell):
        cell.options["shift"] = 0.25

    def function(cell):
        cell.function = torch.sigmoid

    def anonymous(cell):
        cell.function = lambda v: torch.sin(2 * v)

    def activation(cell):
        cell.activation = nn.Sigmoid()

    def module(cell):
        cell.map = nn.Linear(3, 3).double()

    return [scale, rates, options, function, anonymous, activation, module]


@pytest.mark.parametrize("change", python_changes(), ids=lambda f: f.__name__)
def test_a_changed_python_value_or_module_is_traced_again(change) -> None:
    cell = Chosen().double()
    assert_current(cell)
    before = unpad.trace_count()
    change(cell)
    assert_current(cell)
    assert unpad.trace_count() == before + 1
    assert_current(cell)
    assert unpad.trace_count() == before + 1


def test_functions_that_follow_each_other_are_told_apart() -> None:
    """Each is gone before the next is made, so that Python gives it the same id."""
    cell = Chosen().double()
    for number in range(4):
        cell.function = None
        cell.function = eval(f"lambda v: torch.tanh(v) * {number}", {"torch": torch})
        assert_current(cell)


def test_train_and_eval_are_two_modes_each_traced_once() -> None:
    cell = unpad.nn.Zoneout(unpad.nn.LSTMCell(3, 4), 0.5)
    before = unpad.trace_count()
    for _ in range(3):
        run_float32(cell.train())
        run_float32(cell.eval())
    assert unpad.trace_count() == before + 2
    cell.rates = (1.0, 1.0)
    x, offsets, state = oracle.batch(cell, [2, 3], dtype=torch.float32)
    output, _, _ = choose.run(cell, x, offsets, state)
    oracle.assert_close(output, state[0].repeat_interleave(offsets.diff(), 0), 1e-7)


def test_a_cache_made_at_the_first_call_is_no_obstacle() -> None:
    class Caches(Own):
        cache = None

        def mapped(self, h):
            if self.cache is None:
                self.cache = torch.eye(3, dtype=h.dtype) * 2
            return self.map(h @ self.cache)

    cell = Caches().double()
    assert_current(cell)
    before = unpad.trace_count()
    assert_current(cell)
    assert unpad.trace_count() == before


def test_an_annealed_attribute_does_not_fill_the_memory() -> None:
    cell = Chosen()
    for step in range(100):
        cell.scale = 1 + step / 100
        run_float32(cell)
    assert len(choose._programs[cell]) <= choose._MOST_MODES


def test_lengths_batch_sizes_and_order_never_trace_again() -> None:
    cell = unpad.nn.LayerNormLSTMCell(3, 4)
    for needs_gradient in (True, False):
        x, offsets, state = oracle.batch(cell, [2], dtype=torch.float32)
        choose.run(cell, x.requires_grad_(needs_gradient), offsets, state)
    before = unpad.trace_count()
    for number in range(200):
        lengths = [random.randrange(6) for _ in range(random.randrange(7))]
        x, offsets, state = oracle.batch(cell, lengths, dtype=torch.float32, seed=number)
        output, _, _ = choose.run(cell, x.requires_grad_(), offsets, state, reverse=number % 2 == 0)
        output.sum().backward()
    assert unpad.trace_count() == before


def test_no_copy_of_a_cell_is_kept_alive() -> None:
    def made():
        cell = Chosen()
        cell.function = lambda v: torch.tanh(cell.activation(v))  # a cycle through the cell
        run_float32(cell)
        return weakref.ref(cell)

    gone = made()
    gc.collect()
    assert gone() is None


def test_a_trace_leaves_generator_and_parameters_as_they_were() -> None:
    cell = unpad.nn.Dropout(unpad.nn.LSTMCell(3, 4), state=0.5).double()
    x, _, state = oracle.batch(cell, [2])
    torch.manual_seed(5)
    wanted = torch.rand(3)
    torch.manual_seed(5)
    compile_cell(cell, x, state)
    assert torch.equal(torch.rand(3), wanted)
    assert all(p.grad is None for p in cell.parameters())


def test_sizes_that_are_multiples_of_any_number_of_rows_compile() -> None:
    """Rows are known by their number, so a size must not be taken for it."""

    class Wide(Cell):
        input_size, state_size = 13 * 17, 19 * 23

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(13 * 17, 29 * 31), nn.Linear(29 * 31, 19 * 23)

        def forward(self, x, h):
            h = torch.tanh(self.b(torch.relu(self.a(x))).view(-1, 19, 23).flatten(1) + h)
            return h, h

    cell = Wide().double()
    x, _, state = oracle.batch(cell, [2])
    assert compile_cell(cell, x, state).output_shape == (19 * 23,)


def test_batch_norm_by_running_statistics_mixes_no_rows() -> None:
    class Normalized(Own):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def mapped(self, h):
            return self.norm(self.map(h))

    cell = Normalized().double().eval()
    cell.norm.running_mean.normal_()
    cell.norm.running_var.uniform_(0.5, 2)
    assert_current(cell)


def test_autocast_changes_the_precision_of_products_and_no_program() -> None:
    cell = Own()
    x, offsets, state = oracle.batch(cell, [2, 3], dtype=torch.float32)
    rounded, _, _ = choose.run(cell, x, offsets, state, precision="bfloat16")
    traces = unpad.trace_count()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, _, _ = choose.run(cell, x, offsets, state)
    assert unpad.trace_count() == traces
    assert torch.equal(inside, rounded.bfloat16())


def test_refused_is_raised_by_the_compiler_itself() -> None:
    cell = Sorts().double()
    x, _, state = oracle.batch(cell, [2])
    with pytest.raises(Refused, match=r"aten\.sort.* at test_trace\.py:\d+ is not in the table"):
        compile_cell(cell, x, state)


GLOBAL_FACTOR = 1.0


class Settings:
    scale = 1.0


def test_values_from_outside_and_hooks_are_never_stale() -> None:
    class Reads(Cell):
        input_size = state_size = 3
        factor = 1.0

        def __init__(self) -> None:
            super().__init__()
            self.map, self.settings = nn.Linear(3, 3), Settings()

        def forward(self, x, h):
            h = self.map(x) * GLOBAL_FACTOR * self.factor + 0.1 * h * self.settings.scale
            return torch.tanh(h), torch.tanh(h)

    cell, rows = Reads().double(), [torch.randn(4, 3).double(), torch.randn(2, 3).double()]

    def check() -> None:
        compiled = unpad.nn.Recurrent(cell)(rows)[0]
        with unpad.engine("eager"):
            eager = unpad.nn.Recurrent(cell)(rows)[0]
        for mine, wanted in zip(compiled, eager, strict=True):
            torch.testing.assert_close(mine, wanted, rtol=0, atol=1e-12)

    check()
    globals()["GLOBAL_FACTOR"] = -2.0
    check()
    cell.settings.scale = 3.0
    check()
    Reads.factor = 5.0
    check()
    hook = cell.map.register_forward_hook(lambda module, args, output: 2 * output)
    check()
    hook.remove()
    check()


def _lstm() -> nn.Module:
    return Stack([LSTMCell(3, 4), LSTMCell(4, 4)])


@pytest.mark.parametrize(
    "change",
    [
        lambda cell: cell.eval(),
        lambda cell: setattr(cell.cells[1], "cell_clip", 0.5),
        lambda cell: setattr(cell.cells[0], "extra", 1),
        lambda cell: cell.cells.append(LSTMCell(4, 4)),
        lambda cell: cell.cells.__setitem__(0, LSTMCell(3, 4)),
        lambda cell: cell.cells[1].register_forward_hook(lambda *a: None),
        lambda cell: torch.nn.utils.parametrize.register_parametrization(
            cell.cells[0], "weight_hh", nn.Identity()
        ),
        lambda cell: setattr(cell.cells[0], "forward", lambda *a: None),
    ],
    ids=["eval", "value", "new", "more", "replaced", "hook", "parametrized", "forward"],
)
def test_a_glance_sees_every_change_that_the_mode_sees(change) -> None:
    cell = _lstm()
    glance = Glance(cell)
    assert glance.still()
    change(cell)
    assert not glance.still()


_scale = 1.0


class _Derived(LSTMCell):
    def forward(self, x, state):
        output, state = super().forward(x, state)
        return _scale * output, state


def test_a_glance_sees_what_changes_without_an_assignment_to_the_cell(monkeypatch) -> None:
    cell = nn.Sequential(LSTMCell(3, 4), _Derived(3, 4))
    cell[0].rates = [0.1]
    glance = Glance(cell)
    assert glance.still()
    cell[0].rates[0] = 0.2
    assert not glance.still()
    glance = Glance(cell)
    assert glance.still()
    monkeypatch.setitem(globals(), "_scale", 2.0)
    assert not glance.still()


def test_a_glance_is_never_sure_of_tied_weights() -> None:
    cell = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    cell[0].weight = cell[1].weight  # that they are is no part of any module's values
    assert not Glance(cell).still()


class Scaled(Cell):
    """Reads a setting, through an object, a hook or a helper, and one of two modules."""

    input_size = state_size = 3
    rates = (0.5, 0.25)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.active = self.first
        self.register_buffer("mask", None)
        self.scale: object = np.float32(0.5)
        self.options = SimpleNamespace(inner=SimpleNamespace(shift=0.1))
        self.act = functools.partial(torch.clamp, min=-0.5)

    def forward(self, x, state):
        shifted = self.active(x) * float(self.scale) + self.options.inner.shift
        h = self.act(_helped(shifted + state * self.rates[0]))
        h = h if self.mask is None else h * self.mask
        return h, h


@pytest.mark.parametrize("make", [_lstm, lambda: _Derived(3, 4), Scaled])
def test_a_glance_keeps_no_cell_alive(make) -> None:
    cell = make()
    glance, gone = Glance(cell), weakref.ref(cell)
    del cell
    gc.collect()
    assert gone() is None
    del glance


def _helped(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


def _other_helper(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x)


CHANGES = {
    "another module of its own": lambda c, m: setattr(c, "active", c.second),
    "a buffer that was None": lambda c, m: setattr(c, "mask", torch.tensor([1.0, 0.0, 2.0])),
    "a bias that was there": lambda c, m: setattr(c.first, "bias", None),
    "a number of NumPy": lambda c, m: setattr(c, "scale", np.float32(0.75)),
    "a fraction": lambda c, m: setattr(c, "scale", Fraction(1, 3)),
    "a field of a field": lambda c, m: setattr(c.options.inner, "shift", 0.7),
    "a partial": lambda c, m: setattr(c, "act", functools.partial(torch.clamp, min=-0.1)),
    "a class's tuple": lambda c, m: m.setattr(Scaled, "rates", (2.0,)),
    "a helper of the module": lambda c, m: m.setitem(globals(), "_helped", _other_helper),
    "a hook": lambda c, m: c.first.register_forward_hook(lambda _, x, y: y * 2),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("parametrized", [False, True])
def test_what_changes_after_a_run_is_seen_at_the_next(
    change: str, parametrized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Scaled()
    if parametrized:
        nn.utils.parametrize.register_parametrization(cell.second, "weight", nn.Identity())
    layer, x = unpad.nn.Recurrent(cell), torch.randn(2, 5, 3)
    before = layer(x)[0]
    CHANGES[change](cell, monkeypatch)
    with unpad.engine("eager"):
        wanted = layer(x)[0]
    assert not torch.allclose(before, wanted)
    torch.testing.assert_close(layer(x)[0], wanted)


@pytest.mark.parametrize(
    "scales", [[np.float32(i) for i in range(20)], [Fraction(i) for i in range(20)]]
)
def test_numbers_made_anew_each_time_are_told_apart(scales) -> None:
    cell = Scaled()
    layer, x = unpad.nn.Recurrent(cell), torch.randn(1, 2, 3)
    for scale in map(copy.copy, scales):
        cell.scale = scale
        with unpad.engine("eager"):
            wanted = layer(x)[0]
        torch.testing.assert_close(layer(x)[0], wanted)


@pytest.mark.parametrize("name", ["weight_hh", "bias_hh"])
def test_weights_that_are_no_longer_tied_are_read_each(name: str) -> None:
    layer, x = unpad.nn.Recurrent(GRUCell(3, 3)), torch.randn(2, 4, 3)
    setattr(layer.cells[0], name, getattr(layer.cells[0], name.replace("hh", "ih")))
    layer(x)
    old = getattr(layer.cells[0], name)
    setattr(layer.cells[0], name, nn.Parameter(torch.randn_like(old)))
    with unpad.engine("eager"):
        wanted = layer(x)[0]
    torch.testing.assert_close(layer(x)[0], wanted)


class Config:
    scale = 1.0


SETTINGS = ModuleType("settings")
SETTINGS.scale = 1.0
GAIN = 1.0


class Reads(Cell):
    """Reads a number from wherever a forward can."""

    input_size = state_size = 3

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(3, 3)
        self.hidden = [nn.LeakyReLU(0.1), nn.Linear(3, 3)]

    def forward(self, x, state, factors={"by": 1.0}):  # noqa: B006 - what a user may write
        h = self.hidden[1](self.hidden[0](self.map(x) + state)) * Config.scale * SETTINGS.scale
        h = h * (lambda: GAIN)() * factors["by"] + self.offset()
        return torch.tanh(h), torch.tanh(sum([h * GAIN for _ in range(2)]))

    def offset(self) -> float:
        return GAIN


class Inherits(Reads):
    def forward(self, x, state):
        return super().forward(x, state)


PLACES = {
    "a class": lambda c, m: m.setattr(Config, "scale", 3.0),
    "a module": lambda c, m: m.setattr(SETTINGS, "scale", 0.3),
    "a global": lambda c, m: m.setitem(globals(), "GAIN", 0.2),
    "a default": lambda c, m: m.setitem(Reads.forward.__defaults__[0], "by", -1.0),
    "a module in a list": lambda c, m: setattr(c.hidden[0], "negative_slope", 0.9),
    "its weight": lambda c, m: setattr(c.hidden[1], "weight", nn.Parameter(torch.ones(3, 3))),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("kind", [Reads, Inherits])
def test_what_a_forward_reads_is_seen_wherever_it_stands(
    kind: type[Reads], place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = kind()
    layer, x = unpad.nn.Recurrent(cell), torch.randn(2, 5, 3)
    before, traces = layer(x)[0], unpad.trace_count()
    layer(x)
    assert unpad.trace_count() == traces  # nothing has changed
    PLACES[place](cell, monkeypatch)
    with unpad.engine("eager"):
        wanted = layer(x)[0]
    assert not torch.allclose(before, wanted)
    torch.testing.assert_close(layer(x)[0], wanted)


def test_a_hook_of_every_module_is_seen() -> None:
    layer, x = unpad.nn.Recurrent(LSTMCell(3, 3)), torch.randn(2, 4, 3)
    layer(x)
    hook = nn.modules.module.register_module_forward_hook(
        lambda module, _, y: (y[0] * 2, y[1]) if isinstance(module, LSTMCell) else None
    )
    try:
        with unpad.engine("eager"):
            wanted = layer(x)[0]
        torch.testing.assert_close(layer(x)[0], wanted)
    finally:
        hook.remove()


def test_a_global_that_is_called_as_an_attribute_is_another_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scripts have globals such as `scale` or `map`, and change them at every step."""
    cell = Chosen().double()
    assert_current(cell)
    traces = unpad.trace_count()
    for number in range(3):
        monkeypatch.setitem(globals(), "scale", number)
        monkeypatch.setitem(globals(), "function", number)
        assert_current(cell)
    assert unpad.trace_count() == traces
