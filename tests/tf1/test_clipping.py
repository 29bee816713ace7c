"""`unpad.tf1.clip_by_global_norm` against TensorFlow's own numbers, and at its edges."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from tf1.golden_files import FOLDER, cases
from unpad import ArgumentError, ArgumentTypeError, tf1

CASES = cases("clip")


def load(case, arrays, kind):
    """The list that TensorFlow was given, or gave."""
    found = []
    for number, entry in enumerate(case["entries"]):
        name = f"{kind}/{number}"
        if entry == "IndexedSlices":
            parts = ("values", "indices", "dense_shape")
            found.append(tf1.IndexedSlices(*(arrays[f"{name}/{part}"] for part in parts)))
        else:
            found.append(arrays[name] if entry == "tensor" else None)
    return found


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
def test_golden_clipped_values_and_the_norm(case):
    with np.load(FOLDER / case["file"]) as file:
        arrays = {key: torch.from_numpy(file[key]) for key in file.files}
    given, call = load(case, arrays, "inputs"), case["call"]
    clipped, norm = tf1.clip_by_global_norm(given, call["clip_norm"], call["use_norm"])
    near = {"rtol": 1e-5, "atol": 1e-5, "equal_nan": True}
    torch.testing.assert_close(norm, arrays["global_norm"], **near)
    torch.testing.assert_close(tf1.global_norm(given), arrays["tf.linalg.global_norm"], **near)
    for ours, theirs in zip(clipped, load(case, arrays, "outputs"), strict=True):
        if theirs is None:
            assert ours is None
        elif isinstance(theirs, tf1.IndexedSlices):
            torch.testing.assert_close(ours.values, theirs.values, **near)
            assert torch.equal(ours.indices, theirs.indices)
            assert torch.equal(ours.dense_shape, theirs.dense_shape)
        else:
            torch.testing.assert_close(ours, theirs, **near)


def gradients():
    return [torch.randn(3, 4), None, torch.randn(5), torch.randn(())]


def test_the_clipped_list_has_the_norm_and_the_direction():
    given = gradients()
    clipped, norm = tf1.clip_by_global_norm(given, 0.5)
    together = torch.cat([g.flatten() for g in given if g is not None])
    assert norm == pytest.approx(together.norm())
    assert tf1.global_norm(clipped) == pytest.approx(0.5)
    ours = torch.cat([g.flatten() for g in clipped if g is not None])
    torch.testing.assert_close(ours, together * 0.5 / together.norm())


def test_what_is_below_the_norm_comes_back_bit_for_bit():
    given = gradients()
    for clip_norm in (1e3, math.inf):  # of inf TensorFlow makes NaN
        clipped, _ = tf1.clip_by_global_norm(given, clip_norm)
        assert all(torch.equal(a, b) for a, b in zip(clipped, given, strict=True) if b is not None)


def test_a_norm_of_zero_clips_all_to_zero():
    clipped, _ = tf1.clip_by_global_norm(gradients(), 0.0)
    assert not any(g.any() for g in clipped if g is not None)
    # Of zeros TensorFlow makes NaN here: 0 / 0.
    assert tf1.clip_by_global_norm([torch.zeros(3)], 0.0)[0][0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_norm_that_is_no_number_makes_every_element_nan(bad):
    clipped, norm = tf1.clip_by_global_norm([torch.tensor([bad, 0.0]), torch.zeros(2)], 1.0)
    assert not norm.isfinite()
    assert all(g.isnan().all() for g in clipped)
    clipped, _ = tf1.clip_by_global_norm([torch.ones(2)], 1.0, use_norm=bad)
    assert clipped[0].isnan().all()


@pytest.mark.parametrize("empty", [[], [None], ()])
def test_an_empty_list_has_norm_0(empty):
    clipped, norm = tf1.clip_by_global_norm(empty, 1.0)
    assert (clipped, float(norm)) == (list(empty), 0.0)


def test_tensors_without_elements_count_nothing():
    clipped, norm = tf1.clip_by_global_norm([torch.zeros(0, 3), torch.tensor([3.0, 4.0])], 1.0)
    assert norm == 5
    assert clipped[0].shape == (0, 3)


def test_a_known_norm_is_used_and_returned():
    for known in (10, 10.0, torch.tensor(10.0)):
        clipped, norm = tf1.clip_by_global_norm([torch.ones(2)], 1.0, use_norm=known)
        assert norm == 10
        torch.testing.assert_close(clipped[0], torch.full((2,), 0.1))


def test_a_sparse_gradient_is_clipped_as_it_stands():
    """An Embedding's gradient, its repeated rows not summed first, as IndexedSlices are."""
    values = torch.tensor([[3.0], [4.0]])
    rows = torch.sparse_coo_tensor([[4, 4]], values, (9, 1), check_invariants=True)
    clipped, norm = tf1.clip_by_global_norm([rows], 1.0)
    assert norm == 5
    assert clipped[0].to_dense()[4] == pytest.approx(1.4)
    slices = tf1.IndexedSlices(torch.tensor([[3.0], [4.0]]), torch.tensor([4, 4]), [9, 1])
    assert torch.equal(tf1.clip_by_global_norm([slices], 1.0)[0][0].values, clipped[0]._values())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_every_floating_dtype_keeps_itself(dtype):
    given = [torch.full((400,), 100.0, dtype=dtype)]  # its squares overflow float16
    clipped, norm = tf1.clip_by_global_norm(given, 20.0)
    assert clipped[0].dtype == dtype
    assert float(norm) == pytest.approx(2000, rel=1e-2)
    torch.testing.assert_close(clipped[0], torch.ones(400, dtype=dtype))


def test_gradients_flow_through_the_norm():
    given = [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    for clip_norm in (0.5, 50.0):
        assert torch.autograd.gradcheck(
            lambda *tensors, c=clip_norm: tuple(tf1.clip_by_global_norm(tensors, c)[0]), given
        )
    zeros = torch.zeros(3, requires_grad=True)
    tf1.clip_by_global_norm([zeros], 1.0)[0][0].sum().backward()
    assert zeros.grad.tolist() == [1, 1, 1]


MISTAKES = [
    (ArgumentTypeError, "t_list", (torch.ones(3), 1.0)),
    (ArgumentTypeError, "t_list", (tf1.IndexedSlices(torch.ones(1), torch.zeros(1)), 1.0)),
    (ArgumentTypeError, r"t_list\[1\]", ([torch.ones(3), torch.ones(3).double()], 1.0)),
    (ArgumentTypeError, r"t_list\[0\]", ([torch.ones(3).int()], 1.0)),
    (ArgumentTypeError, r"t_list\[0\]", ([1.0], 1.0)),
    (ArgumentError, "clip_norm", ([torch.ones(3)], -1.0)),
    (ArgumentError, "clip_norm", ([torch.ones(3)], math.nan)),
    (ArgumentTypeError, "clip_norm", ([torch.ones(3)], "1")),
    (ArgumentError, "use_norm", ([torch.ones(3)], 1.0, -2.0)),
    (ArgumentError, "use_norm", ([torch.ones(3)], 1.0, torch.ones(2))),
]


@pytest.mark.parametrize(("kind", "argument", "given"), MISTAKES)
def test_a_mistake_is_refused_by_its_name(kind, argument, given):
    with pytest.raises(kind, match=argument):
        tf1.clip_by_global_norm(*given)
