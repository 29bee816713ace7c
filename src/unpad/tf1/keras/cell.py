"""What Keras's cells share: three weights, their names, layouts and start."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter, is_lazy

from unpad.cells.arguments import check_flag, check_size
from unpad.cells.cell import size_of
from unpad.cells.step import CheckedCell
from unpad.errors import ArgumentError
from unpad.tf1.activations import activation_of
from unpad.tf1.keras.arguments import common_arguments, dropout_rate
from unpad.tf1.keras.initializers import Initializer, initializer_of
from unpad.tf1.keras.weights import KerasWeights, width_in
from unpad.tf1.layer_norm import drop


class KerasCell(KerasWeights, CheckedCell):
    """A cell with ``kernel`` [I, G*H], ``recurrent_kernel`` [H, G*H] and a ``bias``, or None.

    G is the number of gates, H the units. A layer calls it as any `unpad.Cell`.

    Attributes:
        input_size: I, features of a token; None until the kernel is made.
        units: H.
        columns: G*H.
    """

    kernel: Tensor
    recurrent_kernel: Tensor
    bias: Tensor | None

    def __init__(
        self,
        units: int,
        gates: int,
        *,
        activation: Any,
        use_bias: bool,
        bias_rows: int | None = None,
        kernel_initializer: Any = "glorot_uniform",
        recurrent_initializer: Any = "orthogonal",
        bias_initializer: Any = "zeros",
        dropout: float = 0.0,
        recurrent_dropout: float = 0.0,
        implementation: int = 2,
        input_size: int | None = None,
        name: str | None = None,
        device: Any = None,
        **keras: Any,
    ) -> None:
        """Make the weights; ``bias_rows``: a bias [rows, G*H] in place of [G*H]."""
        super().__init__()
        common = common_arguments(type(self).__name__, keras)
        self.dropout = dropout_rate("dropout", dropout)
        self.recurrent_dropout = dropout_rate("recurrent_dropout", recurrent_dropout)
        self.units = check_size("units", units)
        self.columns = gates * self.units
        self.input_size = None
        self.name = name
        # Of Keras: 1 has a mask for each gate; the numbers are the same without dropout.
        self.implementation = 1 if recurrent_dropout else implementation
        self.activation = activation_of("activation", activation)
        self.use_bias = check_flag("use_bias", use_bias)
        self.initializers: dict[str, Initializer] = {
            "kernel": initializer_of("kernel_initializer", kernel_initializer),
            "recurrent_kernel": initializer_of("recurrent_initializer", recurrent_initializer),
            "bias": initializer_of("bias_initializer", bias_initializer),
        }
        self.trainable: bool = common["trainable"]
        self._where: dict[str, Any] = {"device": device, "dtype": common["dtype"]}
        if input_size is None:
            input_size = common["input_size"]
        # The one weight whose shape depends on the input. It is a parameter from the start, so that
        # an optimizer made before the first call holds all of them.
        self.kernel = UninitializedParameter(self.trainable, **self._where)  # pyright: ignore[reportArgumentType]
        self.recurrent_kernel = self._empty(self.units, self.columns)
        shape = (self.columns,) if bias_rows is None else (bias_rows, self.columns)
        self.register_parameter("bias", self._empty(*shape) if use_bias else None)
        self.state_size = self.units
        if input_size is not None:
            self.build(check_size("input_size", input_size))
        self._reset_own()
        if common["weights"] is not None:
            self.set_weights(common["weights"])

    def _empty(self, *shape: int) -> nn.Parameter:
        return nn.Parameter(torch.empty(shape, **self._where), self.trainable)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Take one step; a kernel that waits for its width is told in words."""
        if self.input_size is None:
            size_of(self, "input_size")
        return super().__call__(*args, **kwargs)

    def build(self, input_size: Any) -> None:
        """Make the kernel for inputs of this width, or shape; does nothing the second time.

        Raises:
            ArgumentError: the kernel is there already, for another width.
        """
        input_size = width_in(input_size)
        if is_lazy(self.kernel):
            with torch.inference_mode(False):  # weights that can learn, whoever makes them
                self.kernel.materialize((input_size, self.columns))  # pyright: ignore[reportAttributeAccessIssue]
                self._start("kernel", self.kernel)
            self.input_size = input_size
        elif input_size != self.input_size:
            raise ArgumentError(
                "inputs",
                f"{input_size} features",
                f"{self.input_size}, the rows of the kernel",
                "give each width a layer of its own",
            )

    def reset_parameters(self) -> None:
        """Start afresh, by the initializers."""
        if not is_lazy(self.kernel):
            self._start("kernel", self.kernel)
        self._reset_own()

    def _reset_own(self) -> None:
        """Start every weight but the kernel."""
        for name, parameter in self.named_parameters(recurse=False):
            if name != "kernel":
                self._start(name, parameter)

    @torch.no_grad()
    def _start(self, name: str, parameter: Tensor) -> None:
        self.initializers[name](parameter)

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *rest: Any, **named: Any) -> None:
        kernel = state_dict.get(f"{prefix}kernel")
        if is_lazy(self.kernel) and isinstance(kernel, Tensor) and kernel.dim() == 2:
            self.build(kernel.shape[0])
        super()._load_from_state_dict(state_dict, prefix, *rest, **named)

    def from_input(self, x: Tensor) -> Tensor:
        """Give ``dropped(x) kernel + bias``, [rows, G*H]."""
        product = self.input_product(x)
        return product if self.bias is None else product + self.bias

    def input_product(self, x: Tensor) -> Tensor:
        """Give ``dropped(x) kernel``, [rows, G*H]."""
        separate = self.implementation == 1
        return self._product(self._dropped(x, self.dropout, separate), self.kernel)

    def state_product(self, h: Tensor) -> Tensor:
        """Give ``dropped(h) recurrent_kernel``, [rows, G*H]."""
        return self._product(self.dropped_states(h), self.recurrent_kernel)

    def dropped_states(self, h: Tensor) -> list[Tensor]:
        """Give h as each gate reads it; one for all where nothing is dropped."""
        return self._dropped(h, self.recurrent_dropout, True)

    def _dropped(self, value: Tensor, rate: float, separate: bool) -> list[Tensor]:
        """Drop in training mode: one mask for all steps of a sequence, one for each gate or all."""
        if not self.training or rate == 0.0:
            return [value]
        count = self.columns // self.units if separate else 1
        return [drop(value, 1.0 - rate, per_sequence=True) for _ in range(count)]

    def _product(self, values: list[Tensor], kernel: Tensor) -> Tensor:
        if len(values) == 1:
            return values[0] @ kernel
        parts = zip(values, kernel.chunk(len(values), dim=1), strict=True)
        return torch.cat([value @ part for value, part in parts], dim=1)

    def extra_repr(self) -> str:
        """Give the sizes and what is not the default."""
        return f"{self.units}, input_size={self.input_size}" + (
            "" if self.use_bias else ", use_bias=False"
        )
