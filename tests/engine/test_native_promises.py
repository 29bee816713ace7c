"""What the native engine promises beside its numbers: bits, errors, processes, memory."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from engine.native_lstm import NativeLSTM, forward_pass
from engine.native_passes import BULK, LOOP, REDUCE, Builder, columns, memory_for, op, run_native
from unpad.engine import native_engine
from unpad.engine.native_engine import NativePass, encode

pytestmark = pytest.mark.skipif(
    not native_engine.available(), reason=native_engine.unavailable_reason()
)

LENGTHS = [3, 0, 41, 1, 17, 5, 2, 9, 30, 4, 1, 6, 23, 8, 8, 12, 7]
ROWWISE = ["y", "h", "c", "dx", "dh0", "dc0"]


def lstm_run(dtype: torch.dtype, inputs: int, hidden: int, order: list[int], threads: int):
    """The LSTM on the sequences of LENGTHS in `order`; results by sequence number."""
    torch.manual_seed(7)
    lstm = torch.nn.LSTM(inputs, hidden, dtype=dtype)
    x = [torch.randn(n, inputs, dtype=dtype) for n in LENGTHS]
    dy = [torch.randn(n, hidden, dtype=dtype) for n in LENGTHS]
    states = torch.randn(2, len(LENGTHS), hidden, dtype=dtype)
    lengths = [LENGTHS[i] for i in order]
    out = NativeLSTM(lstm, threads=threads)(
        torch.cat([x[i] for i in order]),
        lengths,
        states[0][order],
        states[1][order],
        torch.cat([dy[i] for i in order]),
    )
    rows: dict[int, dict[str, torch.Tensor]] = {i: {} for i in order}
    for name in ROWWISE:
        parts = out[name].split(lengths) if name in ("y", "dx") else out[name].unbind()
        for i, part in zip(order, parts, strict=True):
            rows[i][name] = part
    return rows, out


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("inputs", "hidden"), [(3, 5), (40, 64), (17, 130)])
def test_a_row_alone_equals_the_row_in_a_crowd(
    dtype: torch.dtype, inputs: int, hidden: int
) -> None:
    everyone = list(range(len(LENGTHS)))
    crowd, _ = lstm_run(dtype, inputs, hidden, everyone, threads=1)
    shuffled = random.sample(everyone, len(everyone))
    variants = [lstm_run(dtype, inputs, hidden, shuffled, threads=2)[0]]
    variants += [lstm_run(dtype, inputs, hidden, [i], threads=1)[0] for i in everyone]
    variants += [lstm_run(dtype, inputs, hidden, shuffled[:n], threads=1)[0] for n in (2, 7, 13)]
    for rows in variants:
        for i, values in rows.items():
            for name in ROWWISE:
                assert torch.equal(values[name], crowd[i][name]), (i, name)


def test_weight_gradients_repeat_at_a_fixed_number_of_threads() -> None:
    order = list(range(len(LENGTHS)))
    for threads in (1, 2):
        first, second = (lstm_run(torch.float32, 40, 64, order, threads)[1] for _ in range(2))
        for name in ("dw", "du", "db"):
            assert torch.equal(first[name], second[name])


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("inputs", "hidden"), [(1, 1), (3, 5), (12, 130), (64, 48)])
def test_lstm_and_its_gradients_are_torchs(
    inputs: int, hidden: int, reverse: bool, threads: int
) -> None:
    dtype = torch.float64
    lstm = torch.nn.LSTM(inputs, hidden, dtype=dtype)
    tokens = sum(LENGTHS)
    x = torch.randn(tokens, inputs, dtype=dtype, requires_grad=True)
    dy = torch.randn(tokens, hidden, dtype=dtype)
    h0, c0 = torch.randn(2, len(LENGTHS), hidden, dtype=dtype).requires_grad_().unbind()
    h0.retain_grad()
    c0.retain_grad()
    outs, finals = [], []
    for i, part in enumerate(x.split(LENGTHS)):
        state = (h0[i : i + 1], c0[i : i + 1])
        if len(part) == 0:
            finals.append(state)
            continue
        y, state = lstm(part.flip(0) if reverse else part, state)
        outs.append(y.flip(0) if reverse else y)
        finals.append(state)
    torch.cat(outs).backward(dy)
    got = NativeLSTM(lstm, reverse=reverse, threads=threads)(
        x.detach(), LENGTHS, h0.detach(), c0.detach(), dy
    )
    w, u, b, _ = lstm.parameters()
    want = {
        "y": torch.cat(outs), "h": torch.cat([f[0] for f in finals]),
        "c": torch.cat([f[1] for f in finals]), "dx": x.grad, "dh0": h0.grad, "dc0": c0.grad,
        "dw": w.grad, "du": u.grad, "db": b.grad,
    }  # fmt: skip
    for name, tensor in want.items():
        torch.testing.assert_close(got[name], tensor, rtol=1e-10, atol=1e-10, msg=name)


# -- bad programs and bad calls ------------------------------------------------------------------


def broken_passes():
    b = Builder()
    x, y, m = b.stream(4), b.stream(6), b.matrix(4, 6)
    prev, after = b.state(4, history=False)
    acc, w = b.accumulator(4, 6), b.window(6)
    loop = (LOOP, op("add", after, prev, x))

    def made(*phases):
        c = replace(b, phases=[])
        for phase in (loop, *phases):
            c.phase(*phase)
        return c.build()

    return {
        "too few arguments": made((BULK, op("add", x, x))),
        "width differs": made((BULK, op("add", y, x, x))),
        "columns outside": made((BULK, op("neg", columns(y, 4, 4), x))),
        "offset negative": made((BULK, op("neg", columns(y, -1, 4), x))),
        "no such buffer": made((BULK, op("neg", replace(y, buffer=99), y))),
        "matrix size": made((BULK, op("linear", x, y, matrix=m))),
        "no matrix": made((BULK, op("linear", y, x))),
        "table entry": made((BULK, op("take", x, y, table=0))),
        "dims": made((BULK, op("sum", x, y, dims=(2, 2, 2)))),
        "dims zero": made((BULK, op("sum", x, y, dims=(0, 1, 6)))),
        "dims overflow": made((BULK, op("expand", y, x, dims=(1 << 27, 1 << 27, 1 << 27)))),
        "state outside of a loop": made((BULK, op("neg", x, prev))),
        "result in PREV": made((LOOP, op("neg", prev, x), op("neg", after, x))),
        "outer in BULK": made((BULK, op("outer", None, x, y, matrix=acc))),
        "sum in REDUCE": made((REDUCE, op("neg", w, y))),
        "accumulator size": made((REDUCE, op("outer", None, y, x, matrix=acc))),
        "partial overlap": made((BULK, op("neg", columns(y, 0, 4), columns(y, 2, 4)))),
        "product in place": made((BULK, op("softmax", y, y, dims=(1, 6, 1)))),
        "state never written": replace(made(), phases=()),
        "state in two loops": made(loop),
        "constant out of range": replace(
            made(), buffers=(*b.buffers, replace(b.buffers[0], kind=4, width=1, index=0))
        ),
        "stream out of range": replace(made(), n_streams=1),
    }


@pytest.mark.parametrize("name", broken_passes() if native_engine.available() else [])
def test_a_bad_program_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"instruction|program|state|buffer"):
        NativePass(broken_passes()[name])


def test_no_change_to_an_encoded_program_crashes() -> None:
    """Any number replaced by any other: a ValueError, or a program that is valid."""
    code, constants = encode(forward_pass(3, 4))
    refused = 0
    for _ in range(4000):
        changed = code.copy()
        for _ in range(random.choice([1, 1, 3])):
            changed[random.randrange(len(code))] = random.choice(
                [-1, 0, 1, 2, 5, 17, 1 << 31, 1 << 62, -(1 << 63), random.randrange(100)]
            )
        size = random.choice([len(code), len(code), random.randrange(len(code))])
        try:
            native_engine._native.Program(changed[:size].copy(), constants)
        except ValueError:
            refused += 1
    assert refused > 3000


def test_tensors_that_do_not_fit_are_refused() -> None:
    pass_ = forward_pass(3, 4)
    compiled, dtype = NativePass(pass_), torch.float32

    def refuses(error: type[Exception], match: str, **changes: object) -> None:
        m = memory_for(pass_, [2, 3], dtype)
        arguments = {
            "dtype": dtype, "offsets": torch.tensor([0, 2, 5]), "streams": m.streams,
            "shared": m.shared, "matrices": m.matrices, "initial": m.initial, "final": m.final,
        } | changes  # fmt: skip
        with pytest.raises(error, match=match):
            compiled.run(**arguments)

    good = memory_for(pass_, [2, 3], dtype)
    refuses(ValueError, "offset", offsets=torch.tensor([0, 2, 4]))
    refuses(ValueError, "offset", offsets=torch.tensor([0, 6, 5]))
    refuses(ValueError, "offset", offsets=torch.tensor([1, 2, 5]))
    refuses(ValueError, "offset", offsets=torch.tensor([0, 2, 5], dtype=torch.int32))
    refuses(TypeError, "dtype", dtype=torch.float16)
    refuses(TypeError, "streams", streams=[t.double() for t in good.streams])
    refuses(ValueError, "streams", streams=good.streams[:-1])
    refuses(ValueError, "streams", streams=[t[:, ::2] for t in good.streams])
    refuses(ValueError, "matrices", matrices=[t.T for t in good.matrices])
    refuses(ValueError, "initial", initial=[t.T.contiguous().T for t in good.initial])
    refuses(ValueError, "final", final=[t[:1] for t in good.final])


# -- functions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "exact", "bound"),
    [
        ("exp", np.exp, 1.1),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x)), 2.5),
        ("tanh", np.tanh, 2.5),
    ],
)
def test_float32_functions_are_exact_to_a_few_units(name: str, exact, bound: float) -> None:
    """Every 10,007th float32 in size from 1e-12 to infinity, against float64."""
    x = np.arange(random.randrange(10_007), 1 << 32, 10_007, dtype=np.uint64).astype(np.uint32)
    x = x.view(np.float32)
    x = x[np.isfinite(x) & (np.abs(x) >= 1e-12)]
    x = x[: len(x) // 50 * 50].reshape(-1, 50)  # 50 columns: body and tail of a vector
    got = apply_to(name, x)
    with np.errstate(over="ignore"):
        want = exact(x.astype(np.float64))
    normal = (np.abs(want) > 1.2e-37) & (np.abs(want) < np.finfo(np.float32).max)
    unit = np.spacing(np.abs(want[normal]).astype(np.float32)).astype(np.float64)
    assert (np.abs(got[normal] - want[normal]) / unit).max() < bound


@pytest.mark.parametrize("name", ["exp", "sigmoid", "tanh"])
def test_float32_functions_at_the_ends(name: str) -> None:
    x = np.array([[np.nan, np.inf, -np.inf, 0.0, 200.0, -200.0]], dtype=np.float32)
    want = {
        "exp": [np.nan, np.inf, 0, 1, np.inf, 0],
        "sigmoid": [np.nan, 1, 0, 0.5, 1, 0],
        "tanh": [np.nan, 1, -1, 0, 1, -1],
    }[name]
    np.testing.assert_allclose(apply_to(name, x)[0], want, atol=1e-37)


def apply_to(name: str, x: np.ndarray) -> np.ndarray:
    b = Builder()
    b.phase(BULK, op(name, b.stream(x.shape[1]), b.stream(x.shape[1])))
    memory = memory_for(b.build(), [len(x)], torch.float32)
    memory.streams[1][:] = torch.from_numpy(x)
    run_native(b.build(), memory, [len(x)], torch.float32)
    return memory.streams[0].numpy()


# -- tiers, processes, memory --------------------------------------------------------------------


@pytest.mark.slow
def test_every_tier_of_this_machine_agrees_with_the_reference() -> None:
    """The instruction tests again, one process a tier: the tier is chosen at first use."""
    for tier in native_engine._native.supported_tiers():
        if tier == native_engine.tier():
            continue
        command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        run = subprocess.run(
            [*command, "-n0", str(Path(__file__).with_name("test_native.py"))],
            env={**os.environ, "UNPAD_ISA": tier}, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert run.returncode == 0, f"{tier}\n{run.stdout[-3000:]}"


@pytest.mark.parametrize("tier", ["avx1024", "avx512"])
def test_a_tier_that_cannot_run_is_refused_by_name(tier: str) -> None:
    if tier in native_engine._native.supported_tiers():
        pytest.skip("this machine runs it")
    code = "from unpad.engine import native_engine as n; n.tier()"
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "UNPAD_ISA": tier},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 1
    assert f"UNPAD_ISA: got '{tier}'; allowed on this machine: generic" in run.stderr


def test_one_openmp_runtime_is_loaded() -> None:
    """In a process of its own: another library of the test run may bring a second one."""
    program = """if True:
        from pathlib import Path
        import torch, unpad
        unpad.nn.RNN(2, 3)([torch.randn(4, 2)])
        maps = Path("/proc/self/maps").read_text().splitlines()
        print(len({m.split()[-1] for m in maps if "libgomp" in m or "libomp" in m}))
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "1", done.stdout + done.stderr


def test_one_thread_is_for_the_caller_alone_and_for_a_while() -> None:
    torch.set_num_threads(2)
    seen: list[int] = []
    other = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
    with native_engine.one_thread():
        seen.append(torch.get_num_threads())
        other.start()
        other.join()
    assert [*seen, torch.get_num_threads()] == [1, 2, 2]


def test_a_forked_process_computes_the_same() -> None:
    order = list(range(len(LENGTHS)))
    torch.set_num_threads(2)
    want = lstm_run(torch.float32, 40, 64, order, threads=2)[1]["y"]
    child = os.fork()
    if child == 0:
        same = torch.equal(lstm_run(torch.float32, 40, 64, order, threads=2)[1]["y"], want)
        os._exit(0 if same else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_denormals_are_zero_inside_and_the_caller_keeps_its_own() -> None:
    b = Builder()
    x, y = b.stream(9), b.stream(9)
    b.phase(BULK, op("mul", y, x, b.constant(0.5)))
    memory = memory_for(b.build(), [3], torch.float32)
    memory.streams[0].fill_(1.2e-38)
    run_native(b.build(), memory, [3], torch.float32)
    assert (memory.streams[1] == 0).all()
    assert (torch.full((9,), 1.2e-38) * 0.5 > 0).all()


def test_nan_in_a_row_stays_in_that_row() -> None:
    pass_ = forward_pass(6, 10)
    memory = memory_for(pass_, LENGTHS, torch.float32)
    start = sum(LENGTHS[:4])
    memory.streams[0][start] = float("nan")
    run_native(pass_, memory, LENGTHS, torch.float32)
    y = memory.streams[-1]
    assert y[start : start + LENGTHS[4]].isnan().all()
    assert y[:start].isfinite().all()
    assert y[start + LENGTHS[4] :].isfinite().all()


def test_pooled_memory_is_reused_and_given_back() -> None:
    native_engine.trim()
    first = native_engine.empty(1000, 300, torch.float32)
    address, view = first.data_ptr(), first[3:5]
    assert first.shape == (1000, 300)
    assert address % 64 == 0
    del first
    assert native_engine.empty(1000, 300, torch.float32).data_ptr() != address  # a view lives
    del view
    native_engine.trim()
    assert native_engine._native.idle_bytes() == 0
    assert native_engine.empty(0, 5, torch.float64).shape == (0, 5)


@pytest.mark.skipif(
    os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") < 6 << 30,
    reason="no more than a quarter of the memory is kept",
)
def test_memory_of_a_large_call_is_kept_for_the_next() -> None:
    native_engine.trim()
    rows = 6 * 1024 * 1024 // 5  # times a kilobyte: 1.2 GB, of which nothing is touched
    large = native_engine.empty(rows, 256, torch.float32)
    address, size = large.data_ptr(), large.nbytes
    del large
    assert native_engine._native.idle_bytes() >= size
    assert native_engine.empty(rows, 256, torch.float32).data_ptr() == address
    assert native_engine.trim() >= size


@pytest.mark.slow
def test_memory_is_flat_over_a_thousand_calls() -> None:
    lstm = torch.nn.LSTM(16, 24)
    native = NativeLSTM(lstm, threads=1)
    rng = np.random.default_rng(0)

    def calls(n: int) -> int:
        for _ in range(n):
            lengths = rng.integers(0, 40, size=rng.integers(1, 20)).tolist()
            x, dy = torch.randn(sum(lengths), 16), torch.randn(sum(lengths), 24)
            native(x, lengths, *torch.zeros(2, len(lengths), 24), dy)
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = calls(200)
    assert calls(800) - before < 4096  # KiB
