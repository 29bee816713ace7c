"""How a torch function acts on ragged batches: one rule for each group of the table in
`functions`, and a worded refusal for everything else.

The protocol: https://docs.pytorch.org/docs/stable/notes/extending.html#extending-torch-python-api
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

import numpy as np
import torch
from torch import Tensor

from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.ragged import functions
from unpad.ragged.select import Selection

if TYPE_CHECKING:
    from unpad.ragged.batch import Ragged

Function: TypeAlias = Callable[..., Any]
Arguments: TypeAlias = Sequence[Any]
Options: TypeAlias = Mapping[str, Any]


def call(function: Function, arguments: Arguments, options: Options) -> Any:
    """Apply a torch function to arguments of which at least one is, or holds, a batch."""
    rule = RULES.get(function)
    if rule is None:
        refuse(function)
    if options.get("out") is not None:
        refuse(function, "call it without `out=`")
    return rule(function, arguments, options)


def refuse(function: Function, remedy: str | None = None) -> NoReturn:
    """Say that a function does not act on batches, and what to do instead."""
    name = torch.overrides.resolve_name(function) or getattr(function, "__name__", str(function))
    raise ArgumentTypeError(
        "function",
        f"{name} on a Ragged",
        "functions that treat each token by itself, listed in docs/ragged.md",
        remedy
        or "use ragged.map(fn) for a function of single tokens, or ragged.values [T, ...]; "
        "`last`, `sum`, `mean` and `max` reduce over time",
    )


def _is_batch(argument: Any) -> bool:
    return isinstance(argument, Selection)


def _batches(arguments: Arguments, options: Options) -> list[Ragged]:
    return [entry for entry in (*arguments, *options.values()) if _is_batch(entry)]


def _same_lengths(function: Function, batches: Iterable[Ragged]) -> Ragged:
    """Return the first batch after checking that all have its lengths."""
    first, *others = batches
    for other in others:
        if not first.same_lengths(other):
            raise ArgumentError(
                "other",
                f"a Ragged of lengths {_few(other)}",
                f"lengths {_few(first)}, as in the first operand of {_name(function)}",
                "combine batches of equal lengths, row by row; for one vector a sequence use "
                "Ragged.repeat_like(rows, ragged)",
            )
    return first


def _name(function: Function) -> str:
    return getattr(function, "__name__", str(function))


def _few(batch: Ragged) -> str:
    lengths = batch.lengths.tolist()
    return str(lengths) if len(lengths) <= 12 else f"{str(lengths[:12])[:-1]}, ...]"


# Elementwise -----------------------------------------------------------------------------------


def elementwise(function: Function, arguments: Arguments, options: Options) -> Ragged:
    """Apply a function of single elements; features broadcast, tokens stay tokens."""
    batches = _batches(arguments, options)
    if not batches:
        refuse(function)
    first = _same_lengths(function, batches)
    rank = max(len(batch.feature_shape) for batch in batches)
    shape = _broadcast([batch.feature_shape for batch in batches])
    align = partial(_align, rank=rank, shape=shape)
    values = function(*map(align, arguments), **{key: align(arg) for key, arg in options.items()})
    return first.with_values(values)


def _broadcast(shapes: list[torch.Size]) -> torch.Size:
    try:
        return torch.broadcast_shapes(*shapes)
    except RuntimeError:
        raise ArgumentError(
            "other",
            f"features {list(shapes[-1])}",
            f"features that broadcast with {list(shapes[0])}",
            "bring both batches to the same features first",
        ) from None


def _align(argument: Any, *, rank: int, shape: torch.Size) -> Any:
    """Return an operand in a form that broadcasts over features and never over tokens."""
    if _is_batch(argument):
        values: Tensor = argument.values
        missing = rank - (values.dim() - 1)
        return values.reshape(len(values), *[1] * missing, *values.shape[1:]) if missing else values
    if isinstance(argument, Tensor):
        _check_feature_operand(argument, rank, shape)
    if isinstance(argument, np.ndarray) and argument.ndim:
        raise ArgumentTypeError(
            "other", argument, "numbers, tensors and batches", "use torch.as_tensor(array)"
        )
    return argument


def _check_feature_operand(operand: Tensor, rank: int, shape: torch.Size) -> None:
    """Let a tensor in only if it broadcasts against the features of one token."""
    try:
        fits = operand.dim() <= rank and bool(torch.broadcast_shapes(shape, operand.shape)) | True
    except RuntimeError:
        fits = False
    if not fits:
        raise ArgumentError(
            "other",
            f"a tensor of shape {list(operand.shape)}",
            f"a number, or a tensor that broadcasts over the features {list(shape)} of a token",
            "for one vector a sequence [B, F] use Ragged.repeat_like(rows, ragged); "
            "for one a token [T, F] use ragged.with_values(tensor)",
        )


# Functions of a token --------------------------------------------------------------------------


def _per_token(least: int, function: Function, arguments: Arguments, options: Options) -> Ragged:
    """Apply a function whose first argument alone is a batch; the others hold for all tokens."""
    first, rest, others = _split_first(function, arguments, options)
    if len(_batches(rest, others)) > 0:
        refuse(function, "make the first argument alone a batch; weights hold for all tokens")
    _check_rank(function, first, max(least, _normalized_rank(function, rest, others)))
    if _name(function) in ("matmul", "__matmul__"):
        _check_matrix(function, rest[0] if rest else next(iter(others.values())))
    return first.with_values(function(first.values, *rest, **others))


def _split_first(
    function: Function, arguments: Arguments, options: Options
) -> tuple[Ragged, list[Any], dict[str, Any]]:
    """Return the batch that comes first (or as `input=`) and the other arguments."""
    others = dict(options)
    rest = list(arguments)
    first = rest.pop(0) if rest else others.pop("input", None)
    if not _is_batch(first):
        refuse(function, "make the first argument the batch, or use its values [T, ...]")
    return cast("Ragged", first), rest, others


def _check_rank(function: Function, batch: Ragged, least: int) -> None:
    if len(batch.feature_shape) < least:
        raise ArgumentError(
            "input",
            f"features {list(batch.feature_shape)} in {_name(function)}",
            f"a batch with at least {least} feature dimension(s)",
            "add one: ragged.map(lambda values: values.unsqueeze(-1))",
        )


def _normalized_rank(function: Function, rest: Arguments, others: Options) -> int:
    """Return how many dimensions a norm spans: it may span features, never tokens."""
    if _name(function) not in ("layer_norm", "rms_norm"):
        return 0
    shape = rest[0] if rest else others["normalized_shape"]
    return 1 if isinstance(shape, int) else len(shape)


def _check_matrix(function: Function, matrix: Any) -> None:
    if not isinstance(matrix, Tensor) or matrix.dim() != 2:
        refuse(function, "multiply by a weight [F, G]: ragged @ weight")


# Along features --------------------------------------------------------------------------------


def _along_features(function: Function, arguments: Arguments, options: Options) -> Ragged:
    """Apply a function along feature dimensions, counted from the last one."""
    first, rest, others = _split_first(function, arguments, options)
    dims = _dims(function, rest, others)
    lowest = -len(first.feature_shape)
    if not dims or any(dim >= 0 or dim < lowest for dim in dims):
        raise ArgumentError(
            "dim",
            f"{list(dims) or None} in {_name(function)} on a Ragged",
            f"feature dimensions {lowest} to -1" if lowest else "none: the tokens have no features",
            "count from the last feature (dim=-1); `last`, `sum`, `mean` and `max` reduce over "
            "time; ragged.values holds the tokens of all sequences",
        )
    return first.with_values(function(first.values, *rest, **others))


def _dims(function: Function, rest: Arguments, others: Options) -> tuple[int, ...]:
    dim = others.get("dim", others.get("axis"))
    if dim is None:
        # norm and normalize take the exponent first.
        place = 1 if _name(function) in ("norm", "normalize") else 0
        dim = rest[place] if len(rest) > place else None
    if dim is None and _name(function) in ("glu", "argsort"):
        return (-1,)
    if isinstance(dim, bool) or dim is None:
        return ()
    return (dim,) if isinstance(dim, int) else tuple(dim)


# Losses ----------------------------------------------------------------------------------------


def _loss(function: Function, arguments: Arguments, options: Options) -> Any:
    """Apply a loss to the values: means are over real tokens; 0 where there is none."""
    given = inspect.signature(function).bind(*arguments, **options)
    given.apply_defaults()
    logits, target = given.arguments["input"], given.arguments["target"]
    if not _is_batch(logits) or not _is_batch(target):
        refuse(function, "make input and target batches: Ragged.from_padded(target, lengths)")
    batches = [entry for entry in given.arguments.values() if _is_batch(entry)]
    first = _same_lengths(function, batches)
    _check_target(function, logits, target)
    for name, entry in given.arguments.items():
        given.arguments[name] = entry.values if _is_batch(entry) else entry
    if first.num_tokens == 0 and given.arguments["reduction"] == "mean":
        # torch's mean over nothing is NaN, which a step of the optimizer would spread.
        given.arguments["reduction"] = "sum"
    result: Tensor = function(*given.args, **given.kwargs)
    return first.with_values(result) if given.arguments["reduction"] == "none" else result


def _check_target(function: Function, logits: Ragged, target: Ragged) -> None:
    """Refuse shapes that torch would broadcast over tokens, or read as a single sample."""
    if _name(function) in ("cross_entropy", "nll_loss"):
        _check_rank(function, logits, 1)
    elif logits.feature_shape != target.feature_shape:
        raise ArgumentError(
            "target",
            f"features {list(target.feature_shape)}",
            f"features {list(logits.feature_shape)}, as in the input of {_name(function)}",
            "reshape with ragged.map(lambda values: values.squeeze(-1)) or unsqueeze(-1)",
        )


# Whole batches ---------------------------------------------------------------------------------


def _whole_batch(name: str, function: Function, arguments: Arguments, options: Options) -> Any:
    """Call the method of the same name: rows are picked, joined and compared as rows."""
    first, rest, others = (arguments[0], list(arguments[1:]), dict(options))
    if name == "cat":
        return _kind(first).cat(first, *rest, **others)
    if name in ("equal", "allclose") and not (_is_batch(first) and rest and _is_batch(rest[0])):
        refuse(function, "compare two batches, or ragged.values with a tensor")
    if name == "chunk":
        return _chunk(first, *rest, **others)
    if name == "index_select":
        return first.index_select(others.get("dim", rest[0]), others.get("index", rest[-1]))
    if name == "allclose":
        options = dict(zip(("rtol", "atol", "equal_nan"), rest[1:], strict=False)) | others
        return first.allclose(rest[0], **options)
    return first.equal(rest[0])


def _kind(batches: Sequence[Any]) -> type[Ragged]:
    return next(type(batch) for batch in batches if _is_batch(batch))


def _chunk(batch: Ragged, chunks: int, dim: int = 0) -> tuple[Ragged, ...]:
    if dim == 0:
        return tuple(batch.chunk(chunks))
    if -len(batch.feature_shape) <= dim < 0:
        return tuple(batch.with_values(part) for part in batch.values.chunk(chunks, dim))
    raise ArgumentError(
        "dim", dim, "0 (rows) or a negative feature dimension", "use ragged.chunks(k) for time"
    )


def _rules() -> dict[Function, Callable[[Function, Arguments, Options], Any]]:
    named: dict[str, Callable[[Function, Arguments, Options], Any]] = {}
    named.update(dict.fromkeys(functions.ELEMENTWISE, elementwise))
    named.update({name: partial(_per_token, least) for name, least in functions.PER_TOKEN.items()})
    named.update(dict.fromkeys(functions.ALONG_FEATURES, _along_features))
    named.update(dict.fromkeys(functions.LOSSES, _loss))
    named.update({name: partial(_whole_batch, name) for name in functions.WHOLE_BATCH})
    return {
        function: rule for name, rule in named.items() for function in functions.objects_named(name)
    }


RULES = _rules()
"""The rule of every torch function in the table."""
