"""The native engine's Python side: encodes a Pass and calls ``unpad._native`` with torch tensors.

The C++ core (``csrc/``) knows no torch: a call is one flat array of addresses and strides. Every
check that needs a tensor is made here, every check of the pass itself in C++, once, when it is
compiled.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import torch  # before unpad._native, which binds to the OpenMP runtime that torch has loaded
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from unpad.compiler.program import Kind
from unpad.engine.torch_engine import Columns, Frame, Placed
from unpad.errors import ArgumentError, ArgumentTypeError, UnpadError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from unpad.compiler.program import Instruction, Operand, Pass

_native: Any = None
_missing = ""
try:
    _native = importlib.import_module("unpad._native")
except ModuleNotFoundError:
    _missing = (
        "unpad was installed without its native engine: with a C++ compiler, install it again"
    )
except ImportError as error:
    _missing = f"its native engine does not load ({error})"

_MAGIC = 0x756E706164
_VERSION = 1
_DTYPES = {torch.float32: 0, torch.float64: 1}
_BFLOAT16 = 2  # float32 with the operands of products in bfloat16


def unavailable_reason() -> str:
    """Why the native engine cannot run here; empty where it can."""
    return _missing


def available() -> bool:
    """Whether the native engine was built and loads.

    Example:
        >>> isinstance(available(), bool)
        True
    """
    return not _missing


def opcodes() -> dict[str, tuple[int, int]]:
    """Name -> (code, most arguments) of every native instruction."""
    return _native.opcodes()


def tier() -> str:
    """The instruction set in use; the environment variable ``UNPAD_ISA`` overrides it.

    ``generic``, ``avx2``, ``avx512`` or ``avx512_bf16``: the last has bfloat16 products of its own.
    """
    return _native.tier()


def machine_peak(threads: int | None = None, dtype: torch.dtype = torch.float32) -> float:
    """Measure the floating-point operations a second that this machine's multiply-adds can do.

    Independent chains of multiply-adds (two operations each) in registers, without memory, in the
    instruction set in use: what no product can exceed, so that a speed can be told as a share of
    it. ``threads`` of them run at once (None: as many as torch uses), at most one a core; ``dtype``
    is float32 or float64. The best of eight runs, in some 20 ms; other work on the machine lowers
    it. Raises `UnpadError` where the native engine is missing.

    >>> import unpad
    >>> not available() or unpad.machine_peak(threads=1) > 1e8
    True
    """
    if not available():
        raise UnpadError(f"machine_peak measures the native engine: {unavailable_reason()}")
    if dtype not in (torch.float32, torch.float64):
        raise ArgumentError("dtype", dtype, "torch.float32 or torch.float64", "choose one of them")
    most = os.cpu_count() or 1
    wanted = min(torch.get_num_threads(), most) if threads is None else threads
    if isinstance(wanted, bool) or not isinstance(wanted, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ArgumentTypeError("threads", wanted, f"an integer from 1 to {most}", "pass an int")
    if not 1 <= wanted <= most:
        raise ArgumentError("threads", wanted, f"an integer from 1 to {most}", "choose fewer")
    return _native.machine_peak(wanted, dtype == torch.float64)


@contextlib.contextmanager
def one_thread() -> Generator[None]:
    """Within the block, torch's operations and ours run on the calling thread alone.

    For operations on a few rows: on a busy machine each waits for the other threads, 30 ms for a
    product that takes 0.05. Other threads keep their number, as ``torch.set_num_threads`` would not
    let them.
    """
    if not available():
        yield
        return
    before = _native.limit_threads(1)
    try:
        yield
    finally:
        _native.limit_threads(before)


def trim() -> int:
    """Give the memory that the engine keeps between calls back to the system; return its bytes.

    >>> import unpad
    >>> unpad.trim() >= 0
    True
    """
    return _native.trim() if available() else 0


def empty(rows: int, cols: int, dtype: torch.dtype) -> Tensor:
    """Return an uncleared tensor [rows, cols] over the engine's pooled memory.

    For streams that live from the forward to the backward pass: a fresh allocation of that size
    would cost more in page faults than the pass itself. The memory returns to the pool with the
    last tensor that views it.
    """
    if rows == 0 or cols == 0:
        return torch.empty(rows, cols, dtype=dtype)
    return from_dlpack(_native.empty(rows, cols, dtype == torch.float64))


def draws(out: Tensor) -> bool:
    """Whether `draw_mask` fills this tensor."""
    return available() and out.is_cpu and out.dtype in _DTYPES and out.is_contiguous()


def draw_mask(seed: int, keep: int, rows: Tensor, out: Tensor) -> None:
    """Fill out [t, width] with the rows of a mask, which int64 [t] numbers.

    ``keep`` of 2^32 numbers are ones; ``randomness`` says which.
    """
    wide, threads = out.dtype is torch.float64, torch.get_num_threads()
    numbers = rows.contiguous().numpy()
    _native.draw_mask(seed, keep, numbers, out.shape[1], wide, threads, out.data_ptr())


def softmax_loss(
    frame: list[int], numbers: list[float], *, dtype: torch.dtype, rounds: bool
) -> float:
    """Run csrc/softmax.h: ``frame`` from T on, as csrc/engine.h has it; return the summed loss."""
    return _native.softmax_loss([*_softmax_head(dtype, rounds), *frame], numbers)


def softmax_best(
    frame: list[int], numbers: list[float], *, dtype: torch.dtype, rounds: bool
) -> None:
    """Run the same of csrc/softmax.h, for the likeliest words of classes."""
    _native.softmax_best([*_softmax_head(dtype, rounds), *frame], numbers)


def _softmax_head(dtype: torch.dtype, rounds: bool) -> list[int]:
    return [_code(dtype, "bfloat16" if rounds else "float32"), torch.get_num_threads()]


def encode(pass_: Pass) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Encode a pass as (int64 array, float64 constants) for the C++ core.

    Layout: magic, version, numbers of buffers, phases, states, matrices, accumulators, tables,
    streams, shared vectors; states (width, stream); buffers (kind, width, index); matrices and
    accumulators (rows, columns); tables (length, entries); phases (kind, number of instructions,
    instructions). Instruction: opcode; result (buffer, offset, width; zeros where an accumulator
    takes it); number of arguments, arguments; number of dims, dims; matrix; table.
    """
    codes = opcodes()
    out = [_MAGIC, _VERSION, len(pass_.buffers), len(pass_.phases), len(pass_.states)]
    out += [len(pass_.matrices), len(pass_.accumulators), len(pass_.tables)]
    out += [pass_.n_streams, pass_.n_shared]
    for state in pass_.states:
        out += [state.width, state.stream]
    for buffer in pass_.buffers:
        out += [int(buffer.kind), buffer.width, buffer.index]
    for size in (*pass_.matrices, *pass_.accumulators):
        out += size
    for table in pass_.tables:
        out += [len(table), *table]
    for phase in pass_.phases:
        out += [int(phase.kind), len(phase.instructions)]
        for instruction in phase.instructions:
            out += _encode_instruction(instruction, codes)
    return np.array(out, dtype=np.int64), np.array(pass_.constants, dtype=np.float64)


def _encode_instruction(instruction: Instruction, codes: dict[str, tuple[int, int]]) -> list[int]:
    if instruction.op not in codes:
        raise ArgumentError(
            "instruction", instruction.op, "an opcode of the native engine", "use the torch engine"
        )
    out = [codes[instruction.op][0], *_encode_operand(instruction.out)]
    out.append(len(instruction.args))
    for arg in instruction.args:
        out += _encode_operand(arg)
    return [*out, len(instruction.dims), *instruction.dims, instruction.matrix, instruction.table]


def _encode_operand(operand: Operand | None) -> tuple[int, int, int]:
    return (0, 0, 0) if operand is None else (operand.buffer, operand.offset, operand.width)


def _widths(pass_: Pass, kind: Kind, count: int) -> list[int]:
    widths = [0] * count
    for buffer in pass_.buffers:
        if buffer.kind == kind:
            widths[buffer.index] = max(widths[buffer.index], buffer.width)
    return widths


class NativePass:
    """A pass, checked and ready to run any number of times, from several threads at once.

    Raises:
        ValueError: where the pass is not a valid program; the message names the instruction.
    """

    def __init__(self, pass_: Pass) -> None:
        if not available():
            raise RuntimeError(_missing)
        self._handle: Any = _native.Program(*encode(pass_))
        self._stream_widths = _widths(pass_, Kind.STREAM, pass_.n_streams)
        for state in pass_.states:
            if state.stream >= 0:
                width = max(self._stream_widths[state.stream], state.width)
                self._stream_widths[state.stream] = width
        self._shared = [(width,) for width in _widths(pass_, Kind.SHARED, pass_.n_shared)]
        self._matrices = [tuple(size) for size in pass_.matrices]
        self._accumulators = [tuple(size) for size in pass_.accumulators]
        self._states = [state.width for state in pass_.states]

    def run(
        self,
        *,
        dtype: torch.dtype,
        offsets: Tensor,
        streams: Sequence[Tensor] = (),
        shared: Sequence[Tensor] = (),
        matrices: Sequence[Tensor] = (),
        accumulators: Sequence[Tensor] = (),
        initial: Sequence[Tensor] = (),
        final: Sequence[Tensor] = (),
        reverse: bool = False,
        threads: int | None = None,
        precision: str = "float32",
    ) -> None:
        """Run the pass over the B sequences of a ragged batch of T tokens.

        Args:
            dtype: float32 or float64, of every tensor.
            offsets: int64 [B+1] on the CPU, contiguous.
            streams: [T, width] or wider each, read or written as the pass says; neighbour columns
                are neighbours in memory, rows may lie anywhere.
            shared: [width] each, contiguous.
            matrices: [K, N] each, any strides.
            accumulators: [rows, cols] each, contiguous; overwritten with the sum over all tokens.
            initial: [B, width] for each state, contiguous.
            final: [B, width] for each state, contiguous; overwritten. A sequence of length 0 has
                its initial state there. Shares no memory with any other argument.
            reverse: read every sequence from its last token to its first.
            threads: the most to use; ``torch.get_num_threads()`` unless given.
            precision: "bfloat16" rounds the operands of float32 products.

        Raises:
            ValueError: a tensor whose shape, strides or device do not fit the pass.
            TypeError: a tensor of another dtype.
        """
        self._handle.run(
            self.frame(
                dtype=dtype,
                offsets=offsets,
                streams=streams,
                shared=shared,
                matrices=matrices,
                accumulators=accumulators,
                initial=initial,
                final=final,
                reverse=reverse,
                threads=threads,
                precision=precision,
            )
        )

    def run_frame(self, frame: Frame) -> None:
        """Run on what autograd prepared: `run` without the checks that hold by construction.

        Shapes, strides and dtypes are those of the trace, which inputs and weights were compared
        with; devices are looked at here. At a few tokens, checks of every tensor would cost more
        than the pass.
        """
        first, offsets = frame.streams[0], frame.offsets
        x = first.tensor if isinstance(first, Placed) else first
        assert isinstance(x, Tensor)
        for tensor in (*frame.initial, *frame.matrices, *frame.shared):
            if tensor is not None and not tensor.is_cpu:
                _refuse("cell", tensor, "tensors on the CPU, where the input is")
        numbers = [_code(x.dtype, frame.precision), frame.direction, torch.get_num_threads()]
        begins = frame.begins
        numbers += offsets.shape[0] - 1, offsets.data_ptr()
        numbers += (x.shape[0], 0) if begins is None else (-1, begins.data_ptr())
        for stream in frame.streams:
            if stream is None:
                numbers += x.data_ptr(), 0, 0
            elif isinstance(stream, Placed):
                numbers += stream.tensor.data_ptr(), stream.tensor.stride(0), 1
            elif isinstance(stream, Columns):
                base, size = stream.tensor.data_ptr(), x.element_size()
                step = stream.tensor.stride(0)
                for first, _ in stream.places:
                    numbers += base + first * size, step, 0
            else:
                numbers += stream.data_ptr(), stream.stride(0), 0
        numbers += [tensor.data_ptr() for tensor in frame.shared]
        for tensor, flipped in zip(frame.matrices, frame.flipped, strict=True):
            rows, columns = tensor.stride()
            numbers += (tensor.data_ptr(), *((columns, rows) if flipped else (rows, columns)))
        numbers += [tensor.data_ptr() for tensor in frame.accumulators]
        for tensor in (*frame.initial, *frame.final):
            numbers.append(0 if tensor is None else tensor.data_ptr())
        self._handle.run(numbers)

    def frame(
        self,
        *,
        dtype: torch.dtype,
        offsets: Tensor,
        streams: Sequence[Tensor] = (),
        shared: Sequence[Tensor] = (),
        matrices: Sequence[Tensor] = (),
        accumulators: Sequence[Tensor] = (),
        initial: Sequence[Tensor] = (),
        final: Sequence[Tensor] = (),
        reverse: bool = False,
        threads: int | None = None,
        precision: str = "float32",
    ) -> list[int]:
        """Check the arguments of `run` and give the addresses that C++ takes."""
        if dtype not in _DTYPES or (precision == "bfloat16" and dtype is not torch.float32):
            raise ArgumentTypeError("dtype", dtype, "float32 or float64", "use the torch engine")
        if offsets.dtype is not torch.int64 or offsets.dim() != 1 or not _plain(offsets):
            _refuse("offsets", offsets, "contiguous int64 [B+1] on the CPU")
        batch = offsets.numel() - 1
        tokens = streams[0].shape[0] if streams else -1
        frame = [_code(dtype, precision), -1 if reverse else 1]
        frame.append(threads or torch.get_num_threads())
        frame += batch, offsets.data_ptr(), tokens, 0
        self._add_streams(frame, streams, tokens, dtype)
        _add_plain(frame, "shared", shared, self._shared, dtype)
        self._add_matrices(frame, matrices, dtype)
        _add_plain(frame, "accumulators", accumulators, self._accumulators, dtype)
        sizes = [(batch, width) for width in self._states]
        _add_plain(frame, "initial", initial, sizes, dtype)
        _add_plain(frame, "final", final, sizes, dtype)
        return frame

    def _add_streams(
        self, frame: list[int], streams: Sequence[Tensor], tokens: int, dtype: torch.dtype
    ) -> None:
        widths = self._stream_widths
        _count("streams", streams, widths)
        for tensor, width in zip(streams, widths, strict=True):
            shape, stride = tensor.shape, tensor.stride()
            fits = len(shape) == 2 and shape[0] == tokens and shape[1] >= width
            if not (fits and (stride[1] == 1 or width == 1)):
                _refuse("streams", tensor, f"[{tokens}, {width}], unit stride over the columns")
            if tensor.dtype is not dtype or not tensor.is_cpu:
                _refuse_kind("streams", tensor, dtype)
            frame += tensor.data_ptr(), stride[0], 0

    def _add_matrices(
        self, frame: list[int], matrices: Sequence[Tensor], dtype: torch.dtype
    ) -> None:
        _count("matrices", matrices, self._matrices)
        for tensor, size in zip(matrices, self._matrices, strict=True):
            if tensor.shape != size:
                _refuse("matrices", tensor, str(list(size)))
            if tensor.dtype is not dtype or not tensor.is_cpu:
                _refuse_kind("matrices", tensor, dtype)
            frame.append(tensor.data_ptr())
            frame += tensor.stride()


def stepper(
    passes: list[NativePass],
    frames: list[list[int]],
    states: list[list[int]],
    input: list[int],  # noqa: A002 - the C++ side's name
    output: list[int],
) -> Any:
    """Steps of one token through passes in a row (csrc/bind.cpp, `Stepper`).

    ``frames`` are those of `NativePass.frame`, over memory that outlives the result; ``states``:
    (address before the step, address after it, bytes) each; ``input`` and ``output``: address and
    bytes of the first pass's input and the last one's output.
    """
    handles = [p._handle for p in passes]  # pyright: ignore[reportPrivateUsage]
    return _native.Stepper(handles, frames, states, input, output)


def _add_plain(
    frame: list[int],
    argument: str,
    tensors: Sequence[Tensor],
    sizes: Sequence[tuple[int, ...]],
    dtype: torch.dtype,
) -> None:
    """Contiguous tensors of known sizes."""
    _count(argument, tensors, sizes)
    for tensor, size in zip(tensors, sizes, strict=True):
        if tensor.shape != size or not tensor.is_contiguous():
            _refuse(argument, tensor, f"contiguous {list(size)}")
        if tensor.dtype is not dtype or not tensor.is_cpu:
            _refuse_kind(argument, tensor, dtype)
        frame.append(tensor.data_ptr())


def _code(dtype: torch.dtype, precision: str) -> int:
    return _BFLOAT16 if precision == "bfloat16" else _DTYPES[dtype]


def _plain(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.is_contiguous() and tensor.numel() > 0


def _count(argument: str, tensors: Sequence[Tensor], wanted: Sequence[Any]) -> None:
    if len(tensors) != len(wanted):
        raise ArgumentError(
            argument, f"{len(tensors)} tensors", f"{len(wanted)}", "give one for each in the pass"
        )


def _refuse_kind(argument: str, tensor: Tensor, dtype: torch.dtype) -> None:
    if tensor.dtype is not dtype:
        raise ArgumentTypeError(argument, tensor.dtype, str(dtype), "convert the tensor")
    _refuse(argument, tensor, "a tensor on the CPU")


def _refuse(argument: str, tensor: Tensor, allowed: str) -> None:
    got = f"{tensor.dtype} {list(tensor.shape)} strides {tensor.stride()} on {tensor.device}"
    raise ArgumentError(argument, got, allowed, "reshape or copy the tensor")
