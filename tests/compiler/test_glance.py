"""What a user's cell reads from its classes, globals, helpers and closures is seen when it changes,
at a glance where nothing can change inside of an object.
"""

from __future__ import annotations

import gc
import weakref
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

import unpad
from unpad import Cell
from unpad.compiler.glance import Glance


class Config:
    scale = 1.0


SETTINGS = ModuleType("settings")
SETTINGS.scale = 1.0
GAIN = 1.0


def _helped(x: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x)


def _shifted(x, by=0.0):
    return x + by


class Plain(Cell):
    """Reads nothing that can change inside of an object: a glance needs no more than identities."""

    input_size = state_size = 3
    gain = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(3, 3)

    def forward(self, x, state, factor=1.0):
        h = _shifted(self.map(x) + state) * Config.scale * SETTINGS.scale * self.gain * factor
        return torch.tanh(h * GAIN), torch.tanh(sum([h * self.half() for _ in range(2)]))

    def half(self):
        return 0.5


def _other_forward(self, x, state, factor=1.0):
    return torch.relu(self.map(x)), state


SEEN = {
    "a class's number": lambda c, m: m.setattr(Plain, "gain", 0.5),
    "its own number": lambda c, m: setattr(c, "gain", 0.5),
    "another class's": lambda c, m: m.setattr(Config, "scale", 3.0),
    "a module's": lambda c, m: m.setattr(SETTINGS, "scale", 0.3),
    "a global": lambda c, m: m.setitem(globals(), "GAIN", 0.2),
    "a helper": lambda c, m: m.setitem(globals(), "_shifted", _helped),
    "a helper's default": lambda c, m: m.setattr(_shifted, "__defaults__", (0.7,)),
    "a helper's code": lambda c, m: m.setattr(_shifted, "__code__", _scaled_up.__code__),
    "a method": lambda c, m: m.setattr(Plain, "half", lambda self: 0.1),
    "a default": lambda c, m: m.setattr(Plain.forward, "__defaults__", (0.1,)),
    "forward itself": lambda c, m: m.setattr(Plain, "forward", _other_forward),
}


def _scaled_up(x, by=0.0):
    return x * 3


@pytest.mark.parametrize("place", SEEN)
def test_a_glance_at_a_users_plain_cell_sees_what_changes(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Plain()
    glance = Glance(cell)
    assert glance.still()
    assert not glance._others  # nothing is read anew
    layer, x = unpad.nn.Recurrent(cell), torch.randn(2, 5, 3)
    before = layer(x)[0]
    SEEN[place](cell, monkeypatch)
    assert not glance.still()
    with unpad.engine("eager"):
        wanted = layer(x)[0]
    assert not torch.allclose(before, wanted)
    torch.testing.assert_close(layer(x)[0], wanted)


class Holder:
    inner = SimpleNamespace(scale=1.0)
    act = torch.tanh


GATES = {0: [torch.tensor(1.0)]}
AMOUNT = torch.tensor(1.0)


class Elaborate(Cell):
    """Reads what a class may hold beside numbers and methods."""

    input_size = state_size = 3
    gain = torch.tensor(1.0)
    act = torch.tanh
    options = SimpleNamespace(scale=1.0)
    weights = frozenset({1.0})

    @staticmethod
    def scaled(x):
        return x * GAIN

    @property
    def doubled(self) -> float:
        return 2 * GAIN

    def shifted(self, x):
        return x + AMOUNT

    def forward(self, x, state, start=torch.tensor(0.5)):  # noqa: B008 - what a user may write
        h = self.act(x + state + start) * self.gain * self.options.scale * sum(self.weights)
        h = self.scaled(Holder.act(h)) * self.doubled * Holder.inner.scale * GATES[0][0]
        h = self.shifted(h) * (3 if hasattr(self, "extra") else 1)
        return h, h


ELABORATE = {
    "a class's tensor": lambda c, m: m.setattr(Elaborate, "gain", torch.tensor(2.0)),
    "a class's function of torch": lambda c, m: m.setattr(Elaborate, "act", torch.relu),
    "a field of a class's object": lambda c, m: m.setattr(Elaborate.options, "scale", 0.3),
    "a class's set": lambda c, m: m.setattr(Elaborate, "weights", frozenset({0.2, 0.5})),
    "a static method": lambda c, m: m.setattr(Elaborate, "scaled", staticmethod(lambda x: -x)),
    "a global of a static method": lambda c, m: m.setitem(globals(), "GAIN", 0.2),
    "a property": lambda c, m: m.setattr(Elaborate, "doubled", property(lambda self: 0.1)),
    "a tensor that a method reads": lambda c, m: m.setitem(globals(), "AMOUNT", torch.tensor(5.0)),
    "a tensor in a list": lambda c, m: m.setitem(GATES, 0, [torch.tensor(4.0)]),
    "a tensor as a default": lambda c, m: m.setattr(
        Elaborate.forward, "__defaults__", (torch.tensor(-1.0),)
    ),
    "another class's function": lambda c, m: m.setattr(Holder, "act", torch.sigmoid),
    "a field of another class's": lambda c, m: m.setattr(Holder.inner, "scale", 0.3),
    "a new tensor": lambda c, m: setattr(c, "extra", torch.ones(1)),
    "a new buffer": lambda c, m: c.register_buffer("extra", torch.ones(1)),
    "a new parameter": lambda c, m: setattr(c, "extra", nn.Parameter(torch.ones(1))),
}


@pytest.mark.parametrize("place", ELABORATE)
def test_what_a_class_holds_is_seen_when_it_changes(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Elaborate()
    layer, x = unpad.nn.Recurrent(cell), torch.randn(2, 5, 3)
    before, traces = layer(x)[0], unpad.trace_count()
    layer(x)
    assert unpad.trace_count() == traces
    ELABORATE[place](cell, monkeypatch)
    with unpad.engine("eager"):
        wanted = layer(x)[0]
    assert not torch.allclose(before, wanted)
    torch.testing.assert_close(layer(x)[0], wanted)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_glance_sees_what_forward_or_a_helper_closes_over(depth: int) -> None:
    """forward reads the variable itself, by a helper, or by a helper's helper."""
    scale = 1.0

    def inner(x):
        return x * scale

    def outer(x):
        return inner(x)

    class Closes(Plain):
        def forward(self, x, state):
            return torch.tanh(self.map(x) * scale), state

    class Helped(Plain):
        def forward(self, x, state):
            return torch.tanh(helper(self.map(x))), state

    helper = outer if depth == 2 else inner
    cell = Helped() if depth else Closes()
    glance = Glance(cell)
    assert glance.still()
    assert not glance._others
    scale = 2.0
    assert not glance.still()


def test_a_glance_tells_names_and_kinds_of_attributes_apart() -> None:
    cell = Plain()
    cell.flag = torch.ones(3)  # read anew, but that it is a tensor
    cell.before = True
    glance = Glance(cell)
    cell.flag = torch.zeros(3)
    assert glance.still()
    cell.flag = None
    assert not glance.still()
    cell.flag = torch.zeros(3)
    assert glance.still()
    del cell.before
    cell.after = True
    assert not glance.still()
    glance = Glance(cell.map)
    bias = cell.map.bias
    del cell.map.bias
    cell.map.shift = bias
    assert not glance.still()


def test_a_glance_keeps_neither_a_replaced_tensor_nor_a_cell_that_a_hook_leads_to() -> None:
    cell = Plain()
    cell.flag = torch.ones(3)

    def hook(grad, owner=cell):
        return grad * len(list(owner.parameters()))

    cell.map.weight.register_hook(hook)
    del hook
    glance, gone, old = Glance(cell), weakref.ref(cell), weakref.ref(cell.flag)
    cell.flag = torch.zeros(3)
    assert old() is None
    del cell
    gc.collect()
    assert gone() is None
    assert not glance.still()


def test_a_variable_that_holds_nothing_yet_is_no_error() -> None:
    def make():
        class Closes(Plain):
            def forward(self, x, state):
                return torch.tanh(self.map(x)) if x is not None else later, state

        cell = Closes()
        output = unpad.nn.Recurrent(cell)(torch.randn(1, 2, 3))[0]
        later = None
        return output, later

    assert make()[0].shape == (1, 2, 3)


def test_a_glance_at_a_plain_cell_does_not_keep_it_alive() -> None:
    cell = Plain()
    glance, gone = Glance(cell), weakref.ref(cell)
    del cell
    gc.collect()
    assert gone() is None
    assert not glance.still()
