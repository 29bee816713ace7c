"""What a newcomer gets wrong: each mistake is an error with its argument, value and remedy.

A mistake in a cell's own forward is the exception that Python or torch raises, at the line where it
stands, and no word about compiling goes before it.
"""

from __future__ import annotations

import functools
import re
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import unpad
from unpad import ArgumentError, ArgumentTypeError, Cell, Ragged, UncompiledCellWarning
from unpad.nn import (
    GRU,
    LSTM,
    RNN,
    Dropout,
    GRUCell,
    LayerNormLSTMCell,
    LSTMCell,
    Recurrent,
    Residual,
    RNNCell,
    Stack,
)

X = torch.linspace(-1, 1, 30).reshape(2, 5, 3)
runs = {
    "Recurrent": lambda cell: Recurrent(cell)(X),
    "dynamic_rnn": lambda cell: unpad.dynamic_rnn(cell, X),
    "static_rnn": lambda cell: unpad.static_rnn(cell, list(X.unbind(1))),
    "explain": unpad.explain,
}
each_run = pytest.mark.parametrize("run", runs.values(), ids=runs)


class Base(Cell):
    input_size, state_size = 3, 4

    def __init__(self) -> None:
        super().__init__()
        self.from_x, self.from_h = nn.Linear(3, 4), nn.Linear(4, 4)


# In the cell's own forward ------------------------------------------------------------------------


class Misspelt(Base):
    def forward(self, x, h):
        h = torch.tanh(self.from_x(x) + self.from_h(h))
        return hh, h  # noqa: F821


class Widths(Base):
    def forward(self, x, h):
        h = torch.tanh(self.from_x(h) + self.from_h(h))
        return h, h


class Doubles(Base):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, 4, dtype=torch.float64))

    def forward(self, x, h):
        h = torch.tanh(self.from_x(x) + h @ self.scale)
        return h, h


class Absent(Base):
    def forward(self, x, h):
        return self.nothing_here(x), h


class ReadsThenRaises(Base):
    def forward(self, x, h):
        if h.sum().item() < 1e9:  # which the compiler cannot take
            raise ValueError("mine")
        return h, h


@each_run
@pytest.mark.parametrize(
    ("make", "error", "says", "line"),
    [
        (Misspelt, NameError, "'hh' is not defined", "return hh, h"),
        (Widths, RuntimeError, "shapes cannot be multiplied", "self.from_x(h)"),
        (Doubles, RuntimeError, "dtype", "h @ self.scale"),
        (Absent, AttributeError, "nothing_here", "self.nothing_here(x)"),
        (ReadsThenRaises, ValueError, "mine", 'raise ValueError("mine")'),
    ],
)
def test_a_mistake_in_forward_is_its_own_exception_at_its_own_line(
    run: Any, make: type, error: type[Exception], says: str, line: str
) -> None:
    if make is Doubles and run is unpad.explain:
        line = "self.from_x(x)"  # explain's tokens have the dtype of the first parameter
    with pytest.raises(error, match=says) as caught:  # and a warning would be an error here
        run(make())
    mine = [f.line for f in traceback.extract_tb(caught.tb) if Path(f.filename).samefile(__file__)]
    assert line in str(mine[-1])
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None


def test_a_cell_that_is_mended_runs_compiled() -> None:
    cell = Base()
    layer = Recurrent(cell)
    cell.forward = lambda x, h: (h, missing)  # type: ignore[method-assign]  # noqa: F821
    with pytest.raises(NameError):
        layer(X)
    cell.forward = lambda x, h: (h, torch.tanh(cell.from_x(x) + h))  # type: ignore[method-assign]
    traces = unpad.trace_count()
    layer(X)
    assert unpad.trace_count() > traces
    assert unpad.explain(cell).engine != "eager"


def test_a_mended_dtype_is_seen() -> None:
    class OtherDtype(Base):
        def forward(self, x, h):
            h = torch.tanh(self.from_x(x) + self.from_h(h))
            return h, h

    cell = OtherDtype()
    layer = Recurrent(cell)
    cell.from_h.double()
    with pytest.raises(RuntimeError, match="dtype"):
        layer(X)
    cell.float()
    output, _ = layer(X)
    assert output.dtype == torch.float32
    assert unpad.explain(cell).engine != "eager"


def test_what_fails_on_example_rows_alone_is_warned_of_after_it_ran() -> None:
    class Picky(Base):
        def forward(self, x, h):
            assert len(x) == 2, "two rows"
            return h + self.from_x(x), h

    with pytest.warns(UncompiledCellWarning, match=r"AssertionError at test_mistakes\.py:\d+: two"):
        output, _ = Recurrent(Picky())(X)
    assert output.shape == (2, 5, 4)


@each_run
@pytest.mark.parametrize(
    ("returns", "says"),
    [
        (lambda x, h: h, "whose forward returned Tensor.*the pair"),
        (lambda x, h: (h, h, h), "whose forward returned tuple.*the pair"),
        (lambda x, h: None, "whose forward returned NoneType.*the pair"),
        (lambda x, h: (h, h[:, :2]), r"whose new state is \[\d, 2\].*\[\d, 4\]"),
        (lambda x, h: (h.sum(), h), "whose output is"),
    ],
)
def test_what_forward_returns_wrongly_is_told(run: Any, returns: Any, says: str) -> None:
    class Returns(Base):
        def forward(self, x, h):
            return returns(x, h)

    with pytest.raises((ArgumentError, ArgumentTypeError), match=f"argument `cell`.*{says}"):
        run(Returns())


# Sizes --------------------------------------------------------------------------------------------


class Thing:
    """An object of no kind that anything takes; its name is the same in every process."""

    def __str__(self) -> str:
        return "a thing"


WRONG = [-1, 2.0, None, True, "3", [2, "a"], [-2], Thing(), torch.tensor(3)]


def sized(**sizes: Any) -> Cell:
    class Sized(Cell):
        input_size = state_size = 3

        def forward(self, x, h):
            return x, h

    cell = Sized()
    for name, size in sizes.items():
        setattr(cell, name, size)
    return cell


@pytest.mark.parametrize("size", [*WRONG, (3, -1), (3, "a"), ((3,), None), {"a": 3}], ids=str)
def test_a_state_size_that_is_none_is_refused_by_name(size: Any) -> None:
    for call in (
        lambda cell: cell.initial_state(2),
        lambda cell: Recurrent(cell)(X),
        lambda cell: unpad.dynamic_rnn(cell, X),
        lambda cell: Recurrent(cell, learned_initial_state=True),
    ):
        with pytest.raises(
            (ArgumentError, ArgumentTypeError), match=r"`state_size`.*a tuple of these"
        ):
            call(sized(state_size=size))


@pytest.mark.parametrize("size", [size for size in WRONG if size is not None], ids=str)
def test_other_sizes_that_are_none_are_refused_by_name(size: Any) -> None:
    for build in (Recurrent, lambda cell: Stack([cell]), lambda cell: unpad.dynamic_rnn(cell, X)):
        with pytest.raises((ArgumentError, ArgumentTypeError), match="argument `input_size`"):
            build(sized(input_size=size))
    with pytest.raises((ArgumentError, ArgumentTypeError), match="argument `output_size`"):
        Stack([sized(output_size=size), GRUCell(3, 4)])


def test_numpys_whole_numbers_are_sizes() -> None:
    three, four = np.int64(3), np.int32(4)
    assert LSTM(three, four, batch_first=True)(X)[0].shape == (2, 5, 4)
    assert Recurrent(GRUCell(three, four))(X)[0].shape == (2, 5, 4)
    assert Recurrent(sized(input_size=three, state_size=three))(X)[1].shape == (2, 3)
    assert LSTMCell(3, 4, cell_clip=np.float32(0.5)).cell_clip == 0.5


SHIPPED = [RNN, GRU, LSTM, RNNCell, GRUCell, LSTMCell, LayerNormLSTMCell]


@pytest.mark.parametrize("value", [0, *WRONG], ids=str)
@pytest.mark.parametrize("make", SHIPPED)
def test_a_shipped_cell_or_layer_of_no_size_is_refused_by_name(make: Any, value: Any) -> None:
    counts = [("input_size", (value, 4)), ("hidden_size", (3, value))]
    if make in (RNN, GRU, LSTM):
        counts.append(("num_layers", (3, 4, value)))
    for name, sizes in counts:
        with pytest.raises((ArgumentError, ArgumentTypeError), match=f"`{name}`.*an int of 1 or"):
            make(*sizes)


@pytest.mark.parametrize("value", [0, 1, 2.0, None, "yes"], ids=str)
def test_a_flag_that_is_no_bool_is_refused_by_name(value: Any) -> None:
    builds: list[tuple[str, Any]] = [
        *(("bias", make) for make in SHIPPED),
        *(("bidirectional", make) for make in (RNN, GRU, LSTM)),
        *(("reset_after", make) for make in (GRU, GRUCell)),
        ("peepholes", LSTMCell),
        ("same_over_time", lambda *_, **flag: Dropout(GRUCell(3, 4), **flag)),
        *(
            (name, lambda *_, **flag: Recurrent(GRUCell(3, 4), **flag))
            for name in ("bidirectional", "learned_initial_state", "return_states")
        ),
        *(
            (name, lambda *_, **flag: unpad.dynamic_rnn(GRUCell(3, 4), X, **flag))
            for name in ("time_major", "return_states")
        ),
    ]
    for name, build in builds:
        with pytest.raises(ArgumentTypeError, match=f"argument `{name}`.*True or False"):
            build(3, 4, **{name: value})


def test_a_number_that_is_none_is_refused_by_name() -> None:
    for name, makes, values in (
        ("forget_bias", (LSTM, LSTMCell, LayerNormLSTMCell), ("1", [1.0], float("nan"), True)),
        ("proj_size", (LSTM, LSTMCell), (-1, 2.0, None, True, "2")),
        ("cell_clip", (LSTMCell,), (0, -1.0, "1", float("nan"))),
        ("eps", (LayerNormLSTMCell,), (-1, None, "1", float("nan"))),
        ("dtype", SHIPPED, (torch.int64, "float32", 32)),
    ):
        for make in makes:
            for value in values:
                refused = pytest.raises((ArgumentError, ArgumentTypeError), match=f"`{name}`: got")
                with refused:
                    make(3, 4, **{name: value})
    for dtype in (torch.int64, "float32"):
        with pytest.raises(ArgumentTypeError, match="argument `dtype`"):
            unpad.dynamic_rnn(GRUCell(3, 4), X, dtype=dtype)


def test_a_word_is_shown_in_quotes() -> None:
    with pytest.raises(ArgumentTypeError, match="argument `input_size`: got '3'; allowed: an int"):
        GRU("3", 4)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="argument `nonlinearity`: got 'gelu'; allowed: 'tanh'"):
        RNN(3, 4, nonlinearity="gelu")
    with pytest.raises(ArgumentTypeError, match=r"`hidden_size`: got \[16, 8\].*Recurrent\("):
        GRU(3, [16, 8])  # type: ignore[arg-type]


# Cells --------------------------------------------------------------------------------------------


class Unready(Cell):
    def __init__(self) -> None:
        self.input_size = self.state_size = 3  # super().__init__() was forgotten


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "NoneType.*subclass unpad.Cell"),
        (GRUCell, r"the class GRUCell.*build one: GRUCell\(\.\.\.\)"),
        ("GRU", "'GRU'.*take a cell of unpad.nn"),
        (lambda x, h: (x, h), "function"),
        (nn.Linear(3, 4), "Linear, which has no state_size"),
        (GRU(3, 4), "GRU, which has no state_size.*unpad.nn.GRUCell"),
        (nn.LSTM(3, 4), "LSTM, which has no state_size.*unpad.nn.LSTMCell"),
        (nn.GRUCell(3, 4), "torch.nn.GRUCell, whose forward returns the state alone"),
        (Unready(), r"Unready before its __init__ was done.*super\(\).__init__\(\)"),
        ({"a": GRUCell(3, 4)}, "dict"),
    ],
)
def test_what_is_no_cell_is_told_what_to_give(given: Any, says: str) -> None:
    places: list[tuple[str, Any]] = [
        ("cell", Recurrent),
        ("cell", Residual),
        ("cell", lambda cell: unpad.dynamic_rnn(cell, X)),
        ("cell", lambda cell: unpad.static_rnn(cell, [X[0]])),
        ("cell", unpad.explain),
        ("cell_bw", lambda cell: unpad.bidirectional_dynamic_rnn(GRUCell(3, 4), cell, X)),
        (r"cell\[1\]", lambda cell: Recurrent([GRUCell(3, 4), cell])),
        (r"cells\[0\]", lambda cell: Stack([cell])),
    ]
    for argument, build in places:
        with pytest.raises(ArgumentTypeError, match=f"argument `{argument}`: got {says}"):
            build(given)


def test_explain_takes_what_runs() -> None:
    class Bare(nn.Module):
        input_size = state_size = 3

        def forward(self, x, h):
            h = torch.tanh(x + h)
            return h, h

    assert Recurrent(Bare())(X)[0].shape == (2, 5, 3)
    assert unpad.explain(Bare()).name == "Bare"


def test_one_cell_in_place_of_a_list_is_told_to_be_a_list() -> None:
    for given, remedy in ((GRUCell(3, 4), "GRUCell"), (GRUCell, "GRUCell"), (5, "at least one")):
        with pytest.raises(ArgumentTypeError, match=f"`cells`.*a list of cells; remedy:.*{remedy}"):
            Stack(given)  # type: ignore[arg-type]


def test_cells_for_both_directions_take_one_input() -> None:
    with pytest.raises(ArgumentError, match=r"`cell_bw`: got input_size \[4\]; allowed: \[3\]"):
        unpad.bidirectional_dynamic_rnn(GRUCell(3, 4), GRUCell(4, 4), X)


@pytest.mark.parametrize(
    "gives",
    [lambda b: None, lambda b: torch.zeros(4), lambda b: [1, 2], lambda b: np.zeros((b, 4))],
)
def test_an_initial_state_of_no_rows_is_told(gives: Any) -> None:
    class Starts(Base):
        def initial_state(self, batch_size):
            return gives(batch_size)

        def forward(self, x, h):
            return h, h

    with pytest.raises(
        ArgumentError, match=r"Starts, whose initial_state\(2\) gave .*\[2, \.\.\.\]"
    ):
        Recurrent(Starts())(X)


# Inputs -------------------------------------------------------------------------------------------

doors = {
    "GRU": ("input", GRU(3, 4, batch_first=True)),
    "Recurrent": ("input", Recurrent(Residual(RNNCell(3, 3)))),
    "Recurrent of two": ("input", Recurrent([Stack([LSTMCell(3, 4)]), GRUCell(4, 2)])),
    "dynamic_rnn": ("inputs", functools.partial(unpad.dynamic_rnn, LayerNormLSTMCell(3, 4))),
}
each_door = pytest.mark.parametrize(("argument", "door"), doors.values(), ids=doors)


@each_door
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (X.long(), r"torch.int64; allowed: torch.float32.*\.to\(torch.float32\).*nn.Embedding"),
        (X.bool(), r"torch.bool; allowed: torch.float32.*\.to\(torch.float32\)"),
        ([X[0].long()], r"torch.int64; allowed: torch.float32"),
        (X.double(), r"torch.float64; .*\.to\(torch.float32\), or the module: .to\(torch.float64"),
        (Ragged.from_list([X[0].half()]), "torch.float16; allowed: torch.float32"),
        (X.to("meta"), r"a tensor on meta; allowed: cpu, .*\.to\('cpu'\)"),
        (X.to_sparse(), r"a tensor of layout torch.sparse_coo; .*\.to_dense\(\)"),
        (X.numpy(), "ndarray; .*torch.from_numpy"),
        (X[0].tolist(), r"a list whose items are rows of numbers; .*\[length, 3\]; .*in a list"),
        ([1.0, 2.0], "a single number in row 0"),
        ([None], "row 0: NoneType"),
        (None, "NoneType"),
    ],
)
def test_an_input_that_does_not_fit_is_told_by_name(
    argument: str, door: Any, given: Any, says: str
) -> None:
    with pytest.raises((ArgumentError, ArgumentTypeError), match=f"`{argument}`: got {says}") as e:
        door(given)
    assert "to(torch.int64)" not in str(e.value)
    assert "to(torch.bool)" not in str(e.value)


@each_door
def test_lists_of_numbers_are_sequences(argument: str, door: Any) -> None:
    output, _ = door(X.tolist())
    wanted, _ = door(X)
    assert torch.equal(torch.stack(output), wanted)


def test_an_initial_state_of_another_dtype_is_told_by_name() -> None:
    for cell, state in (
        (GRUCell(3, 4), torch.zeros(2, 4).double()),
        (LSTMCell(3, 4), (torch.zeros(2, 4), torch.zeros(2, 4).half())),
        (Stack([RNNCell(3, 4), GRUCell(4, 2)]), (torch.zeros(2, 4), torch.zeros(2, 2).double())),
    ):
        for call in (
            lambda cell, state: Recurrent(cell)(X, state),
            lambda cell, state: unpad.dynamic_rnn(cell, X, initial_state=state),
        ):
            with pytest.raises(
                ArgumentError, match=r"`initial_state`.*float\d\d; allowed: torch.f"
            ):
                call(cell, state)


def test_a_cell_of_ones_own_may_take_any_dtype() -> None:
    class Embeds(Cell):
        input_size, state_size = torch.Size([]), 4

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(9, 4)

        def forward(self, x, h):
            h = torch.tanh(self.table(x) + h)
            return h, h

    words = Ragged.from_list([torch.tensor([1, 8, 3])])
    with pytest.warns(UncompiledCellWarning):
        output, _ = Recurrent(Embeds())(words)
    assert output.values.shape == (3, 4)


# Devices without numbers, and torch.jit -----------------------------------------------------------


@pytest.mark.parametrize(
    "layer",
    [
        LSTM(3, 4, 2, bidirectional=True, batch_first=True),
        Recurrent(Dropout(LayerNormLSTMCell(3, 8), state=0.1, same_over_time=True)),
    ],
    ids=["LSTM", "Recurrent"],
)
def test_shapes_can_be_had_on_the_meta_device(layer: nn.Module) -> None:
    wanted, _ = layer(X, lengths=[5, 0])
    output, final = layer.to("meta")(X.to("meta"), lengths=[5, 0])
    assert output.device.type == "meta"
    assert output.shape == wanted.shape
    assert unpad.nest.leaves(final)[0].device.type == "meta"
    with pytest.raises(ArgumentError, match="`input`: got a tensor on cpu; allowed: meta"):
        layer(X)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize(
    "module",
    [GRU(3, 4, batch_first=True), nn.Sequential(LSTM(3, 4)), Recurrent(GRUCell(3, 4))],
    ids=["GRU", "in a model", "Recurrent"],
)
def test_torch_jit_and_export_are_refused_in_words(module: nn.Module) -> None:
    with pytest.raises(ArgumentTypeError, match=r"torch.jit.script.*torch\.compile"):
        torch.jit.script(module)
    with pytest.raises(
        ArgumentTypeError, match=r"`input`.*torch.jit.trace.*lengths.*torch.compile"
    ):
        torch.jit.trace(module, (X,))
    with pytest.raises(ArgumentTypeError, match=r"`input`.*torch.export.*lengths.*torch.compile"):
        torch.export.export(module, (X,))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torch_jit_takes_a_single_cell_by_trace_alone() -> None:
    cell = LSTMCell(3, 4)
    traced = torch.jit.trace(cell, (X[:, 0], cell.initial_state(2)))
    other, state = torch.rand(7, 3), cell.initial_state(7)
    assert torch.equal(traced(other, state)[0], cell(other, state)[0])
    with pytest.raises(ArgumentTypeError, match=r"LSTMCell, given to torch.jit.script"):
        torch.jit.script(cell)


@pytest.mark.parametrize(
    ("lengths", "remedy"),
    [
        ([2.0, 1.0], "[int(n) for n in sequence_length]"),
        (np.array([2.0, 1.0]), "sequence_length.astype('int64')"),
        (torch.tensor([2.0, 1.0]), "sequence_length.to(torch.int64)"),
        ([True, False], "mask.sum(1)"),
        (torch.tensor([True, False]), "mask.sum(1)"),
    ],
)
def test_what_to_do_about_lengths_that_are_no_integers_fits_what_they_are(
    lengths: object, remedy: str
) -> None:
    with pytest.raises(ArgumentTypeError, match=re.escape(remedy)):
        unpad.functional.dynamic_rnn(GRUCell(3, 4), torch.zeros(2, 3, 3), lengths)
