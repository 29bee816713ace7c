"""Random small cells, for the engines' tests: any seed gives a cell of some structure.

A cell holds a recipe: steps that each make a new value from the values so far (the input, the
states, what earlier steps made). The recipe is drawn when the cell is built, so ``forward`` has no
choice in it, and its repr prints it. States are squashed to keep a long run tame.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from unpad.cells import Cell

SEEDS = range(40)
"""Seeds whose cells between them use every step below and every kind of state."""


def random_cell(seed: int, dtype: torch.dtype = torch.float64) -> Cell:
    """Build the cell of a seed; its numbers are drawn from the seed too."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return RandomCell(seed).to(dtype)


class RandomCell(Cell):
    """States: 1 to 3 vectors; now and then an integer step counter or a matrix too."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        draw = random.Random(seed)
        self.seed = seed
        self.input_size = draw.randint(1, 6)
        self.widths = [draw.randint(1, 6) for _ in range(draw.randint(1, 3))]
        self.counts = draw.random() < 0.3
        self.matrix = torch.Size([draw.randint(1, 3), 2]) if draw.random() < 0.25 else None
        extra = [torch.Size([])] * self.counts + [self.matrix] * (self.matrix is not None)
        sizes = (*self.widths, *extra)
        self.state_size = sizes if len(sizes) > 1 or draw.random() < 0.3 else sizes[0]
        self.pieces = nn.ModuleList()
        widths = [self.input_size, *self.widths]
        for _ in range(draw.randint(2, 6)):
            piece = draw.choice(PIECES)(draw, widths)
            self.pieces.append(piece)
            widths.append(piece.width)
        self.writers = nn.ModuleList(Write(draw, widths, width) for width in self.widths)
        self.output = draw.randrange(len(widths))
        self.output_size = widths[self.output]
        if self.matrix is not None:
            self.into_matrix = nn.Linear(self.widths[0], self.matrix.numel())

    def initial_state(self, batch_size, *, dtype=None, device=None):
        state = super().initial_state(batch_size, dtype=dtype, device=device)
        if not self.counts:
            return state
        place = len(self.widths)
        return (*state[:place], state[place].to(torch.int64), *state[place + 1 :])

    def forward(self, x, state):
        single = not isinstance(state, tuple)
        states = (state,) if single else state
        vectors, rest = states[: len(self.widths)], list(states[len(self.widths) :])
        values = [x, *vectors]
        for piece in self.pieces:
            values.append(piece(values))
        new = [write(values, old) for write, old in zip(self.writers, vectors, strict=True)]
        if self.counts:
            # The counter steers the first state: it must be kept, and kept exactly.
            even = (rest[0] % 2 == 0).unsqueeze(1)
            new[0] = torch.where(even, new[0], 0.5 * new[0])
            rest[0] = rest[0] + 1
        if self.matrix is not None:
            update = self.into_matrix(new[0]).reshape(-1, *self.matrix)
            rest[-1] = torch.tanh(0.5 * rest[-1] + update)
        output = values[self.output]
        return output, new[0] if single else (*new, *rest)


class Piece(nn.Module):
    """One step of a recipe: a function of the values so far, with a known width."""

    width: int

    def __init__(self, draw: random.Random, widths: list[int]) -> None:
        super().__init__()
        self.source = draw.randrange(len(widths))
        self.other = draw.randrange(len(widths))
        self.build(draw, widths[self.source], widths[self.other])

    def build(self, draw: random.Random, width: int, other: int) -> None:
        self.width = width

    def forward(self, values: list[Tensor]) -> Tensor:
        return self.step(values[self.source], values[self.other])

    def step(self, a: Tensor, b: Tensor) -> Tensor:
        raise NotImplementedError

    def extra_repr(self) -> str:
        return f"{self.source}, {self.other} -> {self.width}"


class Linear(Piece):
    def build(self, draw, width, other):
        self.width = draw.randint(1, 6)
        self.map = nn.Linear(width, self.width, bias=draw.random() < 0.7)

    def step(self, a, b):
        return self.map(a)


class TwoLinears(Piece):
    def build(self, draw, width, other):
        self.width = draw.randint(1, 6)
        self.first = nn.Linear(width, self.width)
        self.second = nn.Linear(other, self.width, bias=False)

    def step(self, a, b):
        return torch.tanh(self.first(a) + self.second(b))


class Gate(Piece):
    def build(self, draw, width, other):
        self.width = width
        self.map = nn.Linear(other, width)

    def step(self, a, b):
        gate = torch.sigmoid(self.map(b))
        return gate * a + (1 - gate) * torch.tanh(a)


class Elementwise(Piece):
    FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
        torch.tanh, torch.sigmoid, torch.relu, torch.sin, torch.cos, functional.softplus,
        functional.silu, functional.gelu, functional.elu, functional.leaky_relu,
        lambda v: torch.exp(-v * v), lambda v: torch.log1p(v.abs()),
        lambda v: torch.rsqrt(1 + v**2),
        lambda v: v / (1 + v.abs()), lambda v: torch.sqrt(1 + v * v), lambda v: -v.square() * 0.1,
    )  # fmt: skip

    def build(self, draw, width, other):
        self.width = width
        self.function = draw.randrange(len(self.FUNCTIONS))

    def step(self, a, b):
        return self.FUNCTIONS[self.function](a)


class Scale(Piece):
    """Vectors of parameters, as peepholes have; and a single learned number."""

    def build(self, draw, width, other):
        self.width = width
        self.weight = nn.Parameter(torch.randn(width))
        self.shift = nn.Parameter(torch.randn(()))

    def step(self, a, b):
        return torch.tanh(a * self.weight + self.shift)


class LayerNorm(Piece):
    def build(self, draw, width, other):
        # Wide enough to keep away from a variance of nothing, where the gradient is a cliff.
        self.width = draw.randint(3, 6)
        self.map = nn.Linear(width, self.width)
        self.norm = nn.LayerNorm(self.width, eps=0.1, elementwise_affine=draw.random() < 0.6)

    def step(self, a, b):
        return self.norm(self.map(a))


class HandNorm(Piece):
    """A normalisation written by hand, from mean and variance."""

    def build(self, draw, width, other):
        self.width = width

    def step(self, a, b):
        centred = a - a.mean(dim=1, keepdim=True)
        return centred / torch.sqrt(a.var(dim=1, keepdim=True, unbiased=False) + 0.1)


class Softmax(Piece):
    def build(self, draw, width, other):
        self.width = draw.randint(2, 6)
        self.map = nn.Linear(width, self.width)
        self.log = draw.random() < 0.4

    def step(self, a, b):
        function = torch.log_softmax if self.log else torch.softmax
        return function(self.map(a), dim=-1)


class Clamp(Piece):
    def step(self, a, b):
        return torch.clamp(a, -0.4, 0.7)


class Where(Piece):
    def build(self, draw, width, other):
        self.width = width
        self.map = nn.Linear(other, width)

    def step(self, a, b):
        mapped = self.map(b)
        return torch.where(mapped > 0.1, a, 0.3 * mapped)


class Extremes(Piece):
    def build(self, draw, width, other):
        self.width = width
        self.map = nn.Linear(other, width)

    def step(self, a, b):
        return torch.maximum(a, self.map(b)) - 0.5 * torch.minimum(a, self.map(b) + 0.2)


class ChunkAndCat(Piece):
    """Three gates out of one product, put together in another order."""

    def build(self, draw, width, other):
        self.part = draw.randint(1, 3)
        self.width = 2 * self.part + other
        self.map = nn.Linear(width, 3 * self.part)

    def step(self, a, b):
        first, second, third = self.map(a).chunk(3, dim=1)
        return torch.cat([torch.sigmoid(third) * first, torch.tanh(b), second], dim=1)


class Slice(Piece):
    def build(self, draw, width, other):
        self.start = draw.randrange(width)
        self.end = draw.randint(self.start + 1, width)
        self.width = self.end - self.start

    def step(self, a, b):
        return a[:, self.start : self.end]


class Reduce(Piece):
    """A number a row, spread over features again."""

    def build(self, draw, width, other):
        self.width = other
        self.kind = draw.choice(("sum", "mean", "amax"))

    def step(self, a, b):
        return torch.tanh(getattr(a, self.kind)(dim=1, keepdim=True) * b)


class Heads(Piece):
    """A block-diagonal product: every head has a matrix of its own."""

    def build(self, draw, width, other):
        self.heads, self.inner = draw.randint(1, 3), draw.randint(1, 3)
        self.width = self.heads * self.inner
        self.map = nn.Linear(width, self.width)
        self.weight = nn.Parameter(torch.randn(self.heads, self.inner, self.inner) * 0.5)

    def step(self, a, b):
        heads = self.map(a).reshape(-1, self.heads, self.inner)
        return torch.einsum("bhi,hij->bhj", heads, self.weight).reshape(-1, self.width)


class Attention(Piece):
    """Attention over a captured memory, which is no parameter and yet gets a gradient."""

    def build(self, draw, width, other):
        self.width = draw.randint(1, 5)
        self.query = nn.Linear(width, self.width)
        self.register_buffer("memory", torch.randn(draw.randint(1, 4), self.width))

    def step(self, a, b):
        weights = torch.softmax(self.query(a) @ self.memory.t(), dim=1)
        return weights @ self.memory


class SharedTransposed(Piece):
    """One matrix used twice, there and back."""

    def build(self, draw, width, other):
        self.width = width
        self.weight = nn.Parameter(torch.randn(draw.randint(1, 5), width) * 0.5)

    def step(self, a, b):
        return torch.tanh(functional.linear(torch.tanh(a @ self.weight.t()), self.weight.t()))


PIECES = (
    Linear, TwoLinears, Gate, Elementwise, Elementwise, Scale, LayerNorm, HandNorm, Softmax, Clamp,
    Where, Extremes, ChunkAndCat, Slice, Reduce, Heads, Attention, SharedTransposed,
)  # fmt: skip


class Write(nn.Module):
    """A state's new value: a mix of its old one and of something made of two values."""

    def __init__(self, draw: random.Random, widths: list[int], width: int) -> None:
        super().__init__()
        self.sources = [draw.randrange(len(widths)), len(widths) - 1]
        self.map = nn.Linear(sum(widths[source] for source in self.sources), width)
        self.gate = nn.Linear(width, width) if draw.random() < 0.5 else None

    def forward(self, values: list[Tensor], old: Tensor) -> Tensor:
        candidate = torch.tanh(self.map(torch.cat([values[source] for source in self.sources], 1)))
        if self.gate is None:
            return 0.5 * old + 0.5 * candidate
        keep = torch.sigmoid(self.gate(old))
        return keep * old + (1 - keep) * candidate
