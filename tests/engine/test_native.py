"""Every instruction of the native engine, and how it walks over ragged rows, against NumPy."""

from __future__ import annotations

import pytest
import torch

from engine.native_passes import (
    BULK,
    LOOP,
    REDUCE,
    Builder,
    assert_like_reference,
    columns,
    memory_for,
    offsets_of,
    op,
)
from engine.pass_reference import ELEMENTWISE
from unpad.compiler.program import Operand, Pass
from unpad.engine import native_engine
from unpad.engine.torch_engine import Frame, run_pass

native = pytest.mark.skipif(
    not native_engine.available(), reason=native_engine.unavailable_reason()
)
pytestmark = native

DTYPES = [torch.float32, torch.float64]
WIDTHS = [1, 3, 16, 130]
LENGTHS = [3, 0, 1, 17, 5, 0, 2, 9, 11, 4, 1, 6]

# Arguments that stay inside the function's domain; others take numbers around 0.
POSITIVE = {"log", "log2", "sqrt", "rsqrt", "pow"}
WITHIN_ONE = {"asin", "acos", "atanh"}
WHOLE = {"eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "where"}


def inputs_for(name: str, pass_: Pass, dtype: torch.dtype):
    memory = memory_for(pass_, LENGTHS, dtype)
    for tensor in memory.streams:
        if name in POSITIVE:
            tensor.abs_().add_(0.1)
        elif name in WITHIN_ONE:
            tensor.clamp_(-0.9, 0.9)
        elif name == "acosh":
            tensor.abs_().add_(1.01)
        elif name == "log1p":
            tensor.clamp_(-0.9, 9)
        elif name in WHOLE:
            tensor.mul_(1.5).round_()
        elif name in ("reciprocal", "div", "fmod", "remainder", "tan"):
            tensor.add_(torch.where(tensor < 0, -0.5, 0.5))
            if name == "tan":
                tensor.clamp_(-1.2, 1.2)
    return memory


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name: str, dtype: torch.dtype) -> None:
    arity = native_engine.opcodes()[name][1]
    for width in WIDTHS:
        b = Builder()
        args = [b.stream(width) for _ in range(arity)]
        b.phase(BULK, op(name, b.stream(width), *args))
        assert_like_reference(b.build(), LENGTHS, dtype, memory=inputs_for(name, b.build(), dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_column_is_repeated_over_the_row(dtype: torch.dtype) -> None:
    b = Builder()
    wide, one, out = b.stream(19), b.stream(1), b.stream(19)
    b.phase(
        BULK,
        op("mul_add", out, one, wide, b.constant(0.25)),
        op("add", out, out, b.shared(19)),
        op("sub", out, b.shared(1), out),
    )
    assert_like_reference(b.build(), LENGTHS, dtype)


def feature_pass(name: str, dims: tuple[int, ...]) -> Pass:
    b = Builder()
    outer, n = dims[0], dims[1]
    inner = dims[2] if len(dims) == 3 else 1
    narrow, wide = outer * inner, outer * n * inner
    size_in = narrow if name == "expand" else wide
    size_out = narrow if name in ("sum", "max", "inv_std") else wide
    args: list[Operand] = [b.stream(size_in)]
    if name in ("normalize", "inv_std"):
        args.append(b.constant(1e-5))
    if name.endswith("normalize_grad"):
        args += [b.stream(wide), b.stream(outer)]
    if name == "scaled_normalize_grad":
        args.append(b.shared(wide))
    b.phase(BULK, op(name, b.stream(size_out), *args, dims=dims))
    return b.build()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["sum", "max", "onehot_max", "expand", "softmax"])
@pytest.mark.parametrize("dims", [(1, 1, 1), (1, 5, 1), (2, 130, 1), (3, 4, 5), (1, 7, 33)])
def test_along_an_axis_of_the_features(
    name: str, dims: tuple[int, ...], dtype: torch.dtype
) -> None:
    assert_like_reference(feature_pass(name, dims), LENGTHS, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "name", ["normalize", "inv_std", "normalize_grad", "scaled_normalize_grad"]
)
@pytest.mark.parametrize("dims", [(1, 2), (1, 130), (4, 32), (3, 5)])
def test_normalization(name: str, dims: tuple[int, ...], dtype: torch.dtype) -> None:
    assert_like_reference(feature_pass(name, dims), LENGTHS, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("between", ["nothing", "a new row", "a read of the result", "other eps"])
@pytest.mark.parametrize("dims", [(1, 130), (4, 32)])
def test_moments_taken_once_and_only_of_the_same_row(
    between: str, dims: tuple[int, int], dtype: torch.dtype
) -> None:
    """`normalize` gives the `inv_std` that follows it too, unless that would change a value."""
    b = Builder()
    outer, width = dims[0], dims[0] * dims[1]
    x, row, result = b.stream(width), b.scratch(width), b.scratch(outer)
    eps, deviations = b.constant(1e-5), b.stream(outer)
    steps = [
        op("copy", row, x),
        op("inv_std", result, x, b.constant(0.5), dims=dims),
        op("normalize", b.stream(width), row, eps, dims=dims),
    ]
    if between == "a new row":
        steps.append(op("mul", row, row, x))
    if between == "a read of the result":
        steps.append(op("copy", b.stream(outer), result))
    last = b.constant(0.25) if between == "other eps" else eps
    steps += [op("inv_std", result, row, last, dims=dims), op("copy", deviations, result)]
    b.phase(BULK, *steps)
    assert_like_reference(b.build(), LENGTHS, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_take_and_scatter(dtype: torch.dtype) -> None:
    b = Builder()
    x, taken, spread = b.stream(6), b.stream(5), b.stream(4)
    b.phase(
        BULK,
        op("take", taken, x, table=b.table(5, 0, 0, 3, 2)),
        op("scatter", spread, taken, table=b.table(1, 3, 1, 0, 1)),
    )
    assert_like_reference(b.build(), LENGTHS, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("k", WIDTHS)
@pytest.mark.parametrize("n", [*WIDTHS, 64, 200])
def test_linear_and_its_gradients(k: int, n: int, dtype: torch.dtype) -> None:
    b = Builder()
    x, y, g, dx = b.stream(k), b.stream(n), b.stream(n), b.stream(k)
    b.phase(
        BULK,
        op("linear", y, x, b.shared(n), matrix=b.matrix(k, n)),
        op("linear", dx, g, matrix=b.matrix(n, k)),
    )
    b.phase(
        REDUCE,
        op("outer", None, x, g, matrix=b.accumulator(k, n)),
        op("outer", None, g, g, matrix=b.accumulator(n, n)),
        op("sum_rows", None, g, matrix=b.accumulator(1, n)),
    )
    assert_like_reference(b.build(), LENGTHS, dtype)


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [16, 32, 60, 96, 200])
def test_a_product_of_few_rows(rows: int, n: int) -> None:
    b = Builder()
    x, y, dx = b.stream(130), b.stream(n), b.stream(130)
    b.phase(
        BULK,
        op("linear", y, x, b.shared(n), matrix=b.matrix(130, n)),
        op("linear", dx, y, matrix=b.matrix(n, 130)),
    )
    for dtype in DTYPES:
        assert_like_reference(b.build(), [rows], dtype)


@pytest.mark.parametrize("start", ["none", "constant", "itself", "window"])
def test_where_a_product_starts(start: str) -> None:
    b = Builder()
    x, y, w = b.stream(7), b.stream(35), b.window(35)
    args = {"none": [], "constant": [b.constant(0.5)], "itself": [y], "window": [w]}[start]
    b.phase(BULK, op("copy", w, b.shared(35)), op("linear", y, x, *args, matrix=b.matrix(7, 35)))
    assert_like_reference(b.build(), LENGTHS, torch.float32)


def decaying_sum(width: int, history: bool) -> Pass:
    """h' = tanh(x + h A), y = h' - h, and the sum of h' over tokens."""
    b = Builder()
    x, y, kept = b.stream(width), b.stream(width), b.window(width)
    prev, after = b.state(width, history)
    total = b.scratch(width)
    b.phase(BULK, op("mul", kept, x, b.constant(0.5)))
    b.phase(
        LOOP,
        op("linear", total, prev, kept, matrix=b.matrix(width, width)),
        op("tanh", after, total),
        op("sub", y, after, prev),
        op("copy", kept, after),
    )
    b.phase(REDUCE, op("sum_rows", None, kept, matrix=b.accumulator(1, width)))
    return b.build()


BATCHES = {
    "ragged": LENGTHS,
    "one": [23],
    "ones": [1] * 7,
    "all empty": [0, 0, 0],
    "no sequence": [],
    "many": [n % 13 for n in range(200)],
    "one long among short": [400, 2, 1, 3],
}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("batch", BATCHES)
def test_a_loop_over(batch: str, history: bool, reverse: bool, threads: int) -> None:
    pass_ = decaying_sum(5, history)
    for dtype in DTYPES:
        memory = memory_for(pass_, BATCHES[batch], dtype, scale=0.5)
        assert_like_reference(
            pass_, BATCHES[batch], dtype, memory=memory, reverse=reverse, threads=threads
        )


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("history", [False, True])
@pytest.mark.parametrize("engine", ["native", "torch"])
def test_without_states_the_first_is_zero_and_the_last_nobodys(
    engine: str, history: bool, threads: int
) -> None:
    pass_, lengths = decaying_sum(5, history), BATCHES["many"]
    results: list[list[torch.Tensor]] = []
    torch.set_num_threads(threads)
    for given in (True, False):
        torch.manual_seed(0)
        memory = memory_for(pass_, lengths, torch.float64, scale=0.5)
        zeros = [t.zero_() for t in memory.initial]
        frame = Frame(
            offsets=offsets_of(lengths),
            direction=1,
            streams=memory.streams,
            shared=memory.shared,
            matrices=memory.matrices,
            accumulators=memory.accumulators,
            initial=zeros if given else [None],
            final=memory.final if given else [None],
            flipped=(False,),
        )
        if engine == "native":
            native_engine.NativePass(pass_).run_frame(frame)
        else:
            run_pass(pass_, frame)
        results.append([*memory.streams, *memory.accumulators])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("threads", [1, 2])
def test_two_loops_one_after_the_other(threads: int) -> None:
    b = Builder()
    x, y = b.stream(40), b.stream(40)
    prev, after = b.state(40, history=False)
    prev2, after2 = b.state(40, history=True)
    m, m2 = b.matrix(40, 40), b.matrix(40, 40)
    b.phase(
        LOOP, op("linear", after, prev, x, matrix=m), op("tanh", after, after), op("copy", y, after)
    )
    b.phase(BULK, op("mul", y, y, b.shared(40)))
    b.phase(LOOP, op("linear", after2, prev2, y, matrix=m2), op("sigmoid", after2, after2))
    memory = memory_for(b.build(), BATCHES["many"], torch.float64, scale=0.2)
    assert_like_reference(b.build(), BATCHES["many"], torch.float64, memory=memory, threads=threads)


def test_parts_of_a_state_may_be_written_one_by_one() -> None:
    b = Builder()
    x = b.stream(6)
    prev, after = b.state(6, history=False)
    b.phase(
        LOOP,
        op("add", columns(after, 0, 2), columns(prev, 4, 2), columns(x, 0, 2)),
        op("mul", columns(after, 2, 4), columns(prev, 0, 4), columns(x, 2, 4)),
    )
    assert_like_reference(b.build(), LENGTHS, torch.float64)
