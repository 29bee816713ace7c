"""A run in little memory gives what a fast one gives: the same bits, the same masks, the gradients
but for the order of sums; and it keeps what it says.
"""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import oracle
import unpad
from engine.every_cell import ENGINES, RANDOM, SHIPPED, use
from random_cells import random_cell
from unpad import Cell, Ragged
from unpad.compiler.step import Noise
from unpad.engine import choose, lean, randomness
from unpad.engine.stretches import Stretch, cut
from unpad.nn import GRU, LSTM, RNN, Dropout, GRUCell, LSTMCell, Recurrent, RNNCell, Stack, Zoneout

QUICK = [ENGINES[0], *ENGINES[-1:][: len(ENGINES) - 1]]
quick = pytest.mark.parametrize("engine", QUICK)
both_ways = pytest.mark.parametrize("reverse", [False, True], ids=["forward", "reverse"])
slim = functools.partial(choose.run, memory="lean")
CELLS = {**SHIPPED, **RANDOM}


@pytest.fixture
def in_twos(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of two steps, wherever a sequence is longer: small batches would run fast."""
    monkeypatch.setattr(lean, "choose_steps", _twos)


def _twos(memory: str | int, lengths: Tensor, sizes: lean.Sizes) -> int:
    return 2 if lengths.numel() and int(lengths.max()) > 2 else 0


def assert_equal(actual: oracle.Outcome, wanted: oracle.Outcome, engine: str) -> None:
    oracle.assert_same(actual, wanted, 1e-12)
    if engine != "torch":  # whose products may differ in the last bit with the number of rows
        results = zip(_results(actual), _results(wanted), strict=True)
        assert all(torch.equal(a, b) for a, b in results)


def _results(outcome: oracle.Outcome) -> list[Tensor]:
    return [outcome.output, *outcome.final, *outcome.states]


def leaves(state) -> list[Tensor]:
    return torch.utils._pytree.tree_leaves(state)


# -- the same numbers ------------------------------------------------------------------------------


@pytest.mark.usefixtures("in_twos")
@both_ways
@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("engine", ENGINES)
def test_every_cell_gives_the_numbers_of_a_fast_run(
    engine: str, name: str, reverse: bool, seed: int
) -> None:
    cell = CELLS[name]().double()
    for lengths in ([2, 5, 1, 4], [0, 3, 0, 2], [1, 9, 1, 0, 3]):
        x, offsets, state = oracle.batch(cell, lengths, seed=seed)
        outcomes = []
        with use(engine):
            for run in (choose.run, slim):
                torch.manual_seed(seed)  # the masks of a seed are the same, whatever is kept
                outcomes.append(oracle.outcome(run, cell, x, offsets, state, reverse=reverse))
        assert_equal(outcomes[1], outcomes[0], engine)


@pytest.mark.usefixtures("in_twos")
@quick
@pytest.mark.parametrize("name", ["lstm all", "gru", "stack"])
def test_a_lean_run_gives_the_numbers_of_the_oracle(name: str, engine: str, seed: int) -> None:
    cell = SHIPPED[name]().double()
    x, offsets, state = oracle.batch(cell, [7, 0, 3, 4], seed=seed)
    with use(engine):
        actual = oracle.outcome(slim, cell, x, offsets, state)
    oracle.assert_same(actual, oracle.expected(cell, x, offsets, state), 1e-10)


@given(
    lengths=oracle.lengths(max_length=9),
    steps=st.integers(1, 9),
    reverse=st.booleans(),
    engine=st.sampled_from(QUICK),
    number=st.integers(0, 1 << 16),
)
def test_any_lengths_in_stretches_of_any_steps(
    lengths: list[int], steps: int, reverse: bool, engine: str, number: int
) -> None:
    cell = Stack([Zoneout(GRUCell(2, 3), 0.3), LSTMCell(3, 2)]).double()
    x, offsets, state = oracle.batch(cell, lengths, seed=number)
    with use(engine), pytest.MonkeyPatch.context() as patch:
        patch.setattr(lean, "choose_steps", lambda *_: steps if sum(lengths) else 0)
        outcomes = []
        for run in (choose.run, slim):
            torch.manual_seed(number)
            outcomes.append(oracle.outcome(run, cell, x, offsets, state, reverse=reverse))
    assert_equal(outcomes[1], outcomes[0], engine)


@pytest.mark.usefixtures("in_twos")
@quick
@pytest.mark.parametrize("number", range(8))
def test_random_cells(number: int, engine: str, seed: int) -> None:
    cell = random_cell(number)
    x, offsets, state = oracle.batch(cell, [3, 0, 6, 1], seed=seed)
    with use(engine):
        wanted = oracle.outcome(choose.run, cell, x, offsets, state)
        assert_equal(oracle.outcome(slim, cell, x, offsets, state), wanted, engine)


LAYERS = {
    "LSTM": lambda memory: LSTM(3, 4, 2, dropout=0.5, bidirectional=True, memory=memory),
    "LSTM projected": lambda memory: LSTM(3, 4, proj_size=2, memory=memory),
    "GRU": lambda memory: GRU(3, 4, 2, memory=memory),
    "RNN": lambda memory: RNN(3, 4, bidirectional=True, memory=memory),
    "Recurrent": lambda memory: Recurrent(
        [Dropout(LSTMCell(3, 4), state=0.5, same_over_time=True), GRUCell(8, 3)],
        True,
        learned_initial_state=True,
        memory=memory,
    ),
}


@pytest.mark.usefixtures("in_twos")
@quick
@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_takes_it(name: str, engine: str, seed: int) -> None:
    slow = LAYERS[name]("lean").double()
    fast = LAYERS[name]("fast").double()
    fast.load_state_dict(slow.state_dict())
    batch = Ragged.from_list([torch.randn(n, 3, dtype=torch.float64) for n in (5, 0, 2, 9)])
    found = []
    for layer in (fast, slow):
        torch.manual_seed(seed)
        with use(engine):
            output, final = layer(batch)
            oracle.random_loss([output.values, *leaves(final)], seed).backward()
        found.append([output.values, *leaves(final), *(p.grad for p in layer.parameters())])
    for a, b in zip(*found, strict=True):
        oracle.assert_close(b, a, 1e-12)


@pytest.mark.usefixtures("in_twos")
def test_the_functions_take_it() -> None:
    cells = [GRUCell(3, 4).double(), GRUCell(3, 4).double()]
    x = torch.randn(2, 7, 3, dtype=torch.float64, requires_grad=True)
    found = []
    for memory in ("fast", "lean"):
        outputs, _ = unpad.dynamic_rnn(cells[0], x, [7, 4], memory=memory)
        pair, _ = unpad.bidirectional_dynamic_rnn(*cells, x, [7, 4], memory=memory)
        found.append(torch.autograd.grad(sum(v.sin().sum() for v in (outputs, *pair)), x)[0])
    oracle.assert_close(found[1], found[0], 1e-12)


# -- every way of asking for a gradient ------------------------------------------------------------


def ask_both(engine: str, cell: torch.nn.Module, question, lengths=(2, 0, 7, 3)) -> None:
    """``question(run, cell, x, offsets, state)`` has the answers that a fast run gives."""
    x, offsets, state = oracle.batch(cell, lengths)
    with use(engine):
        pair = []
        for run in (choose.run, slim):
            start = torch.utils._pytree.tree_map(torch.clone, state)
            torch.manual_seed(1)
            pair.append(question(run, copy.deepcopy(cell), x.clone(), offsets, start))
    for i, (a, b) in enumerate(zip(*pair, strict=True)):
        assert (a is None) == (b is None), i
        if a is not None:
            oracle.assert_close(b, a, 1e-12, str(i))


@pytest.mark.usefixtures("in_twos")
@quick
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

    ask_both(engine, LSTMCell(3, 4).double(), question)


@pytest.mark.usefixtures("in_twos")
@quick
@pytest.mark.parametrize("of", ["output", "final", "states", "first final", "second state"])
def test_a_loss_on_one_result_alone(of: str, engine: str) -> None:
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
        return [x.grad, *(s.grad for s in start), *(p.grad for p in cell.parameters())]

    ask_both(engine, LSTMCell(3, 4).double(), question)


@pytest.mark.usefixtures("in_twos")
@quick
def test_backward_twice_over_a_retained_graph(engine: str) -> None:
    def question(run, cell, x, offsets, state):
        output, _, _ = run(cell, x.requires_grad_(), offsets, state)
        loss = output.square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
        with pytest.raises(RuntimeError, match="second time"):
            loss.backward()
        return [x.grad, *(p.grad for p in cell.parameters())]

    ask_both(engine, Dropout(LSTMCell(3, 4), input=0.4, state=0.4).double(), question)


@pytest.mark.usefixtures("in_twos")
@quick
def test_second_derivatives_under_the_same_masks(engine: str) -> None:
    def question(run, cell, x, offsets, state):
        output, _, _ = run(cell, x.requires_grad_(), offsets, state)
        (dx,) = torch.autograd.grad(output.square().sum(), x, create_graph=True)
        dx.square().sum().backward()
        return [dx, x.grad, *(p.grad for p in cell.parameters())]

    cell = Dropout(Zoneout(RNNCell(3, 4), 0.3), input=0.3, output=0.4, same_over_time=True)
    ask_both(engine, cell.double(), question)


@pytest.mark.usefixtures("in_twos")
@quick
def test_an_integer_state_is_carried_over_borders(engine: str) -> None:
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
        assert not n.requires_grad
        (output.sum() + h.sum()).backward()
        return [output, n, states[1], x.grad]

    ask_both(engine, Counts().double(), question)


@pytest.mark.usefixtures("in_twos")
@quick
def test_any_strides_of_inputs_and_gradients(engine: str) -> None:
    def question(run, cell, x, offsets, state):
        found = []
        for form in (x.t().contiguous().t(), torch.cat([x, x], 1)[:, 3:], x[:, :1].expand(-1, 3)):
            leaf = form.detach().requires_grad_()
            output, final, _ = run(cell, leaf, offsets, state)
            output.backward(torch.ones(1, 1, dtype=x.dtype).expand_as(output), retain_graph=True)
            output.t().contiguous().t().sum().backward(retain_graph=True)
            final[1].t().sum(0).square().sum().backward()
            found += [output, leaf.grad]
        return found

    ask_both(engine, LSTMCell(3, 4).double(), question)


@pytest.mark.usefixtures("in_twos")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_other_dtypes(dtype: torch.dtype, seed: int) -> None:
    cell = Dropout(LSTMCell(3, 4), input=0.4).to(dtype)
    x, offsets, state = oracle.batch(cell, [5, 0, 3], dtype=dtype, seed=seed)
    found = []
    for run in (choose.run, slim):
        torch.manual_seed(seed)
        output, _, _ = run(cell, x, offsets, state)
        found.append((output, *torch.autograd.grad(output.sum(), list(cell.parameters()))))
    for a, b in zip(*found, strict=True):
        assert b.dtype == dtype
        oracle.assert_close(b, a, 1e-5 if dtype == torch.float32 else 0.05)


@pytest.mark.parametrize("lengths", [[], [0, 0]], ids=str)
@quick
def test_no_token_at_all(lengths: list[int], engine: str) -> None:
    cell = LSTMCell(3, 4).double()
    x, offsets, state = oracle.batch(cell, lengths)
    for memory in ("lean", 1):
        run = functools.partial(choose.run, memory=memory)
        with use(engine):
            wanted = oracle.outcome(choose.run, cell, x, offsets, state)
            assert_equal(oracle.outcome(run, cell, x, offsets, state), wanted, engine)


@quick
@pytest.mark.parametrize("memory", ["lean", 60_000])
def test_truncated_backpropagation_with_carried_state(memory, engine: str, seed: int) -> None:
    """Windows of 50 steps by `chunks`, the state carried over, its gradient cut: as the oracle."""
    cell = GRUCell(3, 16).double()
    layer = Recurrent(cell, memory=memory)
    sequences = [torch.randn(n, 3, dtype=torch.float64) for n in (130, 0, 100, 51)]
    chunks = list(Ragged.from_list(sequences).chunks(50))
    found = []
    for run in ("layer", "oracle"):
        cell.zero_grad()
        state, outputs = torch.zeros(4, 16, dtype=torch.float64), []
        for chunk in chunks:
            if run == "layer":
                with use(engine):
                    output, state = layer(chunk, state)
                    values = output.values
            else:
                values, state, _ = oracle.loop(cell, chunk.values, chunk.offsets, state)
            oracle.random_loss([values, state], seed).backward()
            state = state.detach()
            outputs.append(values.detach())
        found.append([*outputs, state, *(p.grad for p in cell.parameters())])
    for a, b in zip(*found, strict=True):
        oracle.assert_close(a, b, 1e-10)


# -- what is kept ----------------------------------------------------------------------------------


def kept_bytes(run, beside: list[Tensor]) -> int:
    """Bytes that autograd keeps of what ``run`` did, beside tensors that are there anyway."""
    known, kept = {t.untyped_storage().data_ptr() for t in beside}, {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = run()
    assert result.requires_grad
    return sum(kept.values())


class Counted:
    """An engine's allocator that knows the most bytes that were alive at once."""

    def __init__(self, allocate) -> None:
        self.allocate, self.alive, self.most = allocate, 0, 0

    def __call__(self, rows: int, width: int, like: Tensor) -> Tensor:
        import weakref

        tensor = self.allocate(rows, width, like)
        self.alive += tensor.nbytes
        self.most = max(self.most, self.alive)
        weakref.finalize(tensor.untyped_storage(), self._free, tensor.nbytes)
        return tensor

    def _free(self, size: int) -> None:
        self.alive -= size


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    counter = Counted(choose._torch_allocate)
    monkeypatch.setattr(choose, "_torch_allocate", counter)
    monkeypatch.setattr(choose, "_native_allocate", counter)
    return counter


MAKE = {"lstm": lambda: LSTMCell(32, 32), "zoneout": lambda: Zoneout(LSTMCell(32, 32), 0.1)}


@pytest.mark.parametrize("name", MAKE)
def test_lean_keeps_a_few_per_cent_of_what_fast_keeps(name: str) -> None:
    cell, offsets = MAKE[name](), oracle.offsets_of([6000, 3000, 0, 5000])
    x, state = torch.randn(14_000, 32), cell.initial_state(4)
    tensors = [x, *cell.parameters(), *state]
    fast, slim_ = (
        kept_bytes(lambda run=run: run(cell, x, offsets, state)[0], tensors)
        for run in (choose.run, slim)
    )
    assert fast >= 14_000 * 224 * 4
    assert slim_ < 0.03 * fast


@pytest.mark.parametrize("memory", ["lean", 4_000_000])
def test_the_peak_of_a_training_step_stays_where_it_was_promised(memory, counted: Counted) -> None:
    cell, offsets = LSTMCell(32, 32), oracle.offsets_of([20_000, 10_000, 0, 18_000])
    x, state = torch.randn(48_000, 32, requires_grad=True), cell.initial_state(4)
    peaks = {}
    for kept in ("fast", memory):
        counted.alive = counted.most = 0
        output, _, _ = choose.run(cell, x, offsets, state, memory=kept)
        output.backward(torch.ones_like(output))
        peaks[kept] = counted.most - 2 * output.nbytes  # the output, and the gradient of x
        del output
    assert peaks["fast"] >= 48_000 * 224 * 4
    assert peaks[memory] < (0.1 * peaks["fast"] if memory == "lean" else memory)


def test_without_gradients_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lean, "choose_steps", lambda *_: pytest.fail("asked for stretches"))
    cell = LSTMCell(3, 4)
    x, offsets, state = oracle.batch(cell, [5, 2], dtype=torch.float32)
    with torch.no_grad():
        wanted, _, _ = choose.run(cell, x, offsets, state)
        assert torch.equal(slim(cell, x, offsets, state)[0], wanted)
    cell.requires_grad_(False)
    assert torch.equal(slim(cell, x, offsets, state)[0], wanted)


SIZES = lean.Sizes(fast=10_000 * 3_000, fixed=0, state=1_000, token=5_000)


def test_more_bytes_make_longer_stretches_until_all_fits() -> None:
    lengths = torch.tensor([4_000, 1_000, 0, 5_000])
    budgets = [2_000_000, 4_000_000, 8_000_000, 16_000_000]
    steps = [lean.choose_steps(budget, lengths, SIZES) for budget in budgets]
    assert steps == sorted(steps)
    assert len(set(steps)) == len(steps)
    for budget, found in zip(budgets, steps, strict=True):
        assert 0 < needed(found, lengths) <= budget < needed(found + found // 5 + 1, lengths)
    assert lean.choose_steps(SIZES.fast, lengths, SIZES) == 0


def needed(steps: int, lengths: Tensor) -> int:
    parts = cut(oracle.offsets_of(lengths.tolist()), steps)
    borders = sum(len(part.sequences) for part in parts[1:])
    return borders * SIZES.state + max(map(len, parts)) * SIZES.token


def test_too_few_bytes_are_refused_with_the_least_that_will_do() -> None:
    layer = Recurrent(LSTMCell(16, 16), memory=1000)
    batch = Ragged.from_list([torch.randn(n, 16) for n in (900, 300)])
    with pytest.raises(unpad.ArgumentError, match=r"`memory`: got 1,000 bytes") as refused:
        layer(batch)
    least = int(str(refused.value).split("allowed: ")[1].split(" ")[0].replace(",", ""))
    layer.memory = least
    layer(batch)[0].values.sum().backward()
    layer.memory = least - 1
    with pytest.raises(unpad.ArgumentError, match="memory"):
        layer(batch)


def test_lean_is_fast_where_that_needs_less() -> None:
    assert lean.choose_steps("lean", torch.tensor([9, 20]), SIZES) == 0
    steps = lean.choose_steps("lean", torch.tensor([10_000] * 8), SIZES)
    assert 8 * steps >= 1024
    assert needed(steps, torch.tensor([10_000] * 8)) < SIZES.fast


def test_no_length_and_no_budget_traces_a_cell_again() -> None:
    layer = Recurrent(LSTMCell(8, 8), memory="lean")
    layer(Ragged.from_list([torch.randn(3, 8)]))
    before = unpad.trace_count()
    for layer.memory in ("fast", "lean", 500_000):
        for lengths in ((5000, 40), (1, 0), (700,) * 3):
            output, _ = layer(Ragged.from_list([torch.randn(n, 8) for n in lengths]))
            output.values.sum().backward()
    assert unpad.trace_count() == before


def fresh(rows: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """Memory of its own for each call."""
    return like.new_empty(rows, width)


# -- the parts -------------------------------------------------------------------------------------


@given(lengths=oracle.lengths(), steps=st.integers(1, 8), reverse=st.booleans())
def test_stretches_go_through_every_sequence_in_order(
    lengths: list[int], steps: int, reverse: bool
) -> None:
    if not sum(lengths):
        return
    offsets = oracle.offsets_of(lengths)
    tokens, read = torch.arange(sum(lengths)), {row: [] for row in range(len(lengths))}
    for part in cut(offsets, steps, reverse=reverse):
        pieces = Ragged(part.tokens_of(tokens[:, None])[:, 0], part.offsets).to_list()
        for row, piece in zip(part.sequences.tolist(), pieces, strict=True):
            assert 0 < len(piece) <= steps
            read[row] += reversed(piece.tolist()) if reverse else piece.tolist()
    for row, found in read.items():
        wanted = list(range(int(offsets[row]), int(offsets[row + 1])))
        assert found == (wanted[::-1] if reverse else wanted)


@pytest.mark.parametrize("width", [1, 7, 8, 130])
@pytest.mark.parametrize("per_sequence", [False, True], ids=["per token", "per sequence"])
@pytest.mark.parametrize("kind", ["keep", "uniform", "normal"])
def test_compact_noise_is_the_noise(kind: str, per_sequence: bool, width: int, seed: int) -> None:
    noise = Noise(kind, width, 0.3, per_sequence)
    x, offsets = torch.empty(1200, 2), oracle.offsets_of([700, 0, 1, 499])
    torch.manual_seed(seed)
    whole = randomness.drawn(noise, x, offsets, fresh)
    after = torch.get_rng_state()
    torch.manual_seed(seed)
    kept = randomness.compact(noise, x, offsets)
    assert torch.equal(torch.get_rng_state(), after)
    assert kept.nbytes == randomness.compact_bytes(noise, 1200, 4, 4)
    for part in cut(offsets, 17):
        rows = randomness.rows(noise, kept, part, x, fresh)
        assert torch.equal(rows, part.tokens_of(whole))
    everything = Stretch(torch.arange(4), offsets, offsets[:-1])
    assert torch.equal(randomness.rows(noise, kept, everything, x, fresh), whole)


@pytest.mark.usefixtures("in_twos")
def test_a_backward_pass_leaves_the_generator_alone() -> None:
    cell = Zoneout(LSTMCell(3, 4), 0.3)
    x, offsets, state = oracle.batch(cell, [5, 3], dtype=torch.float32)
    output, _, _ = slim(cell, x, offsets, state)
    before = torch.get_rng_state()
    output.sum().backward()
    assert torch.equal(torch.get_rng_state(), before)


# -- the argument ----------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", ["slim", 0, -5, True, None, 1.5, "64"])
def test_what_memory_may_be_is_said_in_words(wrong) -> None:
    cell, x = GRUCell(3, 4), torch.zeros(1, 2, 3)
    for make in (
        lambda: LSTM(3, 4, memory=wrong),
        lambda: Recurrent(cell, memory=wrong),
        lambda: unpad.dynamic_rnn(cell, x, memory=wrong),
        lambda: unpad.bidirectional_dynamic_rnn(cell, GRUCell(3, 4), x, memory=wrong),
    ):
        with pytest.raises((unpad.ArgumentError, unpad.ArgumentTypeError), match="`memory`") as e:
            make()
        assert '"fast", "lean" or a number of bytes' in str(e.value)


@pytest.mark.parametrize("memory", ["lean", 5_000_000])
def test_copies_and_the_representation_know_it(memory) -> None:
    for layer in (GRU(3, 4, memory=memory), Recurrent(GRUCell(3, 4), memory=memory)):
        for copied in (layer, copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
            assert copied.memory == memory
            assert f"memory={memory!r}" in repr(copied)
    assert "memory" not in repr(GRU(3, 4))
    assert "memory" not in repr(Recurrent(GRUCell(3, 4)))


def test_a_layer_pickled_before_there_was_a_choice_is_fast() -> None:
    for layer in (GRU(3, 4), Recurrent(GRUCell(3, 4))):
        del layer.__dict__["memory"]
        again = pickle.loads(pickle.dumps(layer))
        assert again.memory == "fast"
        again(torch.randn(2, 5, 3))
