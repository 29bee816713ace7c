"""What a trace sees, what it refuses and how it says so, and when it is made again."""

from __future__ import annotations

import copy
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import oracle
import unpad
from unpad import Cell, UncompiledCellWarning
from unpad.engine import choose, eager


class Own(Cell):
    """A plain cell to derive from: h' = tanh(W h + x)."""

    input_size = state_size = 3

    def __init__(self) -> None:
        super().__init__()
        self.map = nn.Linear(3, 3)

    def mapped(self, h):
        return self.map(h)

    def forward(self, x, h):
        h = torch.tanh(self.mapped(h) + x)
        return h, h


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, grad):
        return grad


class ReadsAValue(Own):
    """item() of a token steers the step."""

    says = ("_local_scalar_dense", "reads a tensor's value")

    def forward(self, x, h):
        h = torch.tanh(self.map(h) * x.sum().item())
        return h, h


class Branches(Own):
    """A value steers Python's if."""

    says = ("is_nonzero|_local_scalar_dense", "reads a tensor's value")

    def forward(self, x, h):
        h = torch.tanh(self.map(h)) if x.sum() > 0 else h + x
        return h, h


class ReadsNumPy(Own):
    says = ("numpy", "reads a tensor's value")

    def forward(self, x, h):
        h = torch.tanh(self.map(h) * float(np.abs(x.detach().numpy()).max()))
        return h, h


class ReadsAList(Own):
    says = ("tolist", "reads a tensor's value")

    def forward(self, x, h):
        h = torch.tanh(self.map(h) * sum(x.detach().flatten().tolist()))
        return h, h


class Counts(Own):
    """A buffer counts steps in place."""

    says = ("aten.add_", "in-place change of a tensor from outside")

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x, h):
        self.steps += 1
        return super().forward(x, h)


class WritesIntoView(Own):
    says = ("aten", "in-place change of a tensor that shares memory")

    def forward(self, x, h):
        new = self.map(h) + x
        new[:, 0] = 0.5 * x[:, 1]
        h = torch.tanh(new)
        return h, h


class CustomOfInput(Own):
    """A function with a backward of its own, on nothing that requires a gradient."""

    says = ("StraightThrough", "autograd.Function")

    def forward(self, x, h):
        h = torch.tanh(self.map(h) + StraightThrough.apply(x))
        return h, h


class CustomOfState(Own):
    says = ("StraightThrough", "autograd.Function")

    def forward(self, x, h):
        h = torch.tanh(x + StraightThrough.apply(self.map(h)))
        return h, h


class MeanOfBatch(Own):
    says = ("aten.mean", "mixes rows")

    def forward(self, x, h):
        h = torch.tanh(self.map(h) + x - x.mean(0))
        return h, h


class Normalizes(Own):
    says = ("batch_norm", "mixes rows")

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3, track_running_stats=False)

    def forward(self, x, h):
        h = torch.tanh(self.norm(self.map(h) + x))
        return h, h


class NormalizesAndCounts(Normalizes):
    """Its statistics are kept as well: a buffer counts the calls before anything is mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)


class CentersByTheBatch(MeanOfBatch):
    """The same by hand: means of the batch, and a buffer that follows them."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x, h):
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return super().forward(x, h)


class Flips(Own):
    says = ("aten.flip", "mixes rows")

    def forward(self, x, h):
        return super().forward(x, h.flip(0, 1))


class Rolls(Own):
    says = ("aten.roll", "mixes rows")

    def forward(self, x, h):
        return super().forward(x, h.roll(1, 0))


class RollsAll(Own):
    says = ("aten.roll", "mixes rows")

    def forward(self, x, h):
        return super().forward(x, h.roll(1))


class DividesByRows(Own):
    says = ("", "depends on the number of rows")

    def forward(self, x, h):
        h = torch.tanh(self.map(h) + x / x.shape[0])
        return h, h


class AnotherWayForOneRow(Own):
    says = ("", "depends on the number of rows")

    def forward(self, x, h):
        if x.shape[0] == 1:
            h = h + 1
        return super().forward(x, h)


class AnotherOperationForFewRows(Own):
    says = ("", "depends on the number of rows")

    def forward(self, x, h):
        h = torch.tanh(h) if x.shape[0] < 3 else h
        return super().forward(x, h)


class AnotherWayForMany(Own):
    says = ("", "depends on the number of rows")

    def forward(self, x, h):
        return super().forward(x, h * 0 if x.shape[0] > 50 else h)


class Sorts(Own):
    """An operation that is not in the table."""

    says = ("aten.sort", "not in the table of operations")

    def forward(self, x, h):
        h = torch.tanh(self.map(h) + x.sort(dim=1).values)
        return h, h


class InDouble(Own):
    """Another dtype on the way."""

    says = ("float64", "one dtype")

    def forward(self, x, h):
        h = torch.tanh((self.map(h).double() + x).float())
        return h, h


class KeepsTheState(Own):
    """An attribute that would be set at no step."""

    says = ("`last`", "keeps a value of the row")

    def forward(self, x, h):
        self.last = torch.tanh(self.map(h) + x)
        return self.last, self.last


class CountsInPython(Own):
    says = ("calls", "changes the cell's own attributes")
    calls = 0

    def forward(self, x, h):
        self.calls += 1
        return super().forward(x, h)


REFUSED = [
    ReadsAValue, Branches, ReadsNumPy, ReadsAList, Counts, WritesIntoView, CustomOfInput,
    CustomOfState, DividesByRows, Sorts, InDouble, KeepsTheState,
    CountsInPython, AnotherWayForOneRow, AnotherOperationForFewRows, AnotherWayForMany,
]  # fmt: skip
BY_NUMBER = (DividesByRows, AnotherWayForOneRow, AnotherOperationForFewRows, AnotherWayForMany)
ROW_BY_ROW = [cell for cell in REFUSED if cell not in (Branches, *BY_NUMBER)]


def run_float32(cell: nn.Module, lengths=(2, 2)):
    x, offsets, state = oracle.batch(cell, list(lengths), dtype=torch.float32)
    return choose.run(cell, x, offsets, state)


@pytest.fixture(autouse=True)
def warn_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each warning comes once a process: forget those of other tests."""
    monkeypatch.setattr(choose, "_warned", set())


@pytest.mark.parametrize("make", REFUSED, ids=lambda c: c.__name__)
def test_a_refusal_is_one_warning_that_names_operation_and_line(make) -> None:
    cell = make()
    operation, reason = make.says
    with pytest.warns(UncompiledCellWarning, match=make.__name__) as caught:
        run_float32(cell)
    assert len(caught) == 1
    message = str(caught[0].message)
    assert any(name in message for name in operation.split("|")), message
    assert reason in message
    if operation.startswith(("aten", "_", "is_", "numpy", "tolist")):
        assert "test_trace.py:" in message
    run_float32(cell)  # warned once; another warning would be an error here
    assert unpad.explain(cell).engine == "eager"


@pytest.mark.parametrize("make", [Sorts, Counts], ids=lambda c: c.__name__)
def test_the_warning_can_be_made_an_error(make) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UncompiledCellWarning)
        with pytest.raises(UncompiledCellWarning, match=r"test_trace\.py"):
            run_float32(make())


@pytest.mark.filterwarnings("ignore::unpad.UncompiledCellWarning")
@pytest.mark.parametrize("make", ROW_BY_ROW, ids=lambda c: c.__name__)
def test_a_refused_cell_is_right_with_all_its_gradients(make) -> None:
    cell = make()
    if make is ReadsAValue or make is ReadsNumPy or make is ReadsAList:
        lengths = [4]  # what it reads from a row is its own only where it is alone
    else:
        lengths = [2, 0, 3, 1]
    if make is not InDouble:
        cell = cell.double()
    dtype = torch.float32 if make is InDouble else torch.float64
    x, offsets, state = oracle.batch(cell, lengths, dtype=dtype)
    twin = copy.deepcopy(cell)
    actual = oracle.outcome(choose.run, cell, x, offsets, state)
    wanted = oracle.outcome(oracle.loop, twin, x, offsets, state)
    oracle.assert_same(actual, wanted, 1e-5 if make is InDouble else 1e-10)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda x, h: x, "pair"),
        (lambda x, h: (x, (h, h)), "new state"),
        (lambda x, h: (x, h[:, :2]), "new state"),
        (lambda x, h: (x.sum(), h), "output"),
        (lambda x, h: (x[:1], h), "output"),
    ],
)
@pytest.mark.filterwarnings("ignore::unpad.UncompiledCellWarning")
def test_results_of_the_wrong_form_are_refused_in_words(wrong, says: str) -> None:
    class Wrong(Own):
        def forward(self, x, h):
            return wrong(x, h)

    with pytest.raises((unpad.ArgumentError, unpad.ArgumentTypeError), match=says):
        run_float32(Wrong())


@pytest.mark.filterwarnings("ignore::unpad.UncompiledCellWarning")
def test_an_exception_of_the_cell_comes_out_as_it_is() -> None:
    class Broken(Own):
        def forward(self, x, h):
            raise KeyError("of the user")

    with pytest.raises(KeyError, match="of the user"):
        run_float32(Broken())


# -- what is read anew at every run ----------------------------------------------------------------


def assert_current(cell: nn.Module) -> None:
    """Like the eager loop now, in results and gradients, and compiled."""
    x, offsets, state = oracle.batch(cell, [2, 0, 3], dtype=torch.float64)
    actual = oracle.outcome(choose.run, cell, x, offsets, state)
    oracle.assert_same(actual, oracle.outcome(eager.run, cell, x, offsets, state), 1e-10)
    assert unpad.explain(cell, dtype=torch.float64).engine in ("native", "torch")


class Holds(Own):
    """Tensors in every kind of place."""

    def __init__(self) -> None:
        super().__init__()
        self.plain = torch.randn(3, dtype=torch.float64)
        self.register_buffer("buffer", torch.randn(3))
        self.listed = [torch.randn(3, dtype=torch.float64), torch.randn(3, dtype=torch.float64)]
        self.named = {"deep": (torch.randn(3, dtype=torch.float64),)}
        self.parameters_of_its_own = nn.ParameterList([nn.Parameter(torch.randn(3))])

    def mapped(self, h):
        held = self.plain * self.buffer + self.listed[1] * self.named["deep"][0]
        return self.map(h) * held + self.parameters_of_its_own[0]


def changes():
    def random_vector():
        return torch.randn(3, dtype=torch.float64)

    def plain(cell):
        cell.plain = random_vector()

    def buffer(cell):
        cell.buffer = random_vector()

    def in_list(cell):
        cell.listed[1] = random_vector()

    def in_dict(cell):
        cell.named["deep"] = (random_vector(),)

    def parameter(cell):
        cell.map.weight = nn.Parameter(torch.randn(3, 3, dtype=torch.float64))

    def in_place(cell):
        with torch.no_grad():
            cell.map.weight.mul_(2)
            cell.plain.add_(1)

    def loaded(cell):
        cell.load_state_dict(Holds().double().state_dict())

    def listed_parameter(cell):
        cell.parameters_of_its_own[0] = nn.Parameter(random_vector())

    return [plain, buffer, in_list, in_dict, parameter, in_place, loaded, listed_parameter]


@pytest.mark.parametrize("change", changes(), ids=lambda f: f.__name__)
def test_a_new_tensor_is_seen_without_another_trace(change) -> None:
    cell = Holds().double()
    assert_current(cell)
    before = unpad.trace_count()
    change(cell)
    assert_current(cell)
    assert unpad.trace_count() == before


def test_a_closure_is_read_with_gradients() -> None:
    memory = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)

    class Attends(Own):
        def forward(self, x, h):
            h = torch.tanh(torch.softmax(self.map(h) @ memory.t(), 1) @ memory + x)
            return h, h

    cell = Attends().double()
    x, offsets, state = oracle.batch(cell, [2, 0, 3])
    actual = oracle.outcome(choose.run, cell, x, offsets, state, captured=[memory])
    wanted = oracle.outcome(eager.run, cell, x, offsets, state, captured=[memory])
    oracle.assert_same(actual, wanted, 1e-10)
    before = unpad.trace_count()
    with torch.no_grad():
        memory.mul_(0.5)
    actual = oracle.outcome(choose.run, cell, x, offsets, state, captured=[memory])
    wanted = oracle.outcome(eager.run, cell, x, offsets, state, captured=[memory])
    oracle.assert_same(actual, wanted, 1e-10)
    assert unpad.trace_count() == before


GLOBAL_SCALE = torch.tensor(1.0, dtype=torch.float64)


def test_a_rebound_variable_is_seen_without_another_trace() -> None:
    """A closure's variable and a global: the name is read anew, not the tensor that it once had."""
    shift = torch.zeros(3, dtype=torch.float64)

    class Shifts(Own):
        def forward(self, x, h):
            h = torch.tanh(self.map(h) * GLOBAL_SCALE + x + shift)
            return h, h

    cell = Shifts().double()
    assert_current(cell)
    before = unpad.trace_count()
    shift = torch.ones(3, dtype=torch.float64)
    globals()["GLOBAL_SCALE"] = torch.tensor(-2.0, dtype=torch.float64)
    assert_current(cell)
    assert unpad.trace_count() == before


class Halved(nn.Module):
    def forward(self, weight):
        return 0.5 * weight


@pytest.mark.parametrize(
    "wrap",
    [
        parametrizations.weight_norm,
        parametrizations.orthogonal,
        lambda m: parametrize.register_parametrization(m, "weight", Halved()),
    ],
    ids=["weight_norm", "orthogonal", "own"],
)
def test_parametrized_weights_follow_their_raw_parameters(wrap) -> None:
    cell = Own().double()
    wrap(cell.map)
    assert_current(cell)
    before = unpad.trace_count()
    for _ in range(2):
        with torch.no_grad():
            for parameter in cell.map.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
        assert_current(cell)
    assert unpad.trace_count() == before


def test_spectral_norm_trains_and_evaluates() -> None:
    cell = Own().double()
    parametrizations.spectral_norm(cell.map)
    x, offsets, state = oracle.batch(cell, [2, 3])
    raw = cell.map.parametrizations.weight.original
    first, _, _ = choose.run(cell, x, offsets, state)
    first.sum().backward()
    assert raw.grad is not None
    assert raw.grad.abs().sum() > 0
    cell.eval()
    assert_current(cell)


MIXING = [
    MeanOfBatch, CentersByTheBatch, Normalizes, NormalizesAndCounts, Flips, Rolls, RollsAll,
]  # fmt: skip


@pytest.mark.parametrize("make", MIXING, ids=lambda c: c.__name__)
def test_a_cell_that_mixes_rows_is_an_error(make) -> None:
    """Its results would depend on who else is alive in the batch, which no engine can mend."""
    operation, reason = make.says
    with pytest.raises(ValueError, match=rf"{operation}.*{reason}.*LayerNorm.*eager"):
        unpad.nn.Recurrent(make())([torch.randn(2, 3), torch.randn(4, 3)])


def test_what_the_results_do_not_need_may_be_anything() -> None:
    class Watches(Own):
        def forward(self, x, h):
            h = torch.tanh(self.map(h) + x)
            h.mean()
            h.sort(0)
            return h, h

    assert_current(Watches().double())
