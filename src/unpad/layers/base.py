"""What RNN, GRU and LSTM share: parameters, the run of every layer and direction, the checks.

Each layer and direction is one run of an engine over the values, on a light cell that sees the
layer's parameters. Those are plain parameters, read at the call: nothing is flattened or copied.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from unpad.cells.arguments import (
    check_dtype,
    check_flag,
    check_like,
    check_memory,
    check_precision,
    check_rate,
    check_size,
)
from unpad.cells.initialize import check_init, initialize
from unpad.engine import choose, lean
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.forms import open_input
from unpad.jit import opaque, refuse_scripting
from unpad.nest import Zeros

if TYPE_CHECKING:
    from unpad.cells.initialize import Init
    from unpad.forms import Opened


State = TypeVar("State")


class Layers(nn.Module, Generic[State]):
    """What RNN, GRU and LSTM share; not to be built itself. ``State``: a tensor, or a pair."""

    gates: ClassVar[int]
    mode: str
    # Also of layers that were pickled before there was a choice.
    memory: str | int = "fast"
    precision: str | None = None

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        num_layers: int,
        *,
        bias: bool,
        batch_first: bool,
        dropout: float,
        bidirectional: bool,
        proj_size: int = 0,
        init: Init,
        memory: str | int,
        precision: str | None,
        device: Any,
        dtype: Any,
    ) -> None:
        super().__init__()
        self.input_size = check_size("input_size", input_size)
        self.hidden_size = check_size("hidden_size", hidden_size)
        self.num_layers = check_size("num_layers", num_layers)
        self.bias = check_flag("bias", bias)
        self.batch_first = check_flag("batch_first", batch_first)
        self.dropout = check_rate("dropout", dropout)
        self.bidirectional = check_flag("bidirectional", bidirectional)
        self.proj_size = check_size("proj_size", proj_size, least=0)
        check_init(init)
        check_dtype(dtype)
        self.init = init
        self.memory = check_memory(memory)
        self.precision = check_precision(precision)
        if self.dropout and num_layers == 1:
            _warn_of_lone_dropout(self.dropout)
        self._cells, self._names = self._make_cells(), self._make_names()
        for layer in range(self.num_layers):
            for suffix in self._suffixes():
                self._add_parameters(layer, suffix, device, dtype)
        self.reset_parameters()

    def _suffixes(self) -> tuple[str, ...]:
        return ("", "_reverse") if self.bidirectional else ("",)

    @property
    def _output_size(self) -> int:
        """Features of one direction's output."""
        return self.proj_size or self.hidden_size

    def _layer_input_size(self, layer: int) -> int:
        return self._output_size * len(self._suffixes()) if layer else self.input_size

    def _parameter_names(self) -> tuple[str, ...]:
        """Names on a cell, in torch.nn's order."""
        biases = ("bias_ih", "bias_hh") if self.bias else ()
        return ("weight_ih", "weight_hh", *biases, *(("weight_hr",) if self.proj_size else ()))

    def _add_parameters(self, layer: int, suffix: str, device: Any, dtype: Any) -> None:
        rows = self.gates * self.hidden_size
        shapes = {
            "weight_ih": (rows, self._layer_input_size(layer)),
            "weight_hh": (rows, self._output_size),
            "bias_ih": (rows,),
            "bias_hh": (rows,),
            "weight_hr": (self.proj_size, self.hidden_size),
        }
        for name in self._parameter_names():
            parameter = nn.Parameter(torch.empty(shapes[name], device=device, dtype=dtype))
            self.register_parameter(f"{name}_l{layer}{suffix}", parameter)

    def reset_parameters(self) -> None:
        """Start afresh, by the scheme that ``init`` names; torch.nn's numbers by default."""
        for name, parameter in self.named_parameters(recurse=False):
            initialize(name, parameter, self.hidden_size, self.init)

    def flatten_parameters(self) -> None:
        """Do nothing: it is here for code written for torch.nn, and nothing is ever flattened."""

    @property
    def all_weights(self) -> list[list[Tensor]]:
        """The parameters of each layer and direction."""
        return [
            [getattr(self, f"{name}_l{layer}{suffix}") for name in self._parameter_names()]
            for layer in range(self.num_layers)
            for suffix in self._suffixes()
        ]

    # The cells that the engines run ------------------------------------------------------------

    def _make_cell(self, input_size: int) -> nn.Module:
        """Make a cell without numbers of its own: on the meta device."""
        raise NotImplementedError

    def _make_cells(self) -> tuple[nn.Module, ...]:
        """One cell for each layer and direction, in a tuple, so that no cell is a submodule.

        They live as long as the layer, since engines keep what they compiled with the cell.
        """
        return tuple(
            self._make_cell(self._layer_input_size(layer))
            for layer in range(self.num_layers)
            for _ in self._suffixes()
        )

    def _make_names(self) -> list[list[tuple[str, str]]]:
        """For each layer and direction the parameters' names on its cell and on this layer."""
        return [
            [(name, f"{name}_l{layer}{suffix}") for name in self._parameter_names()]
            for layer in range(self.num_layers)
            for suffix in self._suffixes()
        ]

    def cell_with_weights(self, place: int) -> nn.Module:
        """The cell of a layer and direction, which sees the parameters as they are now."""
        cell, own = self._cells[place], self._parameters
        held = cast("dict[str, Tensor]", cell._parameters)
        for name, mine in self._names[place]:
            parameter = own.get(mine)
            held[name] = getattr(self, mine) if parameter is None else parameter
        return cell

    def _run(
        self, place: int, values: Tensor, offsets: Tensor, state: Any
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        cell = self.cell_with_weights(place)
        reverse = self.bidirectional and place % 2 == 1
        share = lean.share(self.memory, len(self._cells))
        ways: dict[str, Any] = {"memory": share, "precision": self.precision}
        output, final, _ = choose.run(cell, values, offsets, state, reverse=reverse, **ways)
        held = cast("dict[str, Tensor | None]", cell._parameters)
        for name, weight in held.items():
            # A computed weight (parametrize, weight_norm) would keep its graph alive.
            if weight is not None and not weight.is_leaf:
                held[name] = weight.detach()
        return output, final if isinstance(final, tuple) else (final,)

    def __getstate__(self) -> dict[str, Any]:
        made = ("_cells", "_names")
        return {name: value for name, value in vars(self).items() if name not in made}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._cells, self._names = self._make_cells(), self._make_names()

    def _replicate_for_data_parallel(self) -> Any:
        replica = cast("Any", super())._replicate_for_data_parallel()
        replica._cells = self._make_cells()
        return replica

    __prepare_scriptable__ = refuse_scripting

    # The call ----------------------------------------------------------------------------------

    @opaque
    def forward(
        self,
        input: Any,  # noqa: A002 - torch.nn's name
        hx: State | None = None,
        lengths: Any = None,
    ) -> tuple[Any, State]:
        """Run over a batch.

        Args:
            input: a Ragged, a PackedSequence, a nested tensor, a list of tensors [length, I], a
                padded tensor, or one sequence [S, I].
            hx: initial states [layers * directions, B, H] in the input's order, for LSTM the pair
                (h, c) of [layers * directions, B, P or H] and [layers * directions, B, H]; None:
                zeros.
            lengths: of a padded tensor: list, tuple, NumPy array or integer tensor. Pads are never
                read. None: every sequence has S steps.

        Returns:
            The last layer's output, [..., directions * (P or H)] in the form of the input and 0
            past the end of a sequence; and the final states, formed like ``hx``: after the last
            token, or the first for the backward direction. A sequence of length 0 keeps its initial
            state. Rows are in the input's order.

        Raises:
            ArgumentError, ArgumentTypeError: wrong input, states or lengths, before any work.
        """
        weight = self._parameters.get("weight_ih_l0")  # none where it is parametrized
        if weight is None:
            weight = next(self.parameters(), None)
        if weight is None:  # DataParallel's replicas hold plain tensors
            weight = self.all_weights[0][0]
        batch = open_input(
            input,
            lengths,
            features=torch.Size([self.input_size]),
            batch_first=self.batch_first,
            like=lambda: weight,
        )
        check_like("input", batch.values, weight)
        states = self._initial_states(hx, batch)
        values = batch.values
        finals: list[tuple[Tensor, ...]] = []
        directions = len(self._suffixes())
        for layer in range(self.num_layers):
            if layer and self.dropout:
                values = functional.dropout(values, self.dropout, self.training)
            places = range(layer * directions, (layer + 1) * directions)
            runs = [self._run(place, values, batch.offsets, states[place]) for place in places]
            values = runs[0][0] if directions == 1 else torch.cat([run[0] for run in runs], dim=1)
            finals.extend(run[1] for run in runs)
        if len(finals) == 1:
            final = tuple(leaf.unsqueeze(0) for leaf in finals[0])
        else:
            final = tuple(torch.stack(leaf) for leaf in zip(*finals, strict=True))
        if not batch.batched:
            final = tuple(leaf.squeeze(1) for leaf in final)
        alone = len(self._state_widths()) == 1
        return batch.close(values), cast("State", final[0] if alone else final)

    def start_state(self, batch_size: int, like: Tensor) -> State:
        """The state before a sequence: zeros, formed like ``hx``."""
        rows = self.num_layers * len(self._suffixes())
        state = tuple(like.new_zeros(rows, batch_size, width) for width in self._state_widths())
        return cast("State", state[0] if len(state) == 1 else state)

    def _state_widths(self) -> tuple[int, ...]:
        return (self.hidden_size,)

    def _initial_states(self, hx: Any, batch: Opened) -> list[Any]:
        """For each layer and direction: a tensor or `Zeros` [B, H], or a tuple of these."""
        rows = self.num_layers * len(self._suffixes())
        widths = self._state_widths()
        if hx is None:  # read only, so all layers share them
            rest, size = (batch.values.dtype, batch.values.device), batch.batch_size
            zeros = tuple([Zeros(torch.Size((size, width)), *rest) for width in widths])
            return [zeros[0] if len(widths) == 1 else zeros] * rows
        pairs = [("hx", hx)] if len(widths) == 1 else _pair(hx)
        given = [
            _check_state(name, leaf, (rows, batch.batch_size, width), batch)
            for (name, leaf), width in zip(pairs, widths, strict=True)
        ]
        places = list(zip(*(leaf.unbind(0) for leaf in given), strict=True))
        return [place[0] for place in places] if len(widths) == 1 else places

    def extra_repr(self) -> str:
        """Give the sizes and what is not the default."""
        text = f"{self.input_size}, {self.hidden_size}"
        defaults = {
            "proj_size": 0,
            "num_layers": 1,
            "bias": True,
            "batch_first": False,
            "dropout": 0.0,
            "bidirectional": False,
            "memory": "fast",
            "precision": None,
        }
        chosen = {name: getattr(self, name) for name in defaults}
        return text + "".join(
            f", {name}={value!r}" for name, value in chosen.items() if value != defaults[name]
        )


def _warn_of_lone_dropout(rate: float) -> None:
    warnings.warn(
        f"dropout={rate} does nothing with num_layers=1: it acts between layers and not after the "
        "last one. Use num_layers of 2 or more, nn.Dropout behind the layer, or the cell wrapper "
        "unpad.nn.Dropout",
        UserWarning,
        stacklevel=4,
    )


def _pair(hx: Any) -> list[tuple[str, Any]]:
    if not isinstance(hx, (tuple, list)) or len(cast("list[Any]", hx)) != 2:
        raise ArgumentTypeError(
            "hx", hx, "the pair (h_0, c_0)", "give both, torch.zeros_like(h_0) for one of them"
        )
    return list(zip(("hx[0]", "hx[1]"), cast("list[Any]", hx), strict=True))


def _check_state(argument: str, given: Any, shape: tuple[int, int, int], batch: Opened) -> Tensor:
    """Return an initial state as [layers * directions, B, features]."""
    check_like(argument, given, batch.values)
    state = cast("Tensor", given)
    wanted = shape if batch.batched else (shape[0], shape[2])
    if tuple(state.shape) != wanted:
        raise ArgumentError(
            argument,
            f"shape {list(state.shape)}",
            f"{list(wanted)}: layers * directions, {'batch, ' if batch.batched else ''}features",
            "for a smaller batch select its rows (hx[:, :n]), or start afresh with hx=None; the "
            "batch is the second axis whatever batch_first says",
        )
    return state if batch.batched else state.unsqueeze(1)
