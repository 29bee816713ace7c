"""Steps of one token on the native engine: programs that follow each other, prepared once."""

from __future__ import annotations

from operator import is_not
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from unpad.engine import choose, native_engine

if TYPE_CHECKING:
    from torch import nn

    from unpad.compiler.build import Compiled
    from unpad.compiler.schedule import Scheduled


class Place(NamedTuple):
    """Where a cell's state begins: in which leaf of the layer's state, how many bytes on."""

    leaf: int
    offset: int


class Watch:
    """Whether a module is what it was: it and its submodules hold the very same objects.

    Looked at before every step, it takes a microsecond. What changes inside of an object it does
    not see. Tensors changed in place are told by their versions, but for those in ``apart``.
    """

    def __init__(self, module: nn.Module, apart: list[Tensor]) -> None:
        # Tables with tensors, whose == has no one answer, and those without, where == is quicker:
        # it looks no further than the same objects; and those with nothing, which most are.
        self._empty: list[dict[Any, Any]] = []
        self._held: list[tuple[dict[Any, Any], list[Any]]] = []
        self._plain: list[tuple[dict[Any, Any], list[Any]]] = []
        values: list[Any] = []
        for part in module.modules():
            held = vars(part)
            for table in (held, *(held[name] for name in _TABLES)):
                found = [*table.values()]
                if not found:
                    self._empty.append(table)
                    continue
                with_tensors = any(isinstance(value, Tensor) for value in found)
                (self._held if with_tensors else self._plain).append((table, found))
                values += found
        followed = {id(t) for t in apart}
        tensors = [value for value in values if isinstance(value, Tensor)]
        self._pointers = [t.data_ptr for t in tensors]
        counted = [t for t in tensors if id(t) not in followed]
        self._counted = [t for t in counted if not t.is_inference()]
        self._places, self._versions = self._where(), self._counts()

    def still(self) -> bool:
        """Whether nothing was replaced, added or taken away since this was made."""
        if any(self._empty):
            return False
        for table, values in self._held:
            if len(table) != len(values) or any(map(is_not, table.values(), values)):
                return False
        try:
            for table, values in self._plain:
                if [*table.values()] != values:
                    return False
        except (RuntimeError, ValueError, TypeError):  # an array or a tensor stands there now
            return False
        if self._counted and self._counts() != self._versions:
            return False
        return self._where() == self._places

    def _where(self) -> list[int]:
        return [pointer() for pointer in self._pointers]

    def _counts(self) -> list[int]:
        return [t._version for t in self._counted]


# What a module holds in dictionaries of its own.
_TABLES = ("_parameters", "_buffers", "_modules", "_forward_hooks", "_forward_pre_hooks")


class NativeSteps:
    """Programs in a row, each over the output of the one before it.

    Args:
        programs: of the cells, in order; without noise.
        states: the leaves of the state, contiguous; they hold it from step to step.
        places: for each program, where its states lie in ``states``.
        rows: number of streams.
        dtype: of everything.
        precision: of products.
    """

    def __init__(
        self,
        programs: list[Compiled],
        states: list[Tensor],
        places: list[list[Place]],
        rows: int,
        dtype: torch.dtype,
        precision: str,
    ) -> None:
        self.precision = precision
        self.dtype, self.output_shape = dtype, programs[-1].output_shape
        self._programs, self._rows = programs, rows
        self._offsets = torch.arange(rows + 1)
        self._buffers = [torch.zeros(rows, programs[0].step.x_width, dtype=dtype)]
        self._states = states
        self._after = [torch.zeros_like(leaf) for leaf in states]
        self._held = [[t.clone() for t in _once(program)] for program in programs]
        # Tensors of inference mode have no versions, and cannot be changed outside of it.
        held = [t for program in programs for t in program.held_tensors()]
        self.weights = [t for t in held if not t.is_inference()]
        self._versions = [t._version for t in self.weights]
        natives: list[Any] = []
        frames: list[list[int]] = []
        for program, own, held in zip(programs, places, self._held, strict=True):
            scheduled, frame = self._frame(program, own, held)
            natives.append(scheduled)
            frames.append(frame)
        pairs = zip(states, self._after, strict=True)
        moved = [[before.data_ptr(), after.data_ptr(), before.nbytes] for before, after in pairs]
        first, last = self._buffers[0], self._buffers[-1]
        self._steps = native_engine.stepper(
            natives,
            frames,
            moved,
            [first.data_ptr(), first.nbytes],
            [last.data_ptr(), last.nbytes],
        )
        # The C++ side's own methods: a Python call around them would cost as much as they check.
        self.step = self._steps.step
        self.step_from = self._steps.step_from
        self.step_arrays = self._steps.step_arrays
        self.step_from_arrays = self._steps.step_from_arrays

    def _frame(
        self, program: Compiled, places: list[Place], held: list[Tensor]
    ) -> tuple[native_engine.NativePass, list[int]]:
        step, rows = program.step, self._rows
        scheduled: Scheduled = program.programs(program.needs(None), False).forward
        output = torch.zeros(rows, step.graph[step.output].width, dtype=self.dtype)
        x, matrices = self._buffers[-1], len(step.matrices)
        self._buffers.append(output)
        native = choose.native_program(scheduled)
        frame = native.frame(
            dtype=self.dtype,
            offsets=self._offsets,
            streams=[x, output],
            shared=[held[matrices + i] for i in scheduled.shared],
            matrices=[
                held[m].t() if flipped else held[m]
                for (m, _), flipped in zip(scheduled.matrices, scheduled.flipped, strict=True)
            ],
            initial=[self._view(self._states, p, w) for p, w in _with(places, step.state_widths)],
            final=[self._view(self._after, p, w) for p, w in _with(places, step.state_widths)],
            threads=1,
            precision=self.precision,
        )
        return native, frame

    def _view(self, leaves: list[Tensor], place: Place, width: int) -> Tensor:
        start = place.offset // self.dtype.itemsize
        return leaves[place.leaf].view(-1)[start : start + self._rows * width].view(-1, width)

    def follow(self) -> None:
        """Take the weights anew where one of them was changed since."""
        if not self.weights or [t._version for t in self.weights] == self._versions:
            return
        for program, held in zip(self._programs, self._held, strict=True):
            for mine, new in zip(held, _once(program), strict=True):
                mine.copy_(new)
        self._versions = [t._version for t in self.weights]
        self._steps.pack()


def _with(places: list[Place], widths: list[int]) -> list[tuple[Place, int]]:
    return list(zip(places, widths, strict=True))


@torch.no_grad()
def _once(program: Compiled) -> list[Tensor]:
    """The program's matrices and shared vectors, from the weights as they are."""
    parts = program.once.run(program.held_tensors())
    matrices, vectors = program.once.weights(parts, program.once.joined(parts))
    return [t.detach() for t in (*matrices, *vectors)]
