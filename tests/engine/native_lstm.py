"""An LSTM written by hand as passes, forward and backward, like what the compiler makes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.native_passes import BULK, LOOP, REDUCE, Builder, columns, offsets_of, op
from unpad.compiler.program import Operand, Pass
from unpad.engine.native_engine import NativePass


def forward_pass(inputs: int, hidden: int) -> Pass:
    """Streams: x, saved gates [4H], saved tanh(c), h before each token, c before each token, y."""
    b = Builder()
    x, gates, tanh_c = b.stream(inputs), b.stream(4 * hidden), b.stream(hidden)
    h, h_next = b.state(hidden, history=True)
    c, c_next = b.state(hidden, history=True)
    y, pre = b.stream(hidden), b.window(4 * hidden)

    def gate(i: int, operand: Operand = gates) -> Operand:
        return columns(operand, i * hidden, hidden)

    carried = b.scratch(hidden)
    b.phase(BULK, op("linear", pre, x, b.shared(4 * hidden), matrix=b.matrix(inputs, 4 * hidden)))
    b.phase(
        LOOP,
        op("linear", pre, h, pre, matrix=b.matrix(hidden, 4 * hidden)),
        op("sigmoid", gate(0), gate(0, pre)),
        op("sigmoid", gate(1), gate(1, pre)),
        op("tanh", gate(2), gate(2, pre)),
        op("sigmoid", gate(3), gate(3, pre)),
        op("mul", carried, gate(0), gate(2)),
        op("mul_add", c_next, gate(1), c, carried),
        op("tanh", tanh_c, c_next),
        op("mul", h_next, gate(3), tanh_c),
        op("copy", y, h_next),
    )
    return b.build()


def backward_pass(inputs: int, hidden: int) -> Pass:
    """Streams: x, gates, tanh(c), h before, c before, dy, dx. Matrices: U^T, W^T."""
    b = Builder()
    x, gates, tanh_c = b.stream(inputs), b.stream(4 * hidden), b.stream(hidden)
    h, c, dy, dx = b.stream(hidden), b.stream(hidden), b.stream(hidden), b.stream(inputs)
    dh, dh_next = b.state(hidden, history=False)
    dc, dc_next = b.state(hidden, history=False)
    pre = b.window(4 * hidden)

    def gate(i: int, operand: Operand = gates) -> Operand:
        return columns(operand, i * hidden, hidden)

    g, s, d = b.scratch(hidden), b.scratch(hidden), b.scratch(hidden)
    b.phase(
        LOOP,
        op("add", g, dy, dh),
        op("mul", s, g, tanh_c),
        op("sigmoid_grad", gate(3, pre), s, gate(3)),
        op("mul", s, g, gate(3)),
        op("tanh_grad", s, s, tanh_c),
        op("add", d, s, dc),
        op("mul", s, d, gate(2)),
        op("sigmoid_grad", gate(0, pre), s, gate(0)),
        op("mul", s, d, c),
        op("sigmoid_grad", gate(1, pre), s, gate(1)),
        op("mul", s, d, gate(0)),
        op("tanh_grad", gate(2, pre), s, gate(2)),
        op("mul", dc_next, d, gate(1)),
        op("linear", dh_next, pre, matrix=b.matrix(4 * hidden, hidden)),
    )
    b.phase(BULK, op("linear", dx, pre, matrix=b.matrix(4 * hidden, inputs)))
    b.phase(
        REDUCE,
        op("outer", None, x, pre, matrix=b.accumulator(inputs, 4 * hidden)),
        op("outer", None, h, pre, matrix=b.accumulator(hidden, 4 * hidden)),
        op("sum_rows", None, pre, matrix=b.accumulator(1, 4 * hidden)),
    )
    return b.build()


@dataclass
class NativeLSTM:
    """torch.nn.LSTM's numbers (gate order i, f, g, o) through the two passes."""

    lstm: torch.nn.LSTM
    reverse: bool = False
    threads: int = 1

    def __post_init__(self) -> None:
        self.passes = [
            NativePass(make(self.lstm.input_size, self.lstm.hidden_size))
            for make in (forward_pass, backward_pass)
        ]

    def __call__(
        self, x: Tensor, lengths: list[int], h0: Tensor, c0: Tensor, dy: Tensor
    ) -> dict[str, Tensor]:
        w, u, b1, b2 = (p.detach() for p in self.lstm.parameters())
        tokens, hidden, batch = len(x), self.lstm.hidden_size, len(lengths)
        gates, tanh_c, h, c, y = (x.new_empty(tokens, k * hidden) for k in (4, 1, 1, 1, 1))
        final = [x.new_empty(batch, hidden) for _ in range(2)]
        common = {"dtype": x.dtype, "offsets": offsets_of(lengths), "threads": self.threads}
        self.passes[0].run(
            streams=[x, gates, tanh_c, h, c, y],
            shared=[b1 + b2],
            matrices=[w.T, u.T],
            initial=[h0, c0],
            final=final,
            reverse=self.reverse,
            **common,
        )
        dx = torch.empty_like(x)
        dstates = [x.new_empty(batch, hidden) for _ in range(2)]
        sums = [x.new_empty(k, 4 * hidden) for k in (x.shape[1], hidden, 1)]
        self.passes[1].run(
            streams=[x, gates, tanh_c, h, c, dy, dx],
            matrices=[u, w],
            accumulators=sums,
            initial=[torch.zeros_like(h0), torch.zeros_like(c0)],
            final=dstates,
            reverse=not self.reverse,
            **common,
        )
        names = ["y", "h", "c", "dx", "dh0", "dc0", "dw", "du", "db"]
        return dict(
            zip(names, [y, *final, dx, *dstates, sums[0].T, sums[1].T, sums[2][0]], strict=True)
        )
