"""The network against plain torch, one sequence at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from unpad.ragged import Ragged
from unpad.tasks.encoder import Encoder
from unpad.tasks.model import SequenceModel
from unpad.tasks.settings import CELLS, ModelSettings

LENGTHS = [4, 0, 1, 7, 0, 3]
KINDS: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


def batch(features: int, dtype: torch.dtype = torch.float64) -> Ragged:
    return Ragged.from_list([torch.randn(n, features, dtype=dtype) for n in LENGTHS])


@pytest.mark.parametrize("cell", KINDS)
@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_encoder_is_torchs_layer_on_each_sequence_alone(cell: str, bidirectional: bool) -> None:
    encoder = Encoder(cell, 3, 5, 2, bidirectional=bidirectional, dropout=0.5).double().eval()
    peers = []
    for layer in encoder.layers:
        peer = KINDS[cell](layer.input_size, 5, bidirectional=bidirectional).double()
        peer.load_state_dict(layer.state_dict())
        peers.append(peer)
    x = batch(3)
    outputs, last = encoder(x)
    for i, (row, output) in enumerate(zip(x.to_list(), outputs.to_list(), strict=True)):
        if len(row) == 0:
            assert not last[i].any()
            continue
        for peer in peers:
            row, state = peer(row)
        h = state[0] if cell == "lstm" else state
        torch.testing.assert_close(output, row, rtol=0, atol=1e-10)
        torch.testing.assert_close(last[i], h.reshape(-1), rtol=0, atol=1e-10)


@pytest.mark.parametrize("cell", CELLS)
def test_logits_are_a_linear_layer_over_last_mean_and_maximum(cell: str) -> None:
    settings = ModelSettings(cell=cell, hidden_size=5, layers=2)
    model = SequenceModel(settings, 3, 4, text=False).double().eval()
    x = batch(3)
    outputs, last = model.encoder(x)
    logits = model(x)
    for i, rows in enumerate(outputs.to_list()):
        if len(rows) == 0:
            torch.testing.assert_close(logits[i], model.head.bias, rtol=0, atol=0)
            continue
        ends = torch.cat([rows[-1, :5], rows[0, 5:]])
        torch.testing.assert_close(last[i], ends, rtol=0, atol=1e-12)
        pooled = torch.cat([ends, rows.mean(0), rows.max(0).values])
        torch.testing.assert_close(logits[i], model.head(pooled), rtol=0, atol=1e-12)


def test_every_parameter_gets_a_gradient() -> None:
    for cell in CELLS:
        model = SequenceModel(ModelSettings(cell=cell, hidden_size=5, layers=2), 9, 4, text=True)
        ids = Ragged.from_list([torch.randint(0, 9, (n,)) for n in LENGTHS])
        model(ids).square().sum().backward()
        for name, parameter in model.named_parameters():
            assert isinstance(parameter.grad, Tensor), name
            assert parameter.grad.abs().sum() > 0, name


def test_unknown_tokens_are_drawn_in_training_alone() -> None:
    model = SequenceModel(ModelSettings(hidden_size=4, dropout=0.0), 9, 3, text=True)
    ids = Ragged.from_list([torch.randint(1, 9, (400,))])
    assert model.embedding is not None
    model.eval()
    torch.testing.assert_close(model(ids), model(ids), rtol=0, atol=0)
    model.train()
    model(ids)[0, 0].backward()
    assert model.embedding.weight.grad is not None
    assert model.embedding.weight.grad[0].abs().sum() > 0


@pytest.mark.parametrize("rate", [0.0, 0.3])
def test_word_dropout_hides_its_share_of_the_tokens_in_training_alone(rate: float) -> None:
    settings = ModelSettings(hidden_size=4, dropout=0.0, word_dropout=rate)
    model = SequenceModel(settings, 9, 3, text=True)
    read: list[Tensor] = []
    assert model.embedding is not None
    model.embedding.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    ids = Ragged.from_list([torch.randint(1, 9, (n,)) for n in (60, 0, 9940)])
    model(ids)
    hidden = read[0] == 0
    assert torch.equal(read[0][~hidden], ids.values[~hidden])
    # 5 standard deviations of the share of 10,000 draws
    assert abs(float(hidden.double().mean()) - rate) <= 5 * (rate * (1 - rate) / 10_000) ** 0.5
    model.eval()
    model(ids)
    assert torch.equal(read[1], ids.values)


def test_dropout_is_off_in_evaluation_and_on_in_training() -> None:
    model = SequenceModel(ModelSettings(hidden_size=4, dropout=0.5), 3, 3, text=False)
    x = batch(3, torch.float32)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))
