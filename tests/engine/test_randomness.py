"""Masks: numbers out of counters, the same from every drawer, in the right share, independent."""

from __future__ import annotations

import pytest
import torch

from engine.every_cell import ENGINES, use
from unpad.compiler.step import Noise
from unpad.engine import native_engine, randomness
from unpad.engine.randomness import philox

OFFSETS = torch.tensor([0, 700, 700, 701, 1200])

# From the authors' own implementation, Random123's kat_vectors: counter, key, words.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]  # fmt: skip


def fresh(rows: int, width: int, like: torch.Tensor) -> torch.Tensor:
    return like.new_empty(rows, width)


def drawn(noise: Noise, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return randomness.drawn(noise, torch.empty(1200, 2, dtype=dtype), OFFSETS, fresh)


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_the_generator_gives_its_authors_numbers(counter: str, key: str, words: str) -> None:
    of = lambda text: tuple(torch.tensor(int(word, 16)) for word in text.split())  # noqa: E731
    assert [f"{int(word):08x}" for word in philox(of(counter), of(key))] == words.split()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 3, 4, 5, 31, 128, 129, 300])
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "torch"])
def test_the_native_engine_draws_what_torch_draws(
    engine: str, width: int, dtype: torch.dtype, seed: int
) -> None:
    key = torch.tensor(seed << 31 | 7)
    rows = torch.tensor([0, 5, 5, 2**31, 2**32, 2**40 + 3])
    words = randomness.uniform_words(key, rows, width)
    with use(engine):
        for keep in (1, 2**31, int(words.median()), 2**32 - 1):
            out = torch.full((len(rows), width), -1, dtype=dtype)
            native_engine.draw_mask(int(key), keep, rows, out)
            assert torch.equal(out, (words < keep).to(dtype))


def test_masks_do_not_depend_on_the_number_of_threads() -> None:
    found = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        torch.manual_seed(5)
        found.append(drawn(Noise("keep", 130, 0.5)))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@pytest.mark.parametrize("per_sequence", [False, True], ids=["per token", "per sequence"])
@pytest.mark.parametrize("drop", [0.0, 1e-3, 0.1, 0.5, 0.9, 1.0])
def test_a_zero_has_the_given_probability(drop: float, per_sequence: bool, seed: int) -> None:
    torch.manual_seed(seed)
    mask = drawn(Noise("keep", 2000, drop, per_sequence), torch.float64)
    assert set(mask.unique().tolist()) <= {0.0, 1.0}
    rows = mask[OFFSETS[:-1][OFFSETS.diff() > 0]] if per_sequence else mask
    zeros, numbers = float((1 - rows).sum()), rows.numel()
    assert abs(zeros - drop * numbers) <= 5 * (numbers * drop * (1 - drop)) ** 0.5


def test_a_mask_of_a_sequence_holds_for_its_tokens_alone() -> None:
    mask = drawn(Noise("keep", 64, 0.5, per_sequence=True))
    one, two, three = mask[:700], mask[700], mask[701:]
    assert torch.equal(one, one[:1].expand_as(one))
    assert torch.equal(three, three[:1].expand_as(three))
    assert len(torch.stack([one[0], two, three[0]]).unique(dim=0)) == 3


def test_rows_columns_and_draws_are_independent(seed: int) -> None:
    torch.manual_seed(seed)
    masks = torch.stack([drawn(Noise("keep", 256, 0.5), torch.float64) for _ in range(2)]) - 0.5
    flat = masks.flatten(1)
    pairs = {
        "draws": flat[0] * flat[1],
        "rows": masks[:, 1:] * masks[:, :-1],
        "columns": masks[..., 1:] * masks[..., :-1],
        "quarters": masks[..., 64:] * masks[..., :-64],
    }
    for name, products in pairs.items():
        # Of a mean of n independent numbers of +-1/4.
        assert abs(float(products.mean())) < 5 * 0.25 / products.numel() ** 0.5, name


def test_a_draw_takes_one_number_from_the_generator(seed: int) -> None:
    torch.manual_seed(seed)
    drawn(Noise("keep", 7, 0.5))
    after = torch.get_rng_state()
    torch.manual_seed(seed)
    torch.empty((), dtype=torch.int64).random_()
    assert torch.equal(torch.get_rng_state(), after)
