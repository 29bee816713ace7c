"""What RNN, GRU and LSTM refuse, and in which words."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

import unpad.nn as un
from torch_pairs import KINDS, pair
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.ragged import Ragged


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


@pytest.mark.parametrize(
    ("lengths", "error"),
    [
        ([1, -1], ValueError),
        ([1, 6], ValueError),
        ([1.0, 2.0], TypeError),
        ([True, False], TypeError),
        ([1, 2, 3], ValueError),
        ([[1], [2]], ValueError),
        (torch.tensor(2), ValueError),
        (torch.ones(2, 5, dtype=torch.bool), (TypeError, ValueError)),
        ("12", TypeError),
    ],
)
def test_bad_lengths_are_refused_before_any_work(kind, lengths, error):
    ours, _, options = kind
    layer = ours(3, 4, batch_first=True, **options)
    with pytest.raises(error, match="argument `lengths`") as caught:
        layer(torch.randn(2, 5, 3), lengths=lengths)
    assert isinstance(caught.value, (ArgumentError, ArgumentTypeError))


def test_lengths_are_refused_where_the_input_knows_its_own():
    layer = un.GRU(3, 4)
    rows = [torch.randn(2, 3)]
    for x in (rows, Ragged.from_list(rows), pack_sequence(rows), torch.randn(2, 3)):
        with pytest.raises(ArgumentError, match="lengths"):
            layer(x, lengths=[2])


def test_bad_input_is_refused_by_name():
    layer = un.LSTM(3, 4, batch_first=True)
    refused = [
        (ArgumentError, "tokens of 5 features.*tokens of 3 features", torch.randn(2, 5, 5)),
        (ArgumentError, r"shape \[2, 3, 4, 3\]", torch.randn(2, 3, 4, 3)),
        (ArgumentError, r"shape \[3\]", torch.randn(3)),
        (ArgumentError, "float64.*float32", torch.randn(2, 5, 3).double()),
        (ArgumentError, "int64", torch.ones(2, 5, 3, dtype=torch.int64)),
        (ArgumentTypeError, "ndarray", np.zeros((2, 5, 3))),
        (ArgumentTypeError, "NoneType", None),
        (ArgumentError, "meta", torch.empty(2, 5, 3, device="meta")),
    ]
    for error, message, x in refused:
        with pytest.raises(error, match=message):
            layer(x)


def test_a_kept_state_that_no_longer_fits_is_refused_with_the_remedy():
    layer = un.LSTM(3, 4, 2, batch_first=True)
    _, (h, c) = layer(torch.randn(4, 5, 3))
    with pytest.raises(ArgumentError, match=r"hx\[0\].*\[2, 4, 4\].*\[2, 3, 4\].*hx\[:, :n\]"):
        layer(torch.randn(3, 5, 3), (h, c))
    layer(torch.randn(3, 5, 3), (h[:, :3], c[:, :3]))
    with pytest.raises(ArgumentError, match=r"hx\[1\]"):
        layer(torch.randn(4, 5, 3), (h, c[:1]))
    with pytest.raises(ArgumentTypeError, match="pair"):
        layer(torch.randn(4, 5, 3), h)
    with pytest.raises(ArgumentError, match="float64"):
        layer(torch.randn(4, 5, 3), (h.double(), c))
    with pytest.raises(ArgumentTypeError, match="hx"):
        un.GRU(3, 4)(torch.randn(5, 4, 3), (h, c))
    with pytest.raises(ArgumentError, match=r"\[2, 4\]: layers \* directions, features"):
        layer(torch.randn(5, 3), (h, c))


def test_bad_arguments_are_refused_by_name():
    refused = [
        (ValueError, "input_size", lambda: un.LSTM(0, 4)),
        (TypeError, "hidden_size", lambda: un.LSTM(3, 4.0)),
        (ValueError, "num_layers", lambda: un.GRU(3, 4, 0)),
        (TypeError, "bias", lambda: un.GRU(3, 4, 1, 0.5)),
        (TypeError, "batch_first", lambda: un.GRU(3, 4, batch_first=1)),
        (ValueError, "dropout", lambda: un.GRU(3, 4, 2, dropout=1.5)),
        (ValueError, "proj_size", lambda: un.LSTM(3, 4, proj_size=4)),
        (ValueError, "proj_size", lambda: un.LSTM(3, 4, proj_size=-1)),
        (ValueError, "nonlinearity", lambda: un.RNN(3, 4, nonlinearity="gelu")),
        (ValueError, "init", lambda: un.RNN(3, 4, init="zeros")),
        (ValueError, "forget_bias", lambda: un.LSTM(3, 4, bias=False, forget_bias=1.0)),
    ]
    for error, message, build in refused:
        with pytest.raises(error, match=f"argument `{message}`"):
            build()


def test_no_call_leaves_a_warning_behind(kind):
    layer, _ = pair(kind, 3, 4, num_layers=2, dropout=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        outputs, _ = layer([torch.randn(2, 3, dtype=torch.float64)])
        outputs[0][-1].sum().backward()
