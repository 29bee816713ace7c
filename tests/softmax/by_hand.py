"""What the two softmaxes are checked against: probabilities spelled out, one token at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def probabilities(softmax: nn.Module, hidden: Tensor) -> Tensor:
    """p(word | hidden) of every word, [T, V]: the definition, word by word, in float64."""
    named = {name: value.detach().double() for name, value in softmax.named_parameters()}
    return two_level(named, getattr(softmax, "classes", None), hidden.double(), softmax.temperature)


def two_level(
    named: dict[str, Tensor], classes: Tensor | None, hidden: Tensor, temperature: float = 1.0
) -> Tensor:
    """The same, differentiable, from parameters by name; without classes one level."""
    scores = hidden @ named["weight"].t()
    if "bias" in named:
        scores = scores + named["bias"]
    powers = (scores / temperature).exp()
    if classes is None:
        return powers / powers.sum(1, keepdim=True)
    above = hidden @ named["class_weight"].t()
    if "class_bias" in named:
        above = above + named["class_bias"]
    above = (above / temperature).exp()
    above = above / above.sum(1, keepdim=True)
    member = torch.nn.functional.one_hot(classes).to(powers)  # [V, C]
    return above[:, classes] * powers / (powers @ member)[:, classes]


def loss(
    softmax: nn.Module, hidden: Tensor, target: Tensor, reduction: str = "mean"
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss, and its gradient by hidden and by every parameter, in float64."""
    named = {
        name: value.detach().double().requires_grad_() for name, value in softmax.named_parameters()
    }
    x = hidden.detach().double().requires_grad_()
    found = two_level(named, getattr(softmax, "classes", None), x, softmax.temperature)
    kept = target != softmax.ignore_index
    smoothing = getattr(softmax, "label_smoothing", 0.0)
    chosen = found[kept].gather(1, target[kept][:, None])[:, 0].log() * (1 - smoothing)
    losses = -(chosen + smoothing * found[kept].log().mean(1))
    if softmax.importance is not None:
        factors = softmax.importance.double()[target[kept]]
        losses = losses * factors
        whole = factors.sum()
    else:
        whole = torch.tensor(float(len(losses)), dtype=torch.float64)
    if reduction == "none":
        value = torch.zeros(len(target), dtype=torch.float64).index_copy(
            0, kept.nonzero().flatten(), losses
        )
        total = (value * pull(len(target))).sum()
    else:
        value = total = losses.sum() if reduction == "sum" else losses.sum() / whole
    gradients = torch.autograd.grad(total, [x, *named.values()])
    return value.detach(), dict(zip(["hidden", *named], gradients, strict=True))


def pull(tokens: int) -> Tensor:
    """A gradient that arrives at unreduced losses."""
    return torch.linspace(-1.0, 2.0, tokens, dtype=torch.float64)


def taken(
    softmax: nn.Module, hidden: Tensor, target: Tensor, reduction: str = "mean"
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss and its gradients as the module gives them."""
    x = hidden.detach().requires_grad_()
    value = softmax(x, target, reduction=reduction)
    named = dict(softmax.named_parameters())
    total = (value * pull(len(target)).to(value)).sum() if reduction == "none" else value
    gradients = torch.autograd.grad(total, [x, *named.values()])
    return value.detach(), dict(zip(["hidden", *named], gradients, strict=True))


def assert_close(
    found: tuple[Tensor, dict[str, Tensor]],
    wanted: tuple[Tensor, dict[str, Tensor]],
    tolerance: float,
) -> None:
    """Values and each gradient, relative to its largest number (or to 1, if that is larger)."""
    pairs = {"loss": (found[0], wanted[0])}
    assert found[1].keys() == wanted[1].keys()
    pairs.update({name: (value, wanted[1][name]) for name, value in found[1].items()})
    for name, (ours, right) in pairs.items():
        assert ours.shape == right.shape, name
        if right.numel():
            scale = max(1.0, float(right.abs().max()))
            error = float((ours.double() - right).abs().max()) / scale
            assert error <= tolerance, f"{name}: error {error:.2e} is above {tolerance:.0e}"
