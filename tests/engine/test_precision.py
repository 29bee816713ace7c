"""bfloat16 products: operands rounded, sums and all else float32; by argument, autocast, dtype."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import oracle
import unpad
from engine.every_cell import ENGINES, SHIPPED, TIERS, use
from engine.native_passes import BULK, REDUCE, Builder, memory_for, op, run_native
from unpad.engine import choose, native_engine, precision
from unpad.engine.native_engine import NativePass
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.nn import GRU, LSTM, RNN, GRUCell, LSTMCell, Recurrent

native = pytest.mark.skipif(not TIERS, reason="the native engine is not built")
FIRST = {"precision": "bfloat16"}
# What no rounding of an operand can be mistaken for, and what one flipped rounding may do.
TIGHT, FLIPPED = 1e-5, 1e-2


class Product(torch.autograd.Function):
    """left · right of operands rounded to bfloat16, in float64; so are the gradients' products."""

    @staticmethod
    def forward(ctx: Any, left: Tensor, right: Tensor) -> Tensor:
        ctx.save_for_backward(left, right)
        return narrow(left) @ narrow(right)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        left, right = ctx.saved_tensors
        return narrow(grad) @ narrow(right).T, narrow(left).T @ narrow(grad)


def narrow(value: Tensor) -> Tensor:
    return value.to(torch.bfloat16).to(value.dtype)


class Rounding(TorchFunctionMode):
    """Every product that a cell asks for is one of rounded operands."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is nn.functional.linear:
            x, weight, bias = (*args, *(kwargs or {}).values(), None)[:3]
            product = Product.apply(x, weight.T)
            return product if bias is None else product + bias
        if function in (torch.matmul, torch.mm, Tensor.matmul, Tensor.__matmul__):
            return Product.apply(*args)
        return function(*args, **(kwargs or {}))


def rounding_loop(*args: Any, **options: Any) -> Any:
    with Rounding():
        return oracle.loop(*args, **options)


def worst(actual: oracle.Outcome, wanted: oracle.Outcome) -> float:
    pairs = [(v, wanted.named()[name]) for name, v in actual.named().items() if v.numel()]
    return max(float((a.double() - b).abs().max() / b.abs().max().clamp_min(1)) for a, b in pairs)


def run_rounded(*args: Any, **options: Any) -> Any:
    return choose.run(*args, **options, **FIRST)


@pytest.mark.parametrize("name", SHIPPED)
def test_every_cell_and_its_gradients_on_every_engine_and_tier(name: str) -> None:
    """A state within 1e-7 of a tie may be rounded the other way: not in every seed there is one."""
    exact = dict.fromkeys(ENGINES, 0)
    for seed in range(3):
        torch.manual_seed(seed)
        cell = SHIPPED[name]().float()
        reverse = bool(seed % 2)
        x, offsets, state = oracle.batch(cell, [2, 0, 5, 1, 3], dtype=torch.float32, seed=seed)
        doubled = oracle.as_double(cell), x.double(), offsets, oracle.double(state)
        wanted = oracle.outcome(rounding_loop, *doubled, reverse=reverse)
        for engine in ENGINES:
            with use(engine):
                found = oracle.outcome(run_rounded, cell, x, offsets, state, reverse=reverse)
            error = worst(found, wanted)
            assert error < FLIPPED, (engine, seed, error)
            exact[engine] += error < TIGHT
    assert min(exact.values()) >= 1, exact


def test_it_is_no_float32_product() -> None:
    cell = LSTMCell(40, 30)
    x, offsets, state = oracle.batch(cell, [4, 9], dtype=torch.float32)
    plain, rounded = choose.run(cell, x, offsets, state), run_rounded(cell, x, offsets, state)
    assert 1e-4 < float((plain[0] - rounded[0]).detach().abs().max()) < 2e-2


# -- products --------------------------------------------------------------------------------------


def products(inputs: int, outputs: int, *, start: bool) -> NativePass:
    b = Builder()
    x, y, g = b.stream(inputs), b.stream(outputs), b.stream(outputs)
    weight, total = b.matrix(inputs, outputs), b.accumulator(inputs, outputs)
    b.phase(BULK, op("linear", y, x, *([g] if start else []), matrix=weight))
    b.phase(REDUCE, op("outer", None, x, g, matrix=total))
    return NativePass(b.build())


@native
@pytest.mark.parametrize("start", [False, True], ids=["from zero", "from a row"])
@pytest.mark.parametrize("transposed", [False, True], ids=["[K, N]", "[N, K] transposed"])
@pytest.mark.parametrize("tokens", [1, 3, 130])
@pytest.mark.parametrize("outputs", [1, 3, 130])
@pytest.mark.parametrize("inputs", [1, 3, 130, 513])
def test_both_products_have_the_same_bits_on_every_tier(
    inputs: int, outputs: int, tokens: int, transposed: bool, start: bool
) -> None:
    x, y, g = (torch.randn(tokens, w) for w in (inputs, outputs, outputs))
    weight = torch.randn(inputs, outputs)
    if transposed:
        weight = weight.T.contiguous().T
    pass_ = products(inputs, outputs, start=start)
    found: dict[str, list[Tensor]] = {}
    for tier in TIERS:
        total = torch.empty(inputs, outputs)
        with use(f"native {tier}"):
            pass_.run(
                dtype=torch.float32, offsets=torch.tensor([0, tokens]), streams=[x, y, g],
                matrices=[weight], accumulators=[total], **FIRST,
            )  # fmt: skip
        found[tier] = [y.clone(), total]
    wanted = narrow(x).double() @ narrow(weight).double() + (g.double() if start else 0)
    oracle.assert_close(found["generic"][0], wanted, 1e-6)
    oracle.assert_close(found["generic"][1], narrow(x).double().T @ narrow(g).double(), 1e-6)
    for tier, (row, total) in found.items():
        assert torch.equal(row, found["generic"][0]), tier
        assert torch.equal(total, found["generic"][1]), tier


@native
@pytest.mark.parametrize("tier", TIERS)
def test_ties_go_to_even_infinities_stay_and_nan_reaches_its_row_alone(tier: str) -> None:
    ulp = 2.0**-7  # of bfloat16 at 1
    given = [1 + ulp / 2, 1 + 1.5 * ulp, 1 + ulp / 2 + 2**-20, -1 - ulp / 2, 3e38, -float("inf")]
    wanted = [1.0, 1 + 2 * ulp, 1 + ulp, -1.0, 3e38, -float("inf")]
    given += [3.4e38, float("nan"), 2.0**-120]
    wanted += [float("inf"), float("nan"), 2.0**-120]
    x, y, g = torch.tensor(given)[:, None], torch.empty(len(given), 3), torch.zeros(len(given), 3)
    with use(f"native {tier}"):
        products(1, 3, start=False).run(
            dtype=torch.float32, offsets=torch.tensor([0, len(given)]), streams=[x, y, g],
            matrices=[torch.ones(1, 3)], accumulators=[torch.empty(1, 3)], **FIRST,
        )  # fmt: skip
    rounded = torch.tensor(wanted)[:, None].expand(-1, 3)
    torch.testing.assert_close(y, rounded, rtol=1e-2, atol=0, equal_nan=True)
    ordinary = [0, 1, 2, 3, 8]
    assert torch.equal(y[ordinary], rounded[ordinary])
    torch.testing.assert_close(
        precision.rounded(x).expand(-1, 3), y, rtol=0, atol=0, equal_nan=True
    )


@native
def test_float64_passes_refuse_to_be_rounded() -> None:
    pass_ = products(3, 4, start=False)
    memory = memory_for(_pass_of(3, 4), [2], torch.float64)
    with pytest.raises(ArgumentTypeError, match="dtype"):
        pass_.run(
            dtype=torch.float64, offsets=torch.tensor([0, 2]), streams=memory.streams,
            matrices=memory.matrices, accumulators=memory.accumulators, **FIRST,
        )  # fmt: skip


def _pass_of(inputs: int, outputs: int) -> Any:
    b = Builder()
    for width in (inputs, outputs, outputs):
        b.stream(width)
    b.matrix(inputs, outputs)
    b.accumulator(inputs, outputs)
    return b.build()


# -- the argument ----------------------------------------------------------------------------------


@pytest.fixture(params=[LSTM, GRU, RNN], ids=["lstm", "gru", "rnn"])
def layer(request: pytest.FixtureRequest) -> nn.Module:
    return request.param(12, 16, batch_first=True, precision="bfloat16")


def test_outputs_states_and_gradients_of_the_argument_are_float32(layer: nn.Module) -> None:
    x = torch.randn(3, 7, 12, requires_grad=True)
    output, state = layer(x, lengths=[7, 0, 4])
    output.sum().backward()
    given = [output, *(state if isinstance(state, tuple) else (state,)), x.grad]
    given += [p.grad for p in layer.parameters()]
    assert {t.dtype for t in given} == {torch.float32}
    assert "precision='bfloat16'" in repr(layer)


def test_functions_and_recurrent_give_the_layers_bits(layer: nn.Module) -> None:
    cell, x, lengths = layer.cell_with_weights(0), torch.randn(3, 7, 12), [7, 0, 4]
    wanted, _ = layer(x, lengths=lengths)
    assert torch.equal(Recurrent(cell, **FIRST)(x, lengths=lengths)[0], wanted)
    assert torch.equal(unpad.dynamic_rnn(cell, x, lengths, **FIRST)[0], wanted)
    (forward, backward), _ = unpad.bidirectional_dynamic_rnn(cell, cell, x, lengths, **FIRST)
    assert torch.equal(forward, wanted)
    both = Recurrent(cell, bidirectional=True, backward_cell=copy.deepcopy(cell), **FIRST)
    assert torch.equal(both(x, lengths=lengths)[0][..., 16:], backward)


def test_float64_is_never_rounded(layer: nn.Module) -> None:
    layer.double()
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    rounded, _ = layer(x)
    layer.precision = None
    assert torch.equal(layer(x)[0], rounded)


@pytest.mark.parametrize("value", ["bf16", 16, torch.bfloat16])
def test_another_precision_is_refused_by_name(value: Any) -> None:
    allowed = '"float32", "bfloat16" or None'
    for make in (
        lambda: LSTM(2, 3, precision=value),
        lambda: Recurrent(GRUCell(2, 3), precision=value),
    ):
        with pytest.raises((ArgumentError, ArgumentTypeError), match=f"precision.*{allowed}"):
            make()


def test_lean_memory_has_the_same_outputs_and_gradients() -> None:
    fast, lean = (LSTM(8, 16, memory=m, **FIRST) for m in ("fast", "lean"))
    lean.load_state_dict(fast.state_dict())
    found = []
    for layer in (fast, lean):
        x = unpad.Ragged.from_lengths(torch.ones(6000, 8).cumsum(0).sin(), [2500, 0, 3500])
        x.requires_grad_()
        output, _ = layer(x)
        found.append([output.values, *torch.autograd.grad(
            output.values.square().sum(), [x.values, *layer.parameters()])])  # fmt: skip
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])
    for one, other in zip(*found, strict=True):
        oracle.assert_close(one, other, 1e-5)


def test_second_derivatives_are_those_of_rounded_products() -> None:
    cell = LSTMCell(3, 4)
    x, offsets, state = oracle.batch(cell, [2, 3], dtype=torch.float32)

    def second(run: Any, x: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        output, _, _ = run(cell, x, offsets, state)
        (first,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), x)[0]

    plain = second(choose.run, x)
    assert 0 < float((second(run_rounded, x) - plain).abs().max()) < 0.05 * float(plain.abs().max())


def test_a_stepper_steps_in_the_layers_precision(layer: nn.Module) -> None:
    tokens = torch.randn(6, 12)
    wanted, _ = layer(tokens)
    stepper = unpad.Stepper(layer.eval())
    outputs = torch.stack([stepper(token) for token in tokens])
    if stepper.engine == "native":
        assert torch.equal(outputs, wanted)
    oracle.assert_close(outputs, wanted, 1e-2)


def test_explain_says_what_is_rounded() -> None:
    cell = GRUCell(2, 3)
    assert "products in bfloat16" in str(unpad.explain(cell, **FIRST))
    assert "products in bfloat16" in str(unpad.explain(cell.bfloat16()))
    assert "bfloat16" not in str(unpad.explain(cell.float()))


# -- autocast --------------------------------------------------------------------------------------


def autocast() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def test_autocast_gives_the_argument_s_numbers_in_the_dtype_of_torchs_lstm(
    layer: nn.Module,
) -> None:
    x = torch.randn(3, 7, 12)
    wanted, _ = layer(x, lengths=[7, 0, 4])
    layer.precision = None
    with autocast():
        output, final = layer(x, lengths=[7, 0, 4])
        peer, peers_state = nn.LSTM(12, 16, batch_first=True)(x)
    assert output.dtype is peer.dtype is torch.bfloat16
    leaf = final[1] if isinstance(final, tuple) else final
    assert leaf.dtype is peers_state[1].dtype
    assert torch.equal(output, wanted.bfloat16())


def test_training_in_autocast_is_as_near_to_float64_as_torchs_own() -> None:
    ours, peer = LSTM(24, 32, batch_first=True), nn.LSTM(24, 32, batch_first=True)
    ours.load_state_dict(peer.state_dict())
    x = torch.randn(4, 20, 24)

    def gradients(layer: nn.Module, x: Tensor) -> list[Tensor]:
        x = x.clone().requires_grad_()
        output, _ = layer(x)
        return list(torch.autograd.grad(output.square().sum(), [x, *layer.parameters()]))

    with autocast():
        mine, theirs = gradients(ours, x), gradients(peer, x)
    exact = gradients(peer.double(), x.double())
    for one, other, right in zip(mine, theirs, exact, strict=True):
        assert one.dtype is torch.float32
        scale = float(right.abs().max())
        error, peers = (float((t.double() - right).abs().max()) / scale for t in (one, other))
        assert error < max(0.02, 2 * peers)


def test_float32_products_can_be_kept_inside_autocast(layer: nn.Module) -> None:
    x = torch.randn(2, 5, 12)
    layer.precision = "float32"
    wanted, _ = layer(x)
    with autocast():
        assert torch.equal(layer(x)[0], wanted)


def test_bfloat16_inputs_and_float32_states_mix_inside_autocast() -> None:
    layer, x = LSTM(12, 16, num_layers=2, bidirectional=True), torch.randn(5, 2, 12).bfloat16()
    state = torch.zeros(4, 2, 16)
    with autocast():
        output, _ = layer(x, (state, state.bfloat16()))
        assert torch.equal(output, layer(x.float())[0])


@pytest.mark.parametrize("engine", ["torch", "native"] if TIERS else ["torch"])
def test_a_linear_layer_before_it_inside_autocast_changes_no_engine(engine: str) -> None:
    first, layer = nn.Linear(5, 12), LSTM(12, 16, batch_first=True)
    x = torch.randn(3, 7, 5)
    with autocast(), unpad.engine(engine):  # the name of an engine is an order, not a wish
        narrow_x = first(x)
        output, _ = layer(narrow_x, lengths=[7, 0, 4])
        output.float().square().sum().backward()
    assert (narrow_x.dtype, output.dtype) == (torch.bfloat16, torch.bfloat16)
    assert {p.grad.dtype for p in (*first.parameters(), *layer.parameters())} == {torch.float32}
    wanted, _ = LSTM.forward(layer, narrow_x.float().detach(), lengths=[7, 0, 4])
    oracle.assert_close(output.float(), wanted, 0.02)


def test_float16_autocast_changes_nothing(layer: nn.Module) -> None:
    layer.precision = None
    x = torch.randn(2, 5, 12)
    with torch.autocast("cpu", dtype=torch.float16):
        output, _ = layer(x)
    assert torch.equal(output, layer(x)[0])


# -- modules of bfloat16 ---------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["torch", "native"] if TIERS else ["torch"])
def test_converted_modules_take_and_give_bfloat16(layer: nn.Module, engine: str) -> None:
    layer.precision = None
    layer.bfloat16()
    x = torch.randn(3, 7, 12).bfloat16().requires_grad_()
    with unpad.engine(engine):
        output, state = layer(x, lengths=[7, 0, 4])
        output.float().square().sum().backward()
    leaves = state if isinstance(state, tuple) else (state,)
    assert {t.dtype for t in (output, *leaves, x.grad)} == {torch.bfloat16}
    wide = type(layer)(12, 16, batch_first=True).double()
    wide.load_state_dict(layer.state_dict())
    y = x.detach().double().requires_grad_()
    exact, _ = wide(y, lengths=[7, 0, 4])
    exact.square().sum().backward()
    oracle.assert_close(output, exact, 0.02)
    oracle.assert_close(x.grad, y.grad, 0.05)
    for mine, right in zip(layer.parameters(), wide.parameters(), strict=True):
        oracle.assert_close(mine.grad, right.grad, 0.05)


@pytest.mark.parametrize("name", ["stack", "layer norm lstm", "all wrapped", "lstm all"])
def test_any_cell_may_be_converted(name: str) -> None:
    cell = SHIPPED[name]().bfloat16()
    x, offsets, state = oracle.batch(cell, [3, 0, 5], dtype=torch.bfloat16)
    output, _, states = choose.run(cell, x, offsets, state, return_states=True)
    wanted, _, _ = choose.run(
        oracle.as_double(cell), x.double(), offsets, oracle.double(state), return_states=True
    )
    assert output.dtype is torch.bfloat16
    assert states is not None
    oracle.assert_close(output, wanted, 0.05)


def test_no_tokens_and_no_sequences() -> None:
    layer = LSTM(3, 4, **FIRST)
    for lengths in ([], [0, 0]):
        x = unpad.Ragged.from_lengths(torch.empty(0, 3), lengths).requires_grad_()
        output, (h, _) = layer(x)
        (output.values.sum() + h.sum()).backward()
        assert output.values.shape == (0, 4)


@native
def test_threads_and_tiers_are_told_nothing_by_a_rounded_row() -> None:
    """The same pass by its own door: rows, cut and threads change no bit (see test_bitwise)."""
    b = Builder()
    x, y = b.stream(65), b.stream(33)
    b.phase(BULK, op("linear", y, x, matrix=b.matrix(65, 33)))
    pass_ = b.build()
    whole = memory_for(pass_, [700], torch.float32)
    compiled = NativePass(pass_)
    run_native(compiled, whole, [700], torch.float32, threads=1)
    plain = whole.streams[1].clone()
    rounded = []
    for lengths in ([700], [3, 600, 97], [1] * 700):
        frame = {"offsets": oracle.offsets_of(lengths), "streams": whole.streams}
        compiled.run(dtype=torch.float32, matrices=whole.matrices, threads=2, **frame, **FIRST)
        rounded.append(whole.streams[1].clone())
    assert not torch.equal(rounded[0], plain)
    assert all(torch.equal(r, rounded[0]) for r in rounded)
    assert native_engine.tier() in TIERS
