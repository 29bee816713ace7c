"""Gradients by every way that torch has of asking for them; a run is like any torch module."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import resource
import subprocess
import sys
import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad, gradcheck, gradgradcheck

import oracle
import unpad
from engine.every_cell import SHIPPED, TIERS, use
from random_cells import random_cell
from unpad import Cell
from unpad.engine import choose, eager
from unpad.nn import Dropout, GRUCell, LayerNormLSTMCell, LSTMCell, RNNCell, Stack

ENGINES = ["torch", *(["native"] if TIERS else [])]
each_engine = pytest.mark.parametrize("engine", ENGINES)
LENGTHS = [2, 0, 4, 1]


def run_both(engine: str, cell: nn.Module, question, lengths=LENGTHS) -> None:
    """``question(run, cell, x, offsets, state)`` has the answers that the eager loop gives."""
    x, offsets, state = oracle.batch(cell, lengths)
    wanted = question(eager.run, copy.deepcopy(cell), x.clone(), offsets, clone(state))
    with unpad.engine(engine):
        actual = question(choose.run, cell, x.clone(), offsets, clone(state))
    assert len(actual) == len(wanted)
    for i, (a, b) in enumerate(zip(actual, wanted, strict=True)):
        present = next((v for v in (a, b) if v is not None), None)
        if present is not None:  # a gradient of zeros and none at all are the same to an optimizer
            left, right = (torch.zeros_like(present) if v is None else v for v in (a, b))
            oracle.assert_close(left, right, 1e-10, str(i))


def clone(state):
    return tuple(map(clone, state)) if isinstance(state, tuple) else state.clone()


def leaves(state) -> list[Tensor]:
    return [v for s in state for v in leaves(s)] if isinstance(state, tuple) else [state]


def gradients(cell: nn.Module, *others: Tensor) -> list[Tensor | None]:
    return [*(p.grad for p in cell.parameters()), *(t.grad for t in others)]


@each_engine
@pytest.mark.parametrize("name", ["lstm all", "gru reset before", "layer norm lstm", "stack"])
def test_frozen_weights_all_and_one_by_one(name: str, engine: str) -> None:
    def question(run, cell, x, offsets, state):
        found = []
        for frozen in [None, *range(len(list(cell.parameters())))]:
            for i, p in enumerate(cell.parameters()):
                p.requires_grad_(frozen is not None and i != frozen)
            x.grad = None
            cell.zero_grad()
            output, _, _ = run(cell, x.requires_grad_(), offsets, state)
            output.square().sum().backward()
            found += gradients(cell, x)
        return found

    run_both(engine, SHIPPED[name]().double(), question)


@each_engine
def test_any_one_thing_alone_may_require_a_gradient(engine: str) -> None:
    def question(run, cell, x, offsets, state):
        for p in cell.parameters():
            p.requires_grad_(False)
        found = []
        for tensor in (x, *leaves(state), *cell.parameters()):
            tensor.requires_grad_()
            output, _, _ = run(cell, x, offsets, state)
            found += torch.autograd.grad(output.square().sum(), tensor)
            tensor.requires_grad_(False)
        output, _, _ = run(cell, x, offsets, state)
        assert not output.requires_grad
        return found

    run_both(engine, LSTMCell(3, 4).double(), question)


@each_engine
@pytest.mark.parametrize("of", ["output", "final", "states", "first final", "second state"])
@pytest.mark.parametrize("name", ["lstm", "stack", "layer norm lstm"])
def test_a_loss_on_one_result_alone(name: str, of: str, engine: str) -> None:
    def question(run, cell, x, offsets, state):
        start = [s.requires_grad_() for s in leaves(state)]
        output, final, states = run(cell, x.requires_grad_(), offsets, state, return_states=True)
        picked = {
            "output": [output],
            "final": leaves(final),
            "states": leaves(states),
            "first final": leaves(final)[:1],
            "second state": leaves(states)[1:2],
        }[of]
        sum(v.sin().sum() for v in picked).backward()
        return gradients(cell, x, *start)

    run_both(engine, SHIPPED[name]().double(), question)


@each_engine
def test_backward_twice_over_a_retained_graph(engine: str) -> None:
    def question(run, cell, x, offsets, state):
        output, _, _ = run(cell, x.requires_grad_(), offsets, state)
        loss = output.square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        return gradients(cell, x)

    run_both(engine, LayerNormLSTMCell(3, 4).double(), question)


@each_engine
def test_forwards_before_one_backward_and_backwards_in_another_order(engine: str) -> None:
    def question(run, cell, x, offsets, state):
        first, _, _ = run(cell, x.requires_grad_(), offsets, state)
        second, _, _ = run(cell, 2 * x, offsets, state, reverse=True)
        chained, _, _ = run(cell, torch.cat([first, second[:, :1]], 1)[:, :3], offsets, state)
        (first.sum() + second.square().sum()).backward(retain_graph=True)
        chained.sum().backward()
        return gradients(cell, x)

    run_both(engine, LSTMCell(3, 4).double(), question)


@each_engine
def test_carried_states_as_in_truncated_backpropagation(engine: str) -> None:
    def question(run, cell, x, offsets, state):
        _, middle, _ = run(cell, x.requires_grad_(), offsets, state)
        output, final, _ = run(cell, x, offsets, middle)
        (output.sum() + leaves(final)[1].sum()).backward()
        return gradients(cell, x)

    run_both(engine, LSTMCell(3, 4).double(), question)


# -- second derivatives ----------------------------------------------------------------------------

SMALL = {
    "rnn": lambda: RNNCell(2, 3),
    "gru": lambda: GRUCell(2, 3),
    "lstm": lambda: LSTMCell(2, 3),
    "layer norm lstm": lambda: LayerNormLSTMCell(2, 3, eps=0.1),
    "stack": lambda: Stack([RNNCell(2, 3), GRUCell(3, 2)]),
}


@each_engine
@pytest.mark.parametrize("name", SMALL)
def test_first_and_second_gradients_by_finite_differences(name: str, engine: str) -> None:
    cell = SMALL[name]().double()
    x, offsets, state = oracle.batch(cell, [3, 1])
    parameters = list(cell.parameters())
    starts = leaves(state)

    def function(x, *rest):
        values = dict(
            zip([n for n, _ in cell.named_parameters()], rest[len(starts) :], strict=True)
        )
        form = iter(rest[: len(starts)])
        again = torch.utils._pytree.tree_map(lambda _: next(form), state)
        with swapped(cell, values):
            output, final, _ = choose.run(cell, x, offsets, again)
        return output, *leaves(final)

    inputs = [v.detach().requires_grad_() for v in (x, *starts, *parameters)]
    with unpad.engine(engine):
        assert gradcheck(function, inputs, fast_mode=True)
        assert gradgradcheck(function, inputs, fast_mode=True)


class swapped:  # noqa: N801 - reads as a word
    """Plain tensors in the place of a module's parameters."""

    def __init__(self, cell: nn.Module, values: dict[str, Tensor]) -> None:
        self.cell, self.values, self.kept = cell, values, {}

    def __enter__(self) -> None:
        for name, value in self.values.items():
            owner = self.cell.get_submodule(name.rpartition(".")[0])
            key = name.rpartition(".")[2]
            self.kept[name] = owner._parameters.pop(key)
            setattr(owner, key, value)

    def __exit__(self, *_: object) -> None:
        for name, value in self.kept.items():
            owner = self.cell.get_submodule(name.rpartition(".")[0])
            key = name.rpartition(".")[2]
            delattr(owner, key)
            owner._parameters[key] = value


@each_engine
def test_functional_call_takes_other_parameters(engine: str) -> None:
    cell = LSTMCell(3, 4).double()
    x, offsets, state = oracle.batch(cell, LENGTHS)
    others = {n: torch.randn_like(p, requires_grad=True) for n, p in cell.named_parameters()}

    class Runner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = cell

        def forward(self, run):
            return run(self.cell, x, offsets, state)[0]

    named = {f"cell.{n}": t for n, t in others.items()}
    results = {}
    for kind, run in (("eager", eager.run), (engine, choose.run)):
        with unpad.engine(engine):
            output = torch.func.functional_call(Runner(), named, (run,))
        results[kind] = torch.autograd.grad(output.square().sum(), list(others.values()))
    for a, b in zip(results[engine], results["eager"], strict=True):
        oracle.assert_close(a, b, 1e-10)


@each_engine
@pytest.mark.parametrize("name", ["lstm all", "gru", "layer norm lstm", "stack"])
def test_a_gradient_penalty_is_the_eager_one(name: str, engine: str) -> None:
    """WGAN-GP: the norm of dx is part of the loss."""

    def question(run, cell, x, offsets, state):
        score, final, _ = run(cell, x.requires_grad_(), offsets, state)
        total = score.sum() + leaves(final)[0].square().sum()
        (dx,) = torch.autograd.grad(total, x, create_graph=True)
        ((dx.square().sum(1) + 1e-3).sqrt() - 1).square().mean().backward()
        return gradients(cell, x)

    run_both(engine, SHIPPED[name]().double(), question)


@each_engine
@pytest.mark.parametrize("number", [1, 4, 8, 12, 23, 31])
def test_second_derivatives_of_random_cells(number: int, engine: str) -> None:
    def question(run, cell, x, offsets, state):
        output, _, states = run(cell, x.requires_grad_(), offsets, state, return_states=True)
        floats = [v for v in leaves(states) if v.is_floating_point()]
        loss = output.square().sum() + sum(v.sum() for v in floats)
        (dx,) = torch.autograd.grad(loss, x, create_graph=True)
        if dx.requires_grad:
            dx.square().sum().backward()
        return gradients(cell)

    run_both(engine, random_cell(number), question)


@each_engine
def test_second_derivatives_under_dropout_use_the_same_masks(engine: str) -> None:
    """The penalty's gradient by finite differences of the first, at one seed."""
    cell = Dropout(RNNCell(3, 4), input=0.3, state=0.4).double()
    x, offsets, state = oracle.batch(cell, [3, 1])

    def first(x: Tensor, create: bool) -> Tensor:
        torch.manual_seed(5)
        output, _, _ = choose.run(cell, x, offsets, state)
        (dx,) = torch.autograd.grad(output.square().sum(), x, create_graph=create)
        return dx.square().sum()

    with unpad.engine(engine):
        x.requires_grad_()
        (slope,) = torch.autograd.grad(first(x, True), x)
        direction, step = torch.randn_like(x), 1e-6
        change = first((x + step * direction).detach().requires_grad_(), False)
        change = change - first((x - step * direction).detach().requires_grad_(), False)
    oracle.assert_close((slope * direction).sum(), change / (2 * step), 1e-6)


class Repeats(Cell):
    """One bias in two sums, one weight in two products."""

    def __init__(self) -> None:
        super().__init__()
        self.input_size = self.state_size = 3
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.bias = nn.Parameter(torch.randn(3))

    def forward(self, x, h):
        z = torch.sigmoid(
            self.first(x) + torch.nn.functional.linear(h, self.second.weight) + self.bias
        )
        h = z * h + torch.tanh(self.second(x) + self.first(h) + self.bias)
        return h, h


@each_engine
@pytest.mark.parametrize("memory", ["fast", "lean"])
def test_a_tensor_at_several_places_has_one_gradient_with_a_graph_or_without(
    engine: str, memory: str
) -> None:
    repeats, tied, lstm = Repeats().double(), RNNCell(3, 3).double(), LSTMCell(3, 3).double()
    tied.bias_hh = tied.bias_ih
    long = 3000 if memory == "lean" and engine == "native" else 3  # so that it is cut
    x = torch.randn(1, long, 3, dtype=torch.float64)
    h = torch.randn(1, 3, dtype=torch.float64, requires_grad=True)
    for cell, state in ((repeats, h), (tied, h), (lstm, (h, h))):
        layer, wanted = unpad.nn.Recurrent(cell, memory=memory), [*cell.parameters(), h]
        found: list[tuple[Tensor, ...]] = []
        for create in (False, True):
            with unpad.engine(engine):
                total = layer(x, state)[0].sum()
                found.append(torch.autograd.grad(total, wanted, create_graph=create))
        for plain, graph in zip(*found, strict=True):
            oracle.assert_close(plain, graph.detach(), 1e-9)


@each_engine
def test_a_second_derivative_of_what_does_not_depend(engine: str) -> None:
    class Apart(Cell):
        input_size = state_size = 3

        def forward(self, x, h):
            return 2 * x, torch.tanh(h)

    cell = Apart().double()
    x, offsets, state = oracle.batch(cell, LENGTHS)
    with unpad.engine(engine):
        output, _, _ = choose.run(cell, x.requires_grad_(), offsets, state.requires_grad_())
        dx, dh = torch.autograd.grad(output.sum(), [x, state], create_graph=True, allow_unused=True)
    assert torch.equal(dx, torch.full_like(dx, 2))
    assert dh is None or (dh == 0).all()


# -- transforms ------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch's own jvp
def test_transforms_are_right_or_refused_in_words() -> None:
    cell = GRUCell(3, 4).double()
    x, offsets, state = oracle.batch(cell, [3])

    def loss(x: Tensor) -> Tensor:
        return choose.run(cell, x, offsets, state)[0].square().sum()

    wanted = torch.autograd.grad(loss(x.requires_grad_()), x)[0]
    x = x.detach()
    oracle.assert_close(torch.func.grad(loss)(x), wanted, 1e-10)
    many = torch.stack([x, 2 * x, -x])
    per_sample = torch.func.vmap(torch.func.grad(loss))(many)
    for row, sample in zip(per_sample, many, strict=True):
        leaf = sample.clone().requires_grad_()
        oracle.assert_close(row, torch.autograd.grad(loss(leaf), leaf)[0], 1e-10)
    tangent = torch.randn_like(x)
    _, forward_mode = torch.func.jvp(loss, (x,), (tangent,))
    oracle.assert_close(forward_mode, (wanted * tangent).sum(), 1e-10)
    oracle.assert_close(torch.func.jacrev(loss)(x), wanted, 1e-10)
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(loss(forward_ad.make_dual(x, tangent)))
    oracle.assert_close(dual.tangent, (wanted * tangent).sum(), 1e-10)


# -- modes, copies, forms --------------------------------------------------------------------------


@each_engine
def test_no_grad_and_inference_mode_give_the_same_numbers(engine: str) -> None:
    cell = Stack([LSTMCell(3, 4), LayerNormLSTMCell(4, 2)]).double()
    x, offsets, state = oracle.batch(cell, LENGTHS)
    with unpad.engine(engine):
        wanted, _, _ = choose.run(cell, x, offsets, state)
        with torch.no_grad():
            plain, _, _ = choose.run(cell, x, offsets, state)
        with torch.inference_mode():
            inferred, _, _ = choose.run(cell, x, offsets, state)
    assert torch.equal(plain, wanted)
    assert torch.equal(inferred, wanted)
    assert not plain.requires_grad
    assert inferred.is_inference()
    assert wanted.requires_grad


@each_engine
def test_copies_of_a_cell_that_has_run_are_cells_of_their_own(engine: str) -> None:
    cell = Stack([LSTMCell(3, 4), GRUCell(4, 2)]).double()
    x, offsets, state = oracle.batch(cell, LENGTHS)
    with unpad.engine(engine):
        wanted, _, _ = choose.run(cell, x, offsets, state)
        saved = io.BytesIO()
        torch.save(cell, saved)
        saved.seek(0)
        copies = [copy.deepcopy(cell), pickle.loads(pickle.dumps(cell))]
        copies.append(torch.load(saved, weights_only=False))
        for other in copies:
            assert torch.equal(choose.run(other, x, offsets, state)[0], wanted)
            with torch.no_grad():
                other.cells[0].weight_hh.zero_()
            assert not torch.equal(choose.run(other, x, offsets, state)[0], wanted)
        assert torch.equal(choose.run(cell, x, offsets, state)[0], wanted)


@each_engine
def test_any_strides_of_inputs_states_and_gradients(engine: str) -> None:
    def question(run, cell, x, offsets, state):
        tokens = len(x)
        forms = [
            x.t().contiguous().t(),
            torch.stack([x, x], 2)[:, :, 0],
            torch.cat([x, x], 1)[:, 3:],
            x[:1].expand(tokens, -1),
            x[:, :1].expand(-1, 3),
            torch.cat([x, x])[::2],
        ]
        found = []
        for form in forms:
            leaf = form.detach().requires_grad_()
            h, c = state
            state = (h.t().contiguous().t(), c[:1].expand_as(c))
            output, final, _ = run(cell, leaf, offsets, state)
            grad = torch.randn(1, 1, dtype=x.dtype, generator=torch.Generator().manual_seed(1))
            output.backward(grad.expand_as(output), retain_graph=True)
            output.t().contiguous().t().sum().backward(retain_graph=True)
            final[1].t().sum(0).square().sum().backward()
            found += [output, final[0], leaf.grad]
        return [*found, *gradients(cell)]

    run_both(engine, LSTMCell(3, 4).double(), question)


@each_engine
@pytest.mark.parametrize("lengths", [[0, 0], [], [0, 3, 0]], ids=str)
def test_of_length_0_the_gradient_is_the_identity(lengths: list[int], engine: str) -> None:
    cell = LayerNormLSTMCell(3, 4).double()
    x, offsets, state = oracle.batch(cell, lengths)
    h, c = (s.requires_grad_() for s in state)
    with unpad.engine(engine):
        output, final, _ = choose.run(cell, x.requires_grad_(), offsets, (h, c))
        weights = torch.randn_like(final[1])
        (final[1] * weights).sum().backward(retain_graph=True)
        for row, length in enumerate(lengths):
            if length == 0:
                assert torch.equal(final[0][row], h[row])
                assert torch.equal(c.grad[row], weights[row])
                assert (h.grad[row] == 0).all()
        output.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in cell.parameters())


@each_engine
def test_an_integer_state_is_kept_and_needs_no_gradient(engine: str) -> None:
    class Counts(Cell):
        input_size, state_size = 3, (3, torch.Size([]))

        def initial_state(self, batch_size, *, dtype=None, device=None):
            h, n = super().initial_state(batch_size, dtype=dtype, device=device)
            return h, n.to(torch.int64)

        def forward(self, x, state):
            h, n = state
            h = torch.tanh(h + x * (n % 3).unsqueeze(1))
            return h, (h, n + 1)

    def question(run, cell, x, offsets, state):
        output, (h, n), states = run(cell, x.requires_grad_(), offsets, state, return_states=True)
        assert n.dtype == states[1].dtype == torch.int64
        (output.sum() + h.sum()).backward()
        return [output, n, states[1], x.grad]

    run_both(engine, Counts().double(), question)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_float16_runs_on_the_torch_engine_and_bfloat16_on_the_native_one(
    dtype: torch.dtype,
) -> None:
    cell = LSTMCell(3, 4).to(dtype)
    x, offsets, state = oracle.batch(cell, LENGTHS, dtype=dtype)
    output, _, _ = choose.run(cell, x.requires_grad_(), offsets, state)
    output.sum().backward()
    assert output.dtype == x.grad.dtype == cell.weight_ih.grad.dtype == dtype
    native = dtype is torch.bfloat16 and TIERS
    assert unpad.explain(cell).engine == ("native" if native else "torch")
    wanted = oracle.expected(cell, x, offsets, state)
    oracle.assert_close(output, wanted.output, 0.05)


@pytest.mark.parametrize("make", [unpad.nn.LSTM, unpad.nn.GRU], ids=["LSTM", "GRU"])
def test_mixed_dtypes_are_refused_in_words(make) -> None:
    layer = make(3, 4)
    x = torch.randn(5, 2, 3, dtype=torch.float64)
    with pytest.raises((unpad.ArgumentTypeError, unpad.ArgumentError), match="float"):
        layer(x, lengths=[5, 5])


def test_an_optimizer_trains_what_it_would_train_in_the_eager_loop() -> None:
    def weights(engine: str) -> list[Tensor]:
        torch.manual_seed(0)
        cell = LayerNormLSTMCell(3, 4).double()
        optimizer = torch.optim.Adam(cell.parameters(), lr=0.05)
        with unpad.engine(engine):
            for step in range(10):
                x, offsets, state = oracle.batch(cell, [step % 4, 3, 1], seed=step)
                optimizer.zero_grad()
                output, _, _ = choose.run(cell, x, offsets, state)
                output.square().sum().backward()
                optimizer.step()
        return list(cell.parameters())

    for a, b in zip(weights("auto"), weights("eager"), strict=True):
        oracle.assert_close(a, b, 1e-8)


@pytest.mark.slow
def test_memory_is_flat_over_five_hundred_calls() -> None:
    cell = LSTMCell(16, 32)

    def calls(count: int) -> int:
        for number in range(count):
            lengths = [(7 * number + 3 * i) % 23 for i in range(number % 9)]
            x, offsets, state = oracle.batch(cell, lengths, dtype=torch.float32, seed=number)
            output, _, _ = choose.run(cell, x.requires_grad_(), offsets, state)
            output.sum().backward()
        gc.collect()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = calls(150)
    assert calls(500) - before < 8192  # KiB


def test_no_graph_is_kept_alive_by_a_run() -> None:
    import weakref

    cell = LSTMCell(3, 4)
    x, offsets, state = oracle.batch(cell, LENGTHS, dtype=torch.float32)
    output, _, _ = choose.run(cell, x.requires_grad_(), offsets, state)
    output.sum().backward()
    gone = weakref.ref(output)
    del output
    assert gone() is None


def test_a_cell_whose_first_call_is_inference_compiles() -> None:
    layer = unpad.nn.LSTM(3, 4)
    batch = unpad.Ragged.from_list([torch.randn(5, 3)])
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("error")
        first, _ = layer(batch)
    assert torch.equal(layer(batch)[0].values, first.values)


def test_a_trace_does_not_import_dynamo() -> None:
    program = (
        "import sys, torch, unpad; unpad.nn.GRU(2, 3)([torch.randn(4, 2)]); "
        "print('torch._dynamo' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "False", done.stdout + done.stderr


@pytest.mark.parametrize("name", SHIPPED)
@each_engine
def test_a_run_leaves_nothing_to_the_garbage_collector(name: str, engine: str) -> None:
    """What only the collector frees keeps a run's tensors alive until it comes."""
    cell = SHIPPED[name]()
    x, offsets, state = oracle.batch(cell, LENGTHS, dtype=torch.float32)

    def train() -> None:
        output, _, _ = choose.run(cell, x.requires_grad_(), offsets, state)
        output.sum().backward()

    with use(engine):
        for _ in range(3):
            train()
        gc.collect()
        gc.disable()
        try:
            train()
            assert gc.collect() == 0
        finally:
            gc.enable()
