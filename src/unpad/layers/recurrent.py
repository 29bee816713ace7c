"""Any cell, or cells on each other, over sequences of any length."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from unpad.cells.arguments import check_flag, check_memory, check_precision
from unpad.cells.cell import feature_shape, first_floating, start, start_like, start_unmade
from unpad.cells.compose import (
    are_cells,
    check_cell,
    check_cells,
    check_states,
    check_tokens,
    check_widths,
    numbered,
    size_of,
    warn_if_shared,
)
from unpad.engine import choose, lean
from unpad.errors import ArgumentError
from unpad.forms import Opened, open_input
from unpad.jit import opaque, refuse_scripting
from unpad.nest import Nest, leaves, map_leaves
from unpad.states import check_state


class Directions(NamedTuple):
    """The states of both directions of a layer.

    ``forward`` was read from the first token to the last, ``backward`` from the last to the first:
    both final states have seen the whole sequence.
    """

    forward: Any
    backward: Any


class Recurrent(nn.Module):
    """Runs any cell over sequences of any length; with a list of cells, one layer on the other.

    Args:
        cell: one cell, or a list of cells of any kinds and widths. With two directions a layer
            takes twice what the layer below gives out.
        bidirectional: a second cell reads each sequence from its end; its output lies behind the
            first one's.
        batch_first: whether padded input is [B, S, ...] or [S, B, ...].
        backward_cell: the second cell(s), formed like ``cell``. None: copies, started afresh by
            their modules' ``reset_parameters`` (parameters of a module without it start as equal
            copies).
        learned_initial_state: floating initial states are parameters, started at the cell's own
            ``initial_state`` and the same for all sequences.
        return_states: also give every state after every token, see `forward`.
        memory: what a run keeps for its backward pass, beside its input and results. ``"fast"``:
            all that the backward pass reads. ``"lean"``: the states at a few borders in time; the
            backward pass then runs the forward pass between two borders again, with the very same
            masks of dropout and zoneout. The memory grows with the square root of the length, the
            time by about a third, and the gradients are the same but for the order of sums. An
            int: the most bytes that may be kept and worked with in the backward pass, shared out
            evenly to layers and directions; what is kept is as much as fits. In inference nothing
            is kept; a cell in the eager loop, and a second derivative, keep all.
        precision: of the products of float32 cells. ``"bfloat16"``: both operands of every product
            are rounded to bfloat16 (nearest, ties to even), forward and backward; sums, states,
            outputs, gradients and what stands between products stay float32, so the parameters are
            their own master weights. ``"float32"``: always. None: float32, but bfloat16 inside
            ``torch.autocast("cpu", dtype=torch.bfloat16)``, where outputs and final states are
            bfloat16 as torch.nn.LSTM's are, and for cells and inputs that were converted to
            bfloat16 (on a CPU). The eager loop multiplies as torch does; float64 is never rounded.

    Raises:
        ArgumentError: widths that do not fit on each other; in a run, fewer bytes than the least
            possible, which the error names.
        ArgumentTypeError: no cell.

    Warns:
        UserWarning: one cell object stands in two layers and shares its weights.

    >>> from unpad.cells import GRUCell, LSTMCell
    >>> layer = Recurrent([LSTMCell(3, 8), GRUCell(16, 5)], bidirectional=True)
    >>> output, (lower, upper) = layer([torch.zeros(2, 3), torch.zeros(4, 3)])
    >>> [tuple(rows.shape) for rows in output], tuple(upper.backward.shape)
    ([(2, 10), (4, 10)], (2, 5))
    """

    # Also of layers that were pickled before there was a choice.
    memory: str | int = "fast"
    precision: str | None = None

    def __init__(
        self,
        cell: nn.Module | list[nn.Module],
        bidirectional: bool = False,
        batch_first: bool = True,
        *,
        backward_cell: nn.Module | list[nn.Module] | None = None,
        learned_initial_state: bool = False,
        return_states: bool = False,
        memory: str | int = "fast",
        precision: str | None = None,
    ) -> None:
        super().__init__()
        self.bidirectional = check_flag("bidirectional", bidirectional)
        self.batch_first = check_flag("batch_first", batch_first)
        self.return_states = check_flag("return_states", return_states)
        self.memory = check_memory(memory)
        self.precision = check_precision(precision)
        self.single = not are_cells(cell)
        cells = _as_cells(cell, "cell", self.single)
        check_widths(cells, 2 if bidirectional else 1)
        self.cells = nn.ModuleList(cells)
        backward: list[nn.Module] = []
        if bidirectional:
            backward = self._backward(cells, backward_cell)
            self.backward_cells = nn.ModuleList(backward)
        elif backward_cell is not None:
            raise ArgumentError(
                "backward_cell",
                type(backward_cell).__name__,
                "None with bidirectional=False",
                "set bidirectional=True",
            )
        places = numbered("cell", cells) + numbered("backward_cell", backward)
        warn_if_shared(places, "Recurrent")
        self.input_size = size_of(cells[0], "input_size")
        learned = check_flag("learned_initial_state", learned_initial_state)
        self.initial = self._learned() if learned else None

    def _backward(self, cells: list[nn.Module], given: Any) -> list[nn.Module]:
        if given is None:
            # One copy for each object, so that shared weights stay shared in this direction.
            return [_fresh(cell) for cell in copy.deepcopy(cells)]
        backward = _as_cells(given, "backward_cell", self.single)
        if [_sizes(cell) for cell in backward] != [_sizes(cell) for cell in cells]:
            raise ArgumentError(
                "backward_cell",
                f"sizes {[_sizes(cell) for cell in backward]}",
                f"the sizes of cell: {[_sizes(cell) for cell in cells]}",
                "give both directions cells of the same input, state and output size",
            )
        return backward

    def _layers(self) -> list[tuple[nn.Module, ...]]:
        """The cells of each layer: one, or forward and backward."""
        if self.bidirectional:
            return list(zip(self.cells, self.backward_cells, strict=True))
        return [(cell,) for cell in self.cells]

    def _learned(self) -> nn.ParameterList:
        """The floating initial states of all layers and directions, one after the other."""
        found: list[nn.Parameter] = []
        for layer in self._layers():
            for cell in layer:
                own = first_floating(cell)
                dtype = torch.get_default_dtype() if own is None else own.dtype
                device = None if own is None else own.device
                state = start_like(cell, 1, dtype=dtype, device=device)
                floating = [leaf for leaf in leaves(state) if leaf.is_floating_point()]
                found += [nn.Parameter(leaf[0].detach().clone()) for leaf in floating]
        return nn.ParameterList(found)

    @opaque
    def forward(
        self,
        input: Any,  # noqa: A002 - torch.nn's name
        initial_state: Nest = None,
        lengths: Any = None,
        *,
        return_states: bool | None = None,
    ) -> tuple[Any, ...]:
        """Run over a batch.

        Args:
            input: a Ragged, a PackedSequence, a nested tensor, a list of tensors [length, ...], a
                padded tensor, or one sequence.
            initial_state: formed like the final state; None: the learned one, or the cells' own.
            lengths: of a padded tensor. Pads are never read. None: every sequence has S steps.
            return_states: None: as the layer was built.

        Returns:
            ``(output, final)``, or ``(output, final, states)`` with ``return_states``. The output
            has the form of the input and is 0 past the end of a sequence. The final state is the
            cell's state, [B, ...] each: for a list of cells a tuple with one for each layer, with
            two directions each a `Directions` with ``.forward`` and ``.backward``. The states are
            formed like the final state, with a batch in the form of the input for each tensor. A
            sequence of length 0 keeps its initial state. Rows are in the input's order, and the
            batch is the first axis of every state.

        Raises:
            ArgumentError, ArgumentTypeError: wrong input, states or lengths, before any work.
        """
        if return_states is not None:
            check_flag("return_states", return_states)
        wanted = self.return_states if return_states is None else return_states
        features = feature_shape(self.input_size)
        batch = open_input(
            input,
            lengths,
            features=features,
            batch_first=self.batch_first,
            like=self._like,
        )
        values, finals, states = batch.values, list[Any](), list[Any]()
        share = lean.share(self.memory, len(self.cells) * (1 + self.bidirectional))
        ways: dict[str, Any] = {"return_states": wanted, "memory": share}
        ways["precision"] = self.precision
        for cells, before in zip(self._layers(), self._start(initial_state, batch), strict=True):
            runs = [
                choose.run(cell, values, batch.offsets, state, reverse=place == 1, **ways)
                for place, (cell, state) in enumerate(zip(cells, before, strict=True))
            ]
            values = runs[0][0] if len(runs) == 1 else torch.cat([run[0] for run in runs], dim=-1)
            finals.append(tuple(_unbatch(run[1], batch) for run in runs))
            states.append(tuple(map_leaves(batch.close, run[2]) for run in runs if wanted))
        results = (batch.close(values), self._form(finals))
        return (*results, self._form(states)) if wanted else results

    __prepare_scriptable__ = refuse_scripting

    def _like(self) -> Tensor:
        """A tensor of the dtype and device of the parameters."""
        like = first_floating(self)
        return torch.empty(0) if like is None else like

    def start_state(self, batch_size: int, like: Tensor) -> Nest:
        """The state before a sequence, learned where it is, formed like the final one."""
        own = [
            tuple(start_like(cell, batch_size, dtype=like.dtype, device=like.device) for cell in c)
            for c in self._layers()
        ]
        return self._form(own if self.initial is None else self._spread(own, batch_size))

    # Between lists of [layer][direction] and what the caller sees -------------------------------

    def _form(self, layers: list[tuple[Any, ...]]) -> Any:
        formed = [Directions(*layer) if self.bidirectional else layer[0] for layer in layers]
        return formed[0] if self.single else tuple(formed)

    def _start(self, given: Nest, batch: Opened) -> list[tuple[Nest, ...]]:
        """The initial states of each layer and direction, checked."""
        for cell in self._layers()[0]:
            check_tokens(cell, "input", batch.values)
        begin = start_unmade if given is None and self.initial is None else start
        own = [
            tuple([begin(cell, batch.batch_size, batch.values) for cell in layer])
            for layer in self._layers()
        ]
        if given is None:
            return own if self.initial is None else self._spread(own, batch.batch_size)
        wanted = self._form([tuple(_unbatch(state, batch) for state in layer) for layer in own])
        found = iter(leaves(check_state(given, wanted, "initial_state")))
        states = [
            tuple(
                map_leaves(lambda _: next(found) if batch.batched else next(found)[None], state)
                for state in layer
            )
            for layer in own
        ]
        for cells, layer in zip(self._layers(), states, strict=True):
            for cell, state in zip(cells, layer, strict=True):
                check_states(cell, "initial_state", state)
        return states

    def _spread(self, own: list[tuple[Nest, ...]], batch_size: int) -> list[tuple[Nest, ...]]:
        """Put the learned states in the places of the floating ones, one row a sequence."""
        learned = iter(cast("nn.ParameterList", self.initial))

        def choose_leaf(leaf: Tensor) -> Tensor:
            if not leaf.is_floating_point():
                return leaf
            return next(learned).expand(batch_size, *leaf.shape[1:])

        return [tuple(map_leaves(choose_leaf, state) for state in layer) for layer in own]

    def extra_repr(self) -> str:
        """Give what is not the default."""
        shown = {"bidirectional": False, "batch_first": True, "return_states": False}
        shown |= {"memory": "fast", "precision": None}
        chosen = [f"{k}={getattr(self, k)!r}" for k, default in shown.items()
                  if getattr(self, k) != default]  # fmt: skip
        return ", ".join(chosen + ["learned_initial_state=True"] * (self.initial is not None))


def _as_cells(given: Any, argument: str, single: bool) -> list[nn.Module]:
    return [check_cell(given, argument)] if single else check_cells(given, argument)


def _sizes(cell: nn.Module) -> tuple[Any, ...]:
    return tuple(getattr(cell, name, None) for name in ("input_size", "state_size", "output_size"))


def _fresh(cell: nn.Module) -> nn.Module:
    """Start a copied cell's parameters afresh, where its modules know how."""
    for module in cell.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    return cell


def _unbatch(state: Nest, batch: Opened) -> Nest:
    return state if batch.batched else map_leaves(lambda leaf: leaf[0], state)
