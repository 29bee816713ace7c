"""What TensorFlow 1's cells have in common: weights made when the input's width is known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from unpad.cells import Cell
from unpad.cells.arguments import check_dtype, check_size
from unpad.cells.cell import feature_shape, is_nested
from unpad.cells.step import check_alike, check_shapes
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.nest import Nest, describe, leaves
from unpad.tf1.state import LSTMStateTuple
from unpad.tf1.waiting import waiting_if_refused

Initializer = Callable[[Tensor], Any]


class RNNCell(Cell):
    """Base of TensorFlow 1's cells.

    The weights are made at the first call, when the width of the input is known, by
    ``build(input_size)`` or by ``load_state_dict``; until then they are parameters without a size,
    which an optimizer takes. They belong to the cell: calling it again, or in another function,
    adds none. Names, layouts and the order of the columns are TensorFlow's, so that a checkpoint's
    variables fit as they are.

    A cell of your own may have a ``call(inputs, state)`` as in TensorFlow, or a ``forward``.

    Attributes:
        input_size: features of the input; None before the weights are made.
        scope: the cell's part of its variables' names.
        around: whether other cells do the work, so that inputs may be nests if those take them.

    Source: TensorFlow 1, ``tf.nn.rnn_cell.RNNCell``.

    >>> class Sum(RNNCell):
    ...     state_size = 3
    ...     def forward(self, x, state):
    ...         return x + state, x + state
    >>> output, state = Sum()(torch.ones(2, 3), Sum().zero_state(2))
    >>> output.tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """

    scope = ""
    around = False  # a cell around a cell, which may take nests

    def __init__(self, *, name: str | None = None, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        check_dtype(dtype)
        self.input_size = None
        self._dtype = dtype
        if name is not None:
            if not isinstance(name, str) or not name:  # pyright: ignore[reportUnnecessaryIsInstance]
                raise ArgumentTypeError("name", name, "a string, or None", "leave it out")
            self.scope = name

    def _declare(self, *names: str) -> None:
        """Weights whose sizes are not known yet: an optimizer may have them already."""
        for name in names:
            self.register_parameter(name, cast("nn.Parameter", UninitializedParameter()))

    def build(self, input_size: int, *, dtype: Any = None, device: Any = None) -> None:
        """Make the weights for inputs of ``input_size`` features; again for the same size: nothing.

        Raises:
            ArgumentError: the weights are there, for inputs of another width.
        """
        if self.input_size == input_size:
            return
        check_size("input_size", input_size, least=0)
        if self.input_size is not None:
            raise ArgumentError(
                "inputs",
                f"{input_size} features",
                f"{self.input_size}, what the {type(self).__name__}'s weights were made for",
                "use a cell of its own for inputs of another width",
            )
        self.input_size = input_size
        with torch.inference_mode(False):  # weights that can learn, whoever makes them
            self._make(input_size, {"dtype": self._dtype or dtype, "device": device})

    def _make(self, input_size: int, where: dict[str, Any]) -> None:
        """Make the weights; a cell that has none, or that has them already, leaves this be."""

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any, **named: Any) -> None:
        for name in ("kernel", "gates_kernel"):
            kernel = state_dict.get(prefix + name)
            if self.input_size is None and isinstance(kernel, Tensor) and kernel.dim() == 2:
                (below,) = feature_shape(self.output_size)
                self.build(kernel.shape[0] - below, dtype=kernel.dtype)
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the cell; weights that a call made which is refused are unmade again."""
        if self.input_size is not None:
            return super().__call__(*args, **kwargs)
        with waiting_if_refused(self):
            return super().__call__(*args, **kwargs)

    def _open(self, x: Any, state: Nest) -> None:
        """Make the weights for the first x, and refuse what is no step.

        What is around a cell leaves a nest to that cell.
        """
        if isinstance(x, Tensor):
            if self.input_size is None:
                if x.dim() != 2:
                    found = f"a tensor of shape {list(x.shape)}"
                    remedy = "dynamic_rnn takes sequences"
                    raise ArgumentError("x", found, "[rows, features], one step", remedy)
                if not x.is_floating_point():
                    remedy = "numbers of words or classes go through nn.Embedding; others: .float()"
                    raise ArgumentTypeError("x", f"{x.dtype}", "a floating dtype", remedy)
                self.build(x.shape[-1], dtype=x.dtype, device=x.device)
            check_shapes(self, x, state)
            check_alike(self, x, state)
        elif not (self.around and all(isinstance(leaf, Tensor) for leaf in leaves(x))):
            raise ArgumentTypeError(
                "inputs",
                describe(x),
                f"one tensor, which is what a {type(self).__name__} takes",
                "join a nest's tensors: torch.cat(inputs, -1)",
            )

    def forward(self, x: Tensor, state: Nest) -> tuple[Tensor, Nest]:
        """Take x [rows, I] and the state; give the output and the new state, by ``call``."""
        call = getattr(self, "call", None)
        return super().forward(x, state) if call is None else call(x, state)

    def zero_state(self, batch_size: int, dtype: torch.dtype | None = None) -> Nest:
        """Give zeros [batch_size, features] for each state, in the state's own form."""
        check_size("batch_size", batch_size, least=0)
        check_dtype(dtype)
        return self.initial_state(batch_size, dtype=dtype)

    def initial_state(
        self,
        batch_size: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Nest:
        """Give the zero state."""
        return state_like(
            self.state_size, super().initial_state(batch_size, dtype=dtype, device=device)
        )

    def variables(self) -> dict[str, nn.Parameter]:
        """Give the parameters by their TensorFlow names, below the scope of the call.

        The names are those of a checkpoint without the scope that the function adds (``rnn/`` or
        ``bidirectional_rnn/fw/``).

        Raises:
            ArgumentError: the weights are not made yet.
        """
        self._check_built()
        own = {name.replace("_kernel", "/kernel"): value for name, value in self._own()}
        own = {name.replace("_bias", "/bias"): value for name, value in own.items()}
        return {f"{self.scope}/{name}": value for name, value in own.items()}

    def _check_built(self) -> None:
        if any(isinstance(value, UninitializedParameter) for value in self.parameters()):
            raise ArgumentError(
                "cell",
                f"{type(self).__name__} whose weights are not made yet",
                "a cell that knows the width of its input",
                "call build(input_size) first",
            )

    def _own(self) -> list[tuple[str, nn.Parameter]]:
        return list(self.named_parameters(recurse=False))


def state_like(size: Any, state: Nest) -> Nest:
    """Return a state with an `LSTMStateTuple` wherever its size has one."""
    if not is_nested(size):
        return state
    parts = [state_like(*pair) for pair in zip(size, state, strict=True)]
    return LSTMStateTuple(*parts) if isinstance(size, LSTMStateTuple) else tuple(parts)


def make_kernel(
    cell: nn.Module, name: str, rows: int, columns: int, where: dict[str, Any], init: Any = None
) -> None:
    """Fill a cell's matrix [rows, columns], from Glorot's uniform distribution over all of it.

    Source: Glorot and Bengio (2010), equation 16: TensorFlow 1's default.
    """
    _fill(cell, name, (rows, columns), where, init or nn.init.xavier_uniform_)


def make_vector(
    cell: nn.Module, name: str, size: int, where: dict[str, Any], init: Any = None
) -> None:
    """Fill a cell's vector [size], with zeros unless ``init`` does it."""
    _fill(cell, name, (size,), where, init or nn.init.zeros_)


def _fill(
    cell: nn.Module, name: str, shape: tuple[int, ...], where: dict[str, Any], init: Any
) -> None:
    parameter = cell.get_parameter(name)
    assert isinstance(parameter, UninitializedParameter)
    parameter.materialize(shape, **where)
    with torch.no_grad():
        init(parameter)


def check_initializer(argument: str, given: Any) -> Initializer | None:
    """Refuse what cannot fill a tensor."""
    if given is not None and not callable(given):
        raise ArgumentTypeError(
            argument,
            given,
            "a function that fills a tensor in place, or None",
            "such as torch.nn.init.orthogonal_",
        )
    return given
