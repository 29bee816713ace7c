"""Streaming: one token of every sequence at a time, state in, state out.

The obvious way is to call the layer on sequences of length 1, with its state: that checks, packs
and allocates at every token what never changes, and goes through autograd's dispatch. A `Stepper`
does all of it once; a step is then one call into the engine.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from unpad.cells.arguments import check_size
from unpad.cells.cell import feature_shape, first_floating, start_like
from unpad.cells.compose import check_cell
from unpad.compiler.build import Compiled
from unpad.engine import choose
from unpad.engine.stepping import NativeSteps, Place, Watch
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.layers.base import Layers
from unpad.layers.recurrent import Recurrent
from unpad.nest import Nest, leaves, map_leaves, rebuild
from unpad.states import check_state


class Stepper:
    """Runs a cell or a layer token by token, for streams that arrive while one waits.

    The state is kept between calls; `step` takes and returns it instead. The numbers are those of
    the layer on the whole sequence. There are no gradients, and what only training does (dropout)
    is refused.

    The layer is followed: a step after an optimizer's, after ``load_state_dict``, another Parameter
    or attribute sees the new one, and the state goes on. Unseen is what torch counts no version of
    (numbers written through ``.data`` or a NumPy view) and what changes inside of a list or an
    object: then call `refresh`. One thread at a time may use a stepper. Products have the layer's
    own ``precision``; autocast has no say here, and cells that were converted to bfloat16 are
    called step by step.

    Args:
        layer: a cell, or a `Recurrent`, `RNN`, `GRU` or `LSTM` of one direction.
        batch_size: number of streams, B; every input, output and state then has B rows. None: one
            stream, without a batch axis.

    Attributes:
        engine: "native", or "eager" where the cell cannot be compiled or runs on another device:
            then a step is a call of the cells.

    Raises:
        ArgumentError: two directions (the second starts at the end, which a stream has not yet);
            dropout in training mode.
        ArgumentTypeError: neither a cell nor a layer.

    >>> import unpad
    >>> layer = unpad.nn.LSTM(3, 8).eval()
    >>> stepper = unpad.Stepper(layer)
    >>> tokens = torch.randn(5, 3)
    >>> outputs = torch.stack([stepper(x) for x in tokens])
    >>> torch.allclose(outputs, layer(tokens)[0], atol=1e-6)
    True
    """

    def __init__(self, layer: nn.Module, batch_size: int | None = None) -> None:
        self._layer = _check_layer(layer)
        self._alone = batch_size is None
        self._rows = 1 if batch_size is None else check_size("batch_size", batch_size)
        like = first_floating(layer)
        self._like = torch.empty(0) if like is None else like.detach()
        size = feature_shape(cast("Any", layer).input_size, "input_size")
        self._x_shape = size if self._alone else torch.Size([self._rows, *size])
        self.refresh()

    def refresh(self) -> None:
        """Take the layer as it is now, training mode and attributes too. The state starts anew."""
        _refuse_training(self._layer)
        self._cells = _cells(self._layer)
        start = _start(self._layer, self._rows, self._like)
        self._initial = map_leaves(lambda leaf: leaf.detach().clone(), start)
        self._now = map_leaves(torch.clone, self._initial)
        self._native = self._compiled()
        self._watch = Watch(self._layer, [] if self._native is None else self._native.weights)
        self.engine = "eager" if self._native is None else "native"
        # What inputs and states look like in memory, and what results are made like.
        self._x = self._like.new_empty(self._x_shape)
        self._states = [self._shown(leaf).contiguous() for leaf in leaves(self._now)]
        self._flat = type(self._now) is tuple and len(self._now) == len(self._states)
        if self._native is not None:
            rows = () if self._alone else (self._rows,)
            self._y = self._like.new_empty((*rows, *self._native.output_shape))
            self._x_array, self._y_array = self._x.numpy(), self._y.numpy()
            self._state_arrays = [leaf.numpy() for leaf in self._states]

    def _again(self) -> None:
        """Take the layer as it is now and go on with the state, which must still fit."""
        kept = self.state
        self.refresh()
        self.state = kept

    def _compiled(self) -> NativeSteps | None:
        """The engine's steps, or None where the cells must be called."""
        x = self._like.new_zeros(self._rows, *self._x_shape[not self._alone :])
        if x.dtype is torch.bfloat16 or not choose.wants_native(x):
            return None
        if any(t.dtype is not x.dtype for t in leaves(self._now)):
            return None
        programs: list[Compiled] = []
        with torch.no_grad():
            for cell, state in zip(self._cells, _parts(self._layer, self._now), strict=True):
                found = choose.compiled(cell, x, state)
                if not isinstance(found, Compiled) or found.output_dtype is not x.dtype:
                    return None
                if found.step.noises:
                    raise ArgumentError(
                        "layer",
                        f"{type(cell).__name__} in training mode, which draws random numbers",
                        "a layer that gives the same numbers at every run",
                        "call layer.eval() first",
                    )
                programs.append(found)
                x = x.new_zeros(self._rows, *found.output_shape)
        precision = _precision(self._layer) if x.dtype is torch.float32 else "float32"
        states = leaves(self._now)
        return NativeSteps(programs, states, self._places(), self._rows, x.dtype, precision)

    def _places(self) -> list[list[Place]]:
        """Where each cell's states lie within the leaves of the layer's state."""
        starts = [(leaf.data_ptr(), i) for i, leaf in enumerate(leaves(self._now))]
        places: list[list[Place]] = []
        for part in _parts(self._layer, self._now):
            found: list[Place] = []
            for leaf in leaves(part):
                start, number = max(s for s in starts if s[0] <= leaf.data_ptr())
                found.append(Place(number, leaf.data_ptr() - start))
            places.append(found)
        return places

    @property
    def state(self) -> Nest:
        """A copy of the state after the last step, formed like the layer's final state.

        Assigning to it goes on from another state (a copy is taken). Raises ArgumentError or
        ArgumentTypeError where the form or a shape is wrong.
        """
        return map_leaves(lambda leaf: self._shown(leaf).clone(), self._now)

    @state.setter
    def state(self, state: Nest) -> None:
        given = check_state(state, map_leaves(self._shown, self._now), "state")
        for mine, new in zip(leaves(self._now), leaves(given), strict=True):
            self._shown(mine).copy_(new)

    def reset(self, rows: Any = None) -> None:
        """Start anew: every stream, or those of the given rows (an int, a list, a mask)."""
        for mine, start in zip(leaves(self._now), leaves(self._initial), strict=True):
            if rows is None:
                mine.copy_(start)
            else:
                axis = self._batch_axis
                chosen = torch.arange(self._rows, device=mine.device)[rows].reshape(-1)
                mine.index_copy_(axis, chosen, start.index_select(axis, chosen))

    @property
    def _batch_axis(self) -> int:
        return 1 if isinstance(self._layer, Layers) else 0

    def _shown(self, leaf: Tensor) -> Tensor:
        """A leaf as the caller sees it."""
        return leaf.squeeze(self._batch_axis) if self._alone else leaf

    def __call__(self, x: Any) -> Any:
        """Take one token of every stream and go on.

        Args:
            x: [B, features], or [features] for one stream; a tensor or a NumPy array, of the dtype
                of the parameters.

        Returns:
            The output [B, output features], or [output features]; of the kind of ``x``.

        Raises:
            ArgumentError, ArgumentTypeError: another shape, dtype or kind. The state stays.
        """
        if not self._watch.still():
            self._again()
        native = self._native
        if native is None or not self._ready(x):
            return self._slowly(x, None)[0]
        native.follow()
        if isinstance(x, Tensor):
            y = torch.empty_like(self._y)
            native.step(x.data_ptr(), y.data_ptr())
        else:
            y = np.empty_like(self._y_array)
            native.step_arrays(x, y)
        return y

    def step(self, x: Any, state: Nest) -> tuple[Any, Nest]:
        """One step from a given state: ``(output, new state)``; the stepper's own state stays.

        Args:
            x: as for a call.
            state: formed like the layer's final state, of the kind of ``x``. It is not changed.
                None: the layer's initial state.

        Raises:
            ArgumentError, ArgumentTypeError: another shape, dtype or form.
        """
        if not self._watch.still():
            self._again()
        native = self._native
        if state is None:
            state = map_leaves(self._shown, self._initial)
        flat = self._flat and type(state) is tuple
        given: list[Any] = list(state) if flat else leaves(state)
        if native is None or not (self._ready(x) and self._ready_states(given, x)):
            return self._slowly(x, state)
        native.follow()
        if isinstance(x, Tensor):
            y = torch.empty_like(self._y)
            new = [torch.empty_like(leaf) for leaf in self._states]
            before, after = [t.data_ptr() for t in given], [t.data_ptr() for t in new]
            native.step_from(x.data_ptr(), y.data_ptr(), before, after)
        else:
            y = np.empty_like(self._y_array)
            new = [np.empty_like(leaf) for leaf in self._state_arrays]
            native.step_from_arrays(x, y, given, new)
        return y, tuple(new) if flat else rebuild(state, new)

    def _ready(self, x: Any) -> bool:
        """Whether the engine can read a token as it lies."""
        if type(x) is Tensor:
            return _same(x, self._x)
        return type(x) is np.ndarray and _same_array(x, self._x_array)

    def _ready_states(self, given: list[Any], x: Any) -> bool:
        tensors = type(x) is Tensor
        wanted: list[Any] = self._states if tensors else self._state_arrays
        if len(given) != len(wanted):
            return False
        kind: Any = Tensor if tensors else np.ndarray
        same: Any = _same if tensors else _same_array
        for leaf, like in zip(given, wanted, strict=True):  # a generator would cost as much again
            if type(leaf) is not kind or not same(leaf, like):
                return False
        return True

    def _slowly(self, x: Any, state: Nest) -> tuple[Any, Nest]:
        """A step of an input that is not yet as the engine takes it, or of cells without it."""
        tensor = self._checked(_as_tensor(x, "x"))
        back = _as_array if isinstance(x, np.ndarray) else _as_it_is
        shown = map_leaves(self._shown, self._now)
        if state is None:
            if self._native is not None:
                return back(self(tensor)), None
            y, self.state = self._eagerly(tensor, shown)
            return back(y), None
        given = check_state(
            map_leaves(lambda leaf: _as_tensor(leaf, "state"), state), shown, "state"
        )
        given = map_leaves(lambda leaf, like: leaf.to(like).contiguous(), given, shown)
        run = self._eagerly if self._native is None else self.step
        y, new = run(tensor, given)
        return back(y), map_leaves(back, new)

    def _checked(self, x: Tensor) -> Tensor:
        if x.shape != self._x_shape:
            raise ArgumentError(
                "x",
                f"a tensor of shape {list(x.shape)}",
                f"{list(self._x_shape)}: one token of every stream",
                "give each stream's next token; for whole sequences call the layer",
            )
        # Whole numbers may be what a cell of one's own looks up; the layers take none.
        free = self._native is None and not isinstance(self._layer, Layers)
        if x.dtype is not self._like.dtype and (x.is_floating_point() or not free):
            raise ArgumentError(
                "x",
                x.dtype,
                f"{self._like.dtype}, the dtype of the parameters",
                f"convert it: x.to({self._like.dtype})",
            )
        return x.detach().to(self._like.device).contiguous()

    @torch.no_grad()
    def _eagerly(self, x: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        """A call of each cell in turn."""
        axis = self._batch_axis
        own = map_leaves(lambda leaf: leaf.unsqueeze(axis), state) if self._alone else state
        y = x[None] if self._alone else x
        new: list[Nest] = []
        for cell, part in zip(self._cells, _parts(self._layer, own), strict=True):
            y, after = cell(y, part)
            new.append(after)
        joined = _joined(self._layer, own, new)
        return (y[0] if self._alone else y), map_leaves(self._shown, joined)

    def __repr__(self) -> str:
        batch = "" if self._alone else f", batch_size={self._rows}"
        return f"Stepper({type(self._layer).__name__}{batch}, engine={self.engine!r})"


# -- tensors and arrays ----------------------------------------------------------------------------


def _same(value: Tensor, like: Tensor) -> bool:
    """Whether the numbers lie in memory as those of ``like`` do."""
    return (
        value.shape == like.shape
        and value.dtype is like.dtype
        and value.is_cpu
        and value.is_contiguous()
        and not value.is_neg()
    )


def _same_array(value: Any, like: Any) -> bool:
    same = value.shape == like.shape and value.dtype == like.dtype
    return same and value.flags.c_contiguous and value.flags.writeable


def _as_tensor(value: Any, argument: str) -> Tensor:
    if isinstance(value, Tensor):
        return value.detach().resolve_neg().as_subclass(Tensor)
    if isinstance(value, np.ndarray) and cast("Any", value).dtype.kind in "fiub":
        native = cast("Any", value).dtype.newbyteorder("=")
        return torch.from_numpy(np.array(value, dtype=native, order="C"))
    allowed = "a tensor or a NumPy array of numbers"
    raise ArgumentTypeError(argument, value, allowed, "convert it with torch.as_tensor")


def _as_it_is(value: Tensor) -> Tensor:
    return value


def _as_array(value: Tensor) -> Any:
    return value.numpy(force=True)


# -- what is stepped -------------------------------------------------------------------------------


def _check_layer(layer: Any) -> nn.Module:
    if not isinstance(layer, (Layers, Recurrent)):
        return check_cell(layer, "layer")
    if layer.bidirectional:
        raise ArgumentError(
            "layer",
            f"{type(layer).__name__}(bidirectional=True)",
            "a layer of one direction: the other begins at the end of the stream",
            "train the layer with bidirectional=False, or run it over whole chunks",
        )
    return cast("nn.Module", layer)


def _precision(layer: nn.Module) -> str:
    """Of products; a cell's attribute of that name may mean anything."""
    chosen = layer.precision if isinstance(layer, (Layers, Recurrent)) else None
    return chosen or "float32"


def _refuse_training(layer: nn.Module) -> None:
    if isinstance(layer, Layers) and layer.training and layer.dropout:
        raise ArgumentError(
            "layer",
            f"dropout={layer.dropout} in training mode",
            "a layer that gives the same numbers at every run",
            "call layer.eval() first",
        )


def _cells(layer: nn.Module) -> list[nn.Module]:
    if isinstance(layer, Layers):
        return [layer.cell_with_weights(place) for place in range(layer.num_layers)]
    return list(layer.cells) if isinstance(layer, Recurrent) else [layer]


def _start(layer: nn.Module, rows: int, like: Tensor) -> Nest:
    if isinstance(layer, (Layers, Recurrent)):
        return layer.start_state(rows, like)
    return start_like(layer, rows, dtype=like.dtype, device=like.device)


def _parts(layer: nn.Module, state: Nest) -> list[Nest]:
    """The state of each cell: views of the layer's."""
    if isinstance(layer, Layers):
        flat = leaves(state)
        alone = not isinstance(state, tuple)
        return [
            flat[0][n] if alone else tuple(leaf[n] for leaf in flat)
            for n in range(layer.num_layers)
        ]
    several = isinstance(layer, Recurrent) and not layer.single
    return list(state) if several else [state]


def _joined(layer: nn.Module, like: Nest, parts: list[Nest]) -> Nest:
    """The layer's state of its cells' states."""
    if isinstance(layer, Layers):
        columns = zip(*(leaves(part) for part in parts), strict=True)
        return rebuild(like, [torch.stack(column) for column in columns])
    return rebuild(like, [leaf for part in parts for leaf in leaves(part)])
