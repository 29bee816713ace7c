"""Which engine runs a cell: the one door through which every layer and function goes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import warnings
import weakref
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.utils import parametrize

from unpad.compiler import mode
from unpad.compiler.build import Compiled, compile_cell
from unpad.compiler.glance import Glance
from unpad.compiler.schedule import Scheduled
from unpad.compiler.trace import MixesRows, Refused, without_autocast
from unpad.compiler.whole import Growth, is_whole
from unpad.engine import autograd, eager, lean, native_engine, randomness, torch_engine
from unpad.engine.memory import in_rows, resolved
from unpad.engine.precision import autocast_rounds
from unpad.errors import ArgumentError, quoted
from unpad.nest import Nest, Zeros, leaves, made, map_leaves, rebuild

ENGINES = ("auto", "native", "torch", "eager")
_NATIVE_DTYPES = (torch.float32, torch.float64, torch.bfloat16)  # the last one runs as float32
_chosen: ContextVar[str | None] = ContextVar("unpad_engine", default=None)
_programs: weakref.WeakKeyDictionary[nn.Module, dict[Any, Compiled | Refused]]
_programs = weakref.WeakKeyDictionary()
# By sizes: what was found last, and how to tell quickly that it is still right.
_glances: weakref.WeakKeyDictionary[nn.Module, dict[Any, tuple[Glance, Compiled]]]
_glances = weakref.WeakKeyDictionary()
_warned: set[str] = set()


class UncompiledCellWarning(UserWarning):
    """A cell runs in the eager loop since the compiler cannot take it. Make it an error with
    ``warnings.simplefilter("error", unpad.UncompiledCellWarning)``.
    """


@contextlib.contextmanager
def engine(name: str) -> Generator[None]:
    """Run cells on a given engine within a ``with`` block.

    Args:
        name: "auto" (native where it can, else torch), "native", "torch" (the program in plain
            torch operations) or "eager" (a torch loop that calls the cell at every step).

    >>> with engine("torch"):
    ...     pass
    """
    _check_name("name", name)
    token = _chosen.set(name)
    try:
        yield
    finally:
        _chosen.reset(token)


def _check_name(argument: str, name: str) -> str:
    if name not in ENGINES:
        allowed = f"one of {', '.join(ENGINES)}"
        raise ArgumentError(argument, quoted(name), allowed, "choose one of these")
    return name


@functools.cache
def _from_environment() -> str:
    """The engine for the whole process, read at the first run, as the instruction set is."""
    return _check_name("UNPAD_ENGINE", os.environ.get("UNPAD_ENGINE", "auto"))


def run(
    cell: nn.Module,
    x: Tensor,
    offsets: Tensor,
    state: Nest,
    *,
    reverse: bool = False,
    return_states: bool = False,
    memory: str | int = "fast",
    precision: str | None = None,
) -> tuple[Tensor, Nest, Nest]:
    """Run a cell over every sequence of a ragged batch: arguments and results of `eager.run`.

    ``state``: leaves may be `Zeros`.
    ``memory``: "fast", or what `lean.run` takes; the eager loop keeps all that autograd keeps.
    ``precision``: of products, as in `precision`; None: "bfloat16" for bfloat16 tensors on a CPU
    and inside ``torch.autocast("cpu", dtype=torch.bfloat16)``, where results are bfloat16 as well.
    The eager loop takes no notice of it.
    """
    here = _outside_dynamo() if torch.compiler.is_compiling() else _run
    ways: dict[str, Any] = {"reverse": reverse, "return_states": return_states}
    return here(cell, x, offsets, state, memory=memory, precision=precision, **ways)


@functools.cache
def _outside_dynamo() -> Callable[..., tuple[Tensor, Nest, Nest]]:
    """torch.compile calls a run as it is, between two graphs of its own, and looks not inside."""
    return cast("Callable[..., Any]", torch.compiler.disable(_run))


def _run(
    cell: nn.Module,
    x: Tensor,
    offsets: Tensor,
    state: Nest,
    *,
    reverse: bool,
    return_states: bool,
    memory: str | int,
    precision: str | None,
) -> tuple[Tensor, Nest, Nest]:
    name = _chosen.get() or _from_environment()
    ways = {"reverse": reverse, "return_states": return_states}
    narrow = autocast_rounds(x.device.type)
    if narrow:
        x, state = _like_weights(cell, x, made(state))
        if precision == "float32":
            with without_autocast(x.device.type):
                return _run(cell, x, offsets, state, memory=memory, precision=precision, **ways)
    flat = leaves(state)
    if name == "eager" or x.is_meta or _transformed() or not flat:
        return eager.run(cell, x, offsets, made(state), **ways)
    found = _glanced(cell, x, flat) or _run_once(cell, x, made(state))
    if isinstance(found, Refused):
        return _uncompiled(cell, found, x, offsets, made(state), **ways)
    if found[0].growth is not None and not _exact(found[0].growth, x, offsets, flat):
        return eager.run(cell, x, offsets, made(state), **ways)
    compiled, parts = found[0], resolved(found[1])
    rounded = rounds(x, precision)
    if working_dtype(x) is not x.dtype:
        x, parts = x.float(), [t.float() for t in parts]
    native = name != "torch" and _native_takes(x, name)
    fast, step = memory == "fast", compiled.step
    allocate = _native_allocate if native else _torch_allocate
    noises = [randomness.drawn(noise, x, offsets, allocate) for noise in step.noises if fast]
    call = autograd.Call(
        compiled=compiled,
        run_pass=_native_pass if native else _torch_pass,
        allocate=allocate,
        offsets=offsets,
        reverse=reverse,
        return_states=return_states,
        noises=noises,
        precision="bfloat16" if rounded else "float32",
    )
    x = in_rows(_formed(x, (x.shape[0], step.x_width), x.dtype))
    initial = [
        None if type(leaf) is Zeros else _formed(leaf, (leaf.shape[0], width), x.dtype)
        for leaf, width in zip(flat, step.state_widths, strict=True)
    ]
    if fast:
        results = autograd.run(call, x, initial, parts)
    else:
        results = lean.run(call, x, initial, parts, memory=memory)
    return _shaped(call, results, state, flat, narrow=narrow)


def _run_once(cell: nn.Module, x: Tensor, state: Nest) -> tuple[Compiled, list[Tensor]] | Refused:
    """The programs of a cell, and what is worked out once a run."""
    with _cached_parametrizations(cell), without_autocast(x.device.type):
        found, tensors = _compiled(cell, x, state)
        return found if isinstance(found, Refused) else (found, found.once.run(tensors))


def working_dtype(x: Tensor) -> torch.dtype:
    """The dtype that a program runs in: on a CPU, bfloat16 numbers are kept as float32."""
    return torch.float32 if x.dtype is torch.bfloat16 and x.is_cpu else x.dtype


def rounds(x: Tensor, precision: str | None) -> bool:
    """Whether the operands of products are rounded to bfloat16 for this input."""
    if working_dtype(x) is not torch.float32:
        return False
    if precision is None:
        return x.dtype is torch.bfloat16 or autocast_rounds(x.device.type)
    return precision == "bfloat16"


def _like_weights(cell: nn.Module, x: Tensor, state: Nest) -> tuple[Tensor, Nest]:
    """Input and states of the weights' dtype, where autocast lets another one in."""
    floating = (p.dtype for p in cell.parameters() if p.is_floating_point())
    dtype = next(floating, x.dtype)
    if dtype is torch.float64 or x.dtype is torch.float64:
        return x, state
    convert = lambda leaf: leaf.to(dtype) if leaf.is_floating_point() else leaf  # noqa: E731
    return x.to(dtype), map_leaves(convert, state)


def _uncompiled(
    cell: nn.Module, refused: Refused, x: Tensor, offsets: Tensor, state: Nest, **ways: bool
) -> tuple[Tensor, Nest, Nest]:
    """The eager loop, in which a mistake in the cell shows as what it is, at its own line.

    Only of a cell that works is it said, afterwards, that it was not compiled.
    """
    try:
        results = eager.run(cell, x, offsets, state, **ways)
    except Exception:
        _programs.pop(cell, None)  # what is mended at the next call is traced anew
        raise
    text = f"{type(cell).__name__} runs in the eager loop, step by step: {refused}"
    _warn_once(text, UncompiledCellWarning)
    return results


def _transformed() -> bool:
    """Whether torch.func or forward-mode differentiation is at work (vmap, jvp, dual numbers): they
    look through torch operations only.
    """
    if forward_ad._current_level >= 0:  # pyright: ignore[reportPrivateUsage]
        return True
    return torch._C._are_functorch_transforms_active()  # pyright: ignore[reportPrivateUsage]


def _exact(growth: Growth, x: Tensor, offsets: Tensor, flat: list[Tensor]) -> bool:
    """Whether a program can hold its whole numbers, as those of x's dtype, until the last token."""
    whole = [leaf for leaf in flat if is_whole(leaf.dtype) and leaf.numel()]
    most = max((max(int(leaf.max()), -int(leaf.min())) for leaf in whole), default=0)
    steps = int(offsets.diff().max()) if len(offsets) > 1 else 0
    return growth.fits(most, steps, torch.finfo(working_dtype(x)).eps)


def _shaped(
    call: autograd.Call, results: list[Tensor], state: Nest, like: list[Tensor], *, narrow: bool
) -> tuple[Tensor, Nest, Nest]:
    """Flat rows back to the cell's own shapes and dtypes; ``narrow``: float32 to bfloat16."""

    def of(dtype: torch.dtype) -> torch.dtype:
        return torch.bfloat16 if narrow and dtype is torch.float32 else dtype

    compiled, tokens = call.compiled, results[0].shape[0]
    output = _formed(results[0], (tokens, *compiled.output_shape), of(compiled.output_dtype))
    rows = zip(results[1 : 1 + len(like)], like, strict=True)
    final = rebuild(state, [_formed(r, s.shape, of(s.dtype)) for r, s in rows])
    if not call.return_states:
        return output, final, None
    rows = zip(results[1 + len(like) :], like, strict=True)
    states = [_formed(r, (tokens, *s.shape[1:]), of(s.dtype)) for r, s in rows]
    return output, final, rebuild(state, states)


def _formed(value: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """In this shape and dtype; the very tensor where it has both, since each view costs a node."""
    if value.shape != shape:
        value = value.reshape(shape)
    return value if value.dtype is dtype else value.to(dtype)


def _native_takes(x: Tensor, name: str) -> bool:
    if native_takes(x):
        return True
    takes = x.is_cpu and x.dtype in _NATIVE_DTYPES
    allowed = "it takes float32, float64 and bfloat16 on a CPU"
    reason = native_engine.unavailable_reason() if takes else allowed
    if name == "native":
        raise ArgumentError("engine", f"native, for {x.dtype} on {x.device}", reason, 'use "auto"')
    if takes:
        _warn_once(f"cells run on the torch engine, which is slower: {reason}", RuntimeWarning)
    return False


def chooses_native(x: Tensor) -> bool:
    """Whether the native engine is to take an operation of its own, such as a softmax, on x."""
    name = _chosen.get() or _from_environment()
    if name in ("torch", "eager") or x.is_meta or _transformed():
        return False
    return _native_takes(x, name)


_native_passes: weakref.WeakKeyDictionary[Scheduled, native_engine.NativePass]
_native_passes = weakref.WeakKeyDictionary()


def native_program(scheduled: Scheduled) -> native_engine.NativePass:
    """A pass in the native engine's form, made at its first use."""
    program = _native_passes.get(scheduled)
    if program is None:
        program = _native_passes[scheduled] = native_engine.NativePass(scheduled.program)
    return program


def _native_pass(scheduled: Scheduled, frame: torch_engine.Frame) -> None:
    native_program(scheduled).run_frame(frame)


# Below this, torch's allocator keeps memory mapped and is quicker than the pool.
_WORTH_POOLING = 1 << 16


def _native_allocate(rows: int, width: int, like: Tensor) -> Tensor:
    if rows * width * like.element_size() < _WORTH_POOLING:
        return like.new_empty(rows, width)
    return native_engine.empty(rows, width, like.dtype)


def _torch_pass(scheduled: Scheduled, frame: torch_engine.Frame) -> None:
    first = frame.streams[0]
    x = first.tensor if isinstance(first, torch_engine.Placed) else first
    assert isinstance(x, Tensor)
    with without_autocast(x.device.type):
        torch_engine.run_pass(scheduled.program, frame)


def _torch_allocate(rows: int, width: int, like: Tensor) -> Tensor:
    return like.new_empty(rows, width)


def wants_native(x: Tensor) -> bool:
    """Whether the native engine runs a program on this input, by the engine that was chosen."""
    return (_chosen.get() or _from_environment()) in ("auto", "native") and native_takes(x)


def native_takes(x: Tensor) -> bool:
    """Whether the native engine runs a program on this input."""
    return native_engine.available() and x.is_cpu and x.dtype in _NATIVE_DTYPES


# -- compiled cells --------------------------------------------------------------------------------


def _cached_parametrizations(cell: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """A parametrized weight is worked out once a run."""
    if any(map(parametrize.is_parametrized, cell.modules())):
        return parametrize.cached()
    return contextlib.nullcontext()


def compiled(cell: nn.Module, x: Tensor, state: Nest) -> Compiled | Refused:
    """The programs of a cell for input and states of these sizes, or why there are none.

    A cell that is not compiled runs once, on the rows of ``x`` as sequences of one token: a mistake
    in it is raised.
    """
    with _cached_parametrizations(cell):
        found = _compiled(cell, x, state)[0]
    if isinstance(found, Refused):
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            _uncompiled(cell, found, x, torch.arange(len(x) + 1, device="cpu"), state)
    return found


def _compiled(cell: nn.Module, x: Tensor, state: Nest) -> tuple[Compiled | Refused, list[Tensor]]:
    """The cell's programs and its captured tensors; traced at the first call in each mode."""
    found, tensors = _looked_up(cell, x, state)
    if isinstance(found, Compiled):
        glances = _glances.setdefault(cell, {})
        glances[_sizes(x, leaves(state))] = (Glance(cell), found)
    return found, tensors


def _glanced(
    cell: nn.Module, x: Tensor, flat: list[Tensor]
) -> tuple[Compiled, list[Tensor]] | None:
    """What `_run_once` gives, where a glance shows that the last programs are still right."""
    last = _glances.get(cell, _NOTHING).get(_sizes(x, flat))
    if last is None or not last[0].still():
        return None
    compiled = last[1]
    tensors = [leaf.get() for leaf in compiled.leaves]
    if not compiled.fits(tensors):
        return None
    if not compiled.once.calls:
        return compiled, compiled.once.run(tensors)
    with without_autocast(x.device.type):
        return compiled, compiled.once.run(tensors)


_NOTHING: dict[Any, tuple[Glance, Compiled]] = {}


def _sizes(x: Tensor, flat: list[Tensor]) -> tuple[Any, ...]:
    return (x.shape[1:], x.dtype, x.device, *[(t.shape[1:], t.dtype) for t in flat])


def _looked_up(cell: nn.Module, x: Tensor, state: Nest) -> tuple[Compiled | Refused, list[Tensor]]:
    known = _programs.setdefault(cell, {})
    key = _key(cell, x, state)
    compiled = known.get(key) or known.get(_RESTLESS)
    if isinstance(compiled, Refused):
        return compiled, []
    if compiled is not None:
        tensors = compiled.leaf_tensors()
        if compiled.fits(tensors):
            return compiled, tensors
    with native_engine.one_thread():
        key, compiled = _compile(cell, x, state, key)
    while len(known) >= _MOST_MODES:
        known.pop(next(iter(known)))
    known[key] = compiled
    return compiled, [] if isinstance(compiled, Refused) else compiled.held_tensors()


# A cell whose attributes change at every call (a counter, say) has one entry, under this key.
_RESTLESS = "restless"
# An attribute that is another at every run, such as an annealed scale, must not fill the memory.
_MOST_MODES = 64


def _compile(cell: nn.Module, x: Tensor, state: Nest, key: Any) -> tuple[Any, Compiled | Refused]:
    """The programs, and the key of the mode that they are for."""
    try:
        compiled = compile_cell(cell, x, state)
        before, key = key, _key(cell, x, state)
        if key != before:  # such as a cache that is made at the first call: try once more
            compiled = compile_cell(cell, x, state)
            before, key = key, _key(cell, x, state)
        if key != before:
            names = ", ".join(mode.changed(before[-1], key[-1]))
            key = _RESTLESS
            raise Refused(f"every call of forward changes the cell's own attributes: {names}")
        return key, compiled
    except MixesRows as refused:
        raise ArgumentError(
            "cell",
            f"{type(cell).__name__}: {refused}",
            "a cell whose rows do not depend on each other: sequences end at different steps",
            'normalise over features (LayerNorm); or run it as it is: with unpad.engine("eager")',
        ) from None
    except Refused as refused:
        return key, refused


def _warn_once(text: str, category: type[Warning]) -> None:
    if text not in _warned:
        warnings.warn(text, category, stacklevel=_level_of_the_caller())
        _warned.add(text)


_FRAMEWORKS = ("unpad", "torch", "lightning", "pytorch_lightning", "lightning_fabric")


def _level_of_the_caller() -> int:
    """How far up the stack the first frame stands that is neither ours nor a framework's.

    A trainer silences what points at its own lines.
    """
    frame, level = inspect.currentframe(), 0
    while frame is not None and frame.f_globals.get("__name__", "").split(".")[0] in _FRAMEWORKS:
        frame, level = frame.f_back, level + 1
    return level


def _key(cell: nn.Module, x: Tensor, state: Nest) -> tuple[Any, ...]:
    """Everything that a trace depends on; never a length or a batch size."""
    sizes = tuple((leaf.shape[1:], leaf.dtype) for leaf in leaves(state))
    return x.shape[1:], x.dtype, x.device.type, sizes, mode.mode(cell)
