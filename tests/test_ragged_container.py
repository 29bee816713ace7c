"""A batch is moved, copied, pickled, loaded and described as a tensor is."""

from __future__ import annotations

import copy
import io
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, default_collate

import unpad
from unpad.errors import ArgumentError, ArgumentTypeError, RowIndexError, UnpadError
from unpad.ragged import Ragged, as_lengths


def three_rows() -> Ragged:
    return Ragged(torch.randn(5, 2), [0, 2, 2, 5])


def test_round_trips_change_nothing() -> None:
    ragged = three_rows()
    file = io.BytesIO()
    torch.save(ragged, file)
    for back in (
        pickle.loads(pickle.dumps(ragged)),
        copy.deepcopy(ragged),
        copy.copy(ragged),
        torch.load(io.BytesIO(file.getvalue()), weights_only=True),
        ragged.clone(),
        ragged.detach(),
        ragged.cpu(),
        ragged.contiguous(),
        ragged.to("cpu"),
        ragged.to(torch.float32),
        ragged.double().float(),
    ):
        assert type(back) is Ragged
        assert back.equal(ragged)
        assert back.offsets.dtype == torch.int64


def test_dtypes_and_devices_follow_the_values() -> None:
    ragged = three_rows()
    assert ragged.double().dtype == torch.float64
    assert ragged.half().dtype == torch.float16
    assert ragged.bfloat16().dtype == torch.bfloat16
    assert ragged.long().dtype == torch.int64
    assert ragged.to(torch.zeros(1).double()).dtype == torch.float64
    meta = ragged.to("meta")
    assert meta.device.type == "meta"
    assert meta.lengths.tolist() == [2, 0, 3]


def test_a_default_device_elsewhere_changes_nothing() -> None:
    """Offsets stay on the CPU whatever torch's default device is."""
    ragged = three_rows()
    with torch.device("meta"):
        padded = Ragged.from_padded(ragged.to_padded(), [2, 0, 3])
        assert padded.offsets.device.type == "cpu"
        assert padded.equal(ragged)
        assert ragged.reverse().reverse().equal(ragged)
        assert ragged.last().device.type == "cpu"
        assert ragged.max().device.type == "cpu"
        assert Ragged.from_packed(ragged[[0, 2]].to_packed()).equal(ragged[[0, 2]])
        assert Ragged.cat([*ragged.chunks(2)], dim=1).equal(ragged)


def test_gradients_are_switched_on_and_off_as_for_a_tensor() -> None:
    ragged = three_rows()
    assert ragged.requires_grad_() is ragged
    assert ragged.requires_grad
    (ragged * 2).sum().sum().backward()
    assert torch.equal(ragged.values.grad, torch.full((5, 2), 2.0))
    assert not ragged.detach().requires_grad
    assert ragged.clone().requires_grad
    assert copy.deepcopy(ragged).requires_grad
    assert pickle.loads(pickle.dumps(ragged)).requires_grad


def test_pinning_pins_or_says_what_torch_says() -> None:
    ragged = three_rows()
    assert not ragged.is_pinned()
    if torch.cuda.is_available():
        assert ragged.pin_memory().is_pinned()
        assert ragged.cuda().equal(ragged.to("cuda"))
    else:
        with pytest.raises(RuntimeError, match=r"pin|accelerator"):
            ragged.pin_memory()


def test_a_batch_says_what_it_is() -> None:
    ragged = three_rows()
    assert (len(ragged), ragged.batch_size, ragged.num_tokens, ragged.max_length) == (3, 3, 5, 3)
    assert ragged.shape == (3, None, 2)
    assert ragged.feature_shape == (2,)
    assert ragged.device.type == "cpu"
    assert ragged.lengths.tolist() == [2, 0, 3]
    assert repr(ragged) == (
        "Ragged(3 sequences, 5 tokens, features=[2], float32, lengths=[2, 0, 3])"
    )
    many = Ragged(torch.zeros(100, requires_grad=True), range(101))
    assert repr(many).endswith("lengths=[1, 1, 1, 1, 1, 1, 1, 1, ...], requires_grad=True)")
    empty = Ragged(torch.zeros(0, 3), [0])
    assert (len(empty), empty.num_tokens, empty.max_length, list(empty)) == (0, 0, 0, [])


def test_a_batch_has_no_truth_but_a_hash() -> None:
    ragged = three_rows()
    with pytest.raises(ArgumentTypeError, match=r"len\(ragged\) > 0"):
        bool(ragged == ragged)
    assert len({ragged, ragged.clone()}) == 2
    assert ragged.same_lengths(ragged.clone())
    assert not ragged.equal(ragged + 1)
    assert ragged.allclose(ragged + 1e-9)
    assert not ragged.allclose(ragged + 1)
    assert not ragged.allclose(ragged[:2])
    nan = ragged * float("nan")
    assert not nan.equal(nan)
    assert nan.allclose(nan, equal_nan=True)


@pytest.mark.parametrize(
    ("values", "offsets", "error", "message"),
    [
        (torch.zeros(3), [0, 2], ArgumentError, "0 to 3, the number of tokens"),
        (torch.zeros(3), [1, 3], ArgumentError, "0 to 3"),
        (torch.zeros(3), [0, 4], ArgumentError, "0 to 3"),
        (torch.zeros(3), [], ArgumentError, "offsets"),
        (torch.zeros(3), [0, 2, 1, 3], ArgumentError, "never decrease"),
        (torch.zeros(3), [0.0, 3.0], ArgumentTypeError, "integers"),
        (torch.zeros(3), [[0, 3]], ArgumentError, "one dimension"),
        (torch.tensor(1.0), [0, 1], ArgumentError, "token"),
        ([1.0, 2.0], [0, 2], ArgumentTypeError, "Ragged.from_list"),
    ],
)
def test_offsets_that_do_not_fit_are_refused(
    values: object, offsets: object, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Ragged(values, offsets)  # type: ignore[arg-type]


def test_with_values_needs_one_row_a_token() -> None:
    with pytest.raises(ArgumentError, match=r"\[5, ...\]"):
        three_rows().with_values(torch.zeros(4))


class Rows(Dataset[tuple[Ragged, int]]):
    """A batch as a dataset of its rows, each a batch of one."""

    def __init__(self, ragged: Ragged) -> None:
        self.ragged = ragged

    def __len__(self) -> int:
        return len(self.ragged)

    def __getitem__(self, index: int) -> tuple[Ragged, int]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.ragged[index : index + 1], index


@pytest.mark.parametrize("workers", [0, 2])
def test_a_plain_data_loader_makes_batches_of_rows(workers: int) -> None:
    ragged = Ragged.from_lengths(torch.randn(21, 2), [3, 0, 5, 1, 8, 0, 4])
    loader = DataLoader(Rows(ragged), batch_size=3, num_workers=workers)
    batches = list(loader)
    assert [len(batch) for batch, _ in batches] == [3, 3, 1]
    assert Ragged.cat([batch for batch, _ in batches]).equal(ragged)
    assert torch.cat([labels for _, labels in batches]).tolist() == list(range(7))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_is_a_dataset_of_its_rows(workers: int) -> None:
    ragged = Ragged.from_lengths(torch.randn(21, 2), [3, 0, 5, 1, 8, 0, 4])
    batches = list(DataLoader(ragged, batch_size=3, num_workers=workers))
    assert [len(batch) for batch in batches] == [3, 3, 1]
    assert Ragged.cat(batches).equal(ragged)
    first, second = torch.utils.data.random_split(ragged, [4, 3])
    both = [row for part in (first, second) for batch in DataLoader(part) for row in batch]
    assert sorted(map(len, both)) == [0, 0, 1, 3, 4, 5, 8]


def test_a_few_rows_do_not_pickle_the_batch_that_they_were_cut_from() -> None:
    ragged = Ragged.from_lengths(torch.randn(10_000), [1] * 10_000)
    part = ragged[5:7]
    assert len(pickle.dumps(part)) < 3000
    assert pickle.loads(pickle.dumps(part)).equal(part)
    assert copy.deepcopy(Ragged(torch.randn(9)[:4].requires_grad_(), [0, 4])).requires_grad


def test_no_array_is_made_of_rows_of_unequal_length() -> None:
    with pytest.raises(ArgumentTypeError, match=r"ragged\.values\.numpy\(\)"):
        np.asarray(three_rows())


def test_default_collate_reaches_batches_in_dicts() -> None:
    rows = three_rows()
    joined = default_collate([{"x": rows[:1]}, {"x": rows[1:]}])
    assert joined["x"].equal(rows)


def test_errors_carry_four_parts_and_survive_pickling() -> None:
    for error in (
        ArgumentError("lengths", [1, -2], "lengths >= 0", "use 0"),
        ArgumentTypeError("lengths", torch.arange(3.0), "integers", "convert them"),
        RowIndexError("index", 9, "-1 to 0", "look at len(ragged)"),
    ):
        back = pickle.loads(pickle.dumps(error))
        assert type(back) is type(error)
        assert str(back) == str(error)
        assert isinstance(error, UnpadError)
    assert issubclass(ArgumentError, ValueError)
    assert issubclass(ArgumentTypeError, TypeError)
    long = str(ArgumentError("lengths", torch.arange(1000), "x", "y"))
    assert "int64 tensor of shape [1000]" in long
    assert len(str(ArgumentError("lengths", list(range(1000)), "x", "y"))) < 200


@pytest.mark.parametrize("many", [torch.rand(3), np.zeros(3), np.zeros(3, dtype=object)])
def test_errors_tell_numbers_by_dtype_and_shape(many: Any) -> None:
    for given in (many, [many, many], (many, "a")):
        text = str(ArgumentTypeError("hx", given, "x", "y"))
        assert f"{str(many.dtype).removeprefix('torch.')} " in text
        assert " of shape [3]" in text
        assert "0." not in text
    assert str(ArgumentError("n", np.array([1, -2]), "x", "y")).startswith(
        "argument `n`: got int64 array of shape [2]: [1, -2]; "
    )
    with pytest.raises(ArgumentTypeError, match=r"got float64 array of shape \[1\];"):
        Ragged(np.array([1 / 3]), [0, 1])  # type: ignore[arg-type]


def test_integers_on_the_meta_device_are_refused_in_words() -> None:
    for make in (
        lambda n: Ragged(torch.zeros(3), n),
        lambda n: Ragged.from_lengths(torch.zeros(3), n),
        as_lengths,
    ):
        with pytest.raises(ArgumentError, match="the meta device has shapes alone"):
            make(torch.zeros(2, dtype=torch.int64, device="meta"))


def test_one_window_may_be_of_any_width() -> None:
    ragged = Ragged(torch.arange(5.0), [0, 2, 2, 5])
    (whole,) = ragged.chunks(10**20)
    assert whole.equal(ragged)
    assert not list(Ragged(torch.zeros(0), [0, 0]).chunks(10**20))


@pytest.mark.parametrize("place", [0, 1, 3])
def test_offsets_changed_in_place_are_found_before_anything_is_written(place: int) -> None:
    """torch's repeat_interleave writes past a size that its counts do not add up to."""
    ragged = Ragged.from_list([torch.randn(n, 3) for n in (2, 0, 4)])
    ragged.offsets[place] = 100 if place < 3 else 1
    with pytest.raises(ArgumentError, match=r"`offsets`.*in place"):
        ragged.to_padded()
    with pytest.raises(ValueError, match="offsets"):
        unpad.nn.LSTM(3, 4)(ragged)


def test_lengths_whose_sum_wraps_around_do_not_add_up() -> None:
    with pytest.raises(ArgumentError, match=r"`lengths`.*allowed: lengths that add up to 3"):
        Ragged.from_lengths(torch.randn(3, 2), [2**62] * 4 + [3])
    with pytest.raises(ArgumentError, match=r"`lengths`.*2\*\*63"):
        Ragged.repeat_like(torch.zeros(5, 2), [2**62] * 4 + [3])


def test_a_mask_of_an_array_is_not_lost() -> None:
    holes = np.ma.masked_equal([[1.0], [0.0], [2.0]], 0)
    for given in (holes, list(holes)):
        with pytest.raises(ArgumentError, match=r"sequences\[1\].*filled"):
            Ragged.from_list([np.ones((2, 1)), given])
    with pytest.raises(ArgumentError, match=r"`lengths`.*filled"):
        as_lengths(np.ma.masked_equal([1, 0], 0))
    assert Ragged.from_list([np.ma.masked_equal([[1.0]], 0)]).to_list()[0].tolist() == [[1.0]]


def test_sparse_lengths_are_refused_in_words() -> None:
    with pytest.raises(ArgumentTypeError, match=r"`lengths`.*to_dense"):
        as_lengths(torch.tensor([2, 0, 3]).to_sparse())


def test_offsets_are_a_copy_of_what_was_given() -> None:
    given = torch.tensor([0, 2, 5])
    plain, part = Ragged(torch.zeros(5), given), Ragged(torch.zeros(5), given.numpy())
    flat = torch.tensor([0, 9, 2, 9, 5])
    strided = Ragged(torch.zeros(5), flat[::2])
    given[1], flat[2] = 4, 4
    for ragged in (plain, part, strided):
        assert ragged.lengths.tolist() == [2, 3]
    lengths = torch.tensor([2, 3])
    grouped = Ragged.from_lengths(torch.zeros(5), lengths)
    lengths[0] = 4
    assert grouped.lengths.tolist() == [2, 3]


def test_offsets_that_are_ones_own_are_checked_and_copied_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ragged = Ragged(torch.zeros(5, 2), [0, 2, 5])
    monkeypatch.setattr(torch.Tensor, "clone", None)
    assert ragged.with_values(torch.ones(5)).offsets is ragged.offsets
    assert (ragged + 1).offsets is ragged.offsets
    assert Ragged.from_lengths(torch.zeros(5), [2, 3]).lengths.tolist() == [2, 3]


def test_as_lengths_copies_what_it_was_given() -> None:
    given = torch.tensor([1, 2], dtype=torch.int32)
    checked = as_lengths(given, batch_size=2, max_length=2)
    assert (checked.dtype, checked.tolist()) == (torch.int64, [1, 2])
    assert as_lengths([], batch_size=0).shape == (0,)
    with pytest.raises(ArgumentError, match="`steps`"):
        as_lengths([1, -1], argument="steps")


def test_the_core_needs_no_pyarrow() -> None:
    """Importing and using a batch leaves the extras alone."""
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import torch; from unpad.ragged import Ragged\n"
        "assert Ragged.from_list([torch.zeros(2)]).reverse().to_padded().shape == (1, 2)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
