"""TensorFlow's CTC loss and decoders under their own names, argument lists and numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from unpad.cells.arguments import check_choice, check_flag, check_size
from unpad.ctc.alignment import CHOICES
from unpad.ctc.arguments import as_labels, check_blank, check_labels, check_logits, refuse_nan
from unpad.ctc.beam import ctc_beam_decode
from unpad.ctc.greedy import best_path, keep, repeats
from unpad.ctc.loss import row_losses
from unpad.errors import ArgumentError, ArgumentTypeError, renamed
from unpad.jit import opaque
from unpad.ragged import Ragged, as_lengths
from unpad.tf1.sparse import SparseTensor, is_sparse, refuse_triple, sparse_of, to_ragged


@opaque
def ctc_loss(
    labels: Any,
    inputs: Any = None,
    sequence_length: Any = None,
    preprocess_collapse_repeated: bool = False,
    ctc_merge_repeated: bool = True,
    ignore_longer_outputs_than_inputs: bool = False,
    time_major: bool = True,
    logits: Any = None,
) -> Tensor:
    """The CTC loss of ``tf.compat.v1.nn.ctc_loss``: the blank is the last class, C - 1.

    Args:
        labels: a sparse matrix [B, ...] of integers (`SparseTensor`, or torch's), a Ragged, or a
            list of rows; 0 to C - 2.
        inputs: logits [S, B, C], or [B, S, C] without ``time_major``; or Ragged [T, C]. ``logits``
            is its other name.
        sequence_length: [B], each 0 to S; None for a Ragged.
        preprocess_collapse_repeated: merge equal neighbours in the labels first.
        ctc_merge_repeated: False: a step that is no blank is a label of its own.
        ignore_longer_outputs_than_inputs: rows that cannot be aligned get loss 0 and gradient 0;
            else they are an error.
        time_major: whether time is the first axis.
        logits: see ``inputs``.

    Returns:
        [B], of the logits' dtype; see `unpad.functional.ctc_loss` for length 0 and gradients. Pads
        are not read, and their gradient is 0.

    Raises:
        ArgumentError, ArgumentTypeError: a row that cannot be aligned, by its number; labels or
            lengths out of range.

    Source: TensorFlow 1, ``tf.nn.ctc_loss``. There a row with a repeat and one step too few has
    loss inf, an empty row of labels is an error, and trailing labels of C - 1 are dropped.

    >>> ctc_loss([[0, 0], []], torch.zeros(3, 2, 4), [3, 2])
    tensor([4.1589, 2.7726])
    """
    if (inputs is None) == (logits is None):
        raise ArgumentError(
            "inputs", "both or neither of inputs and logits", "one of them", "give the logits once"
        )
    for name, flag in (
        ("preprocess_collapse_repeated", preprocess_collapse_repeated),
        ("ctc_merge_repeated", ctc_merge_repeated),
        ("ignore_longer_outputs_than_inputs", ignore_longer_outputs_than_inputs),
    ):
        check_flag(name, flag)
    _check_kind(labels)
    given = inputs if logits is None else logits
    argument = "inputs" if logits is None else "logits"
    ragged = _open(given, sequence_length, time_major, (argument, "sequence_length"))
    blank = ragged.feature_shape[0] - 1
    targets = check_labels(to_ragged(labels) if is_sparse(labels) else labels, ragged, blank)
    if preprocess_collapse_repeated:
        targets = keep(targets, ~repeats(targets))
    unalignable = "skip" if ignore_longer_outputs_than_inputs else "error"
    with renamed("logits", argument):
        return row_losses(ragged, targets, blank, unalignable, ctc_merge_repeated)[0]


@opaque
def ctc_loss_v2(
    labels: Any,
    logits: Any,
    label_length: Any = None,
    logit_length: Any = None,
    logits_time_major: bool = True,
    unique: Any = None,
    blank_index: int | None = None,
    name: str | None = None,
    *,
    unalignable: str = "error",
) -> Tensor:
    """The CTC loss of TensorFlow 2's ``tf.nn.ctc_loss``.

    Args:
        labels: [B, most labels] of integers with ``label_length``; or a sparse matrix, a Ragged, a
            list of rows, which know their lengths.
        logits: [S, B, C], or [B, S, C] without ``logits_time_major``; or Ragged [T, C].
        label_length: [B], for dense labels alone.
        logit_length: [B], each 0 to S; None for a Ragged.
        logits_time_major: whether time is the first axis.
        unique: what ``tf.nn.ctc_unique_labels`` gives; not needed here, and not looked at.
        blank_index: the class of the blank, negative ones from the end; None: 0, and for sparse
            labels an error, as in TensorFlow.
        name: as in TensorFlow; no meaning here.
        unalignable: "error", "warn" or "skip", as for `unpad.functional.ctc_loss`.

    Returns:
        [B], of the logits' dtype, float64 too; see `unpad.functional.ctc_loss`.

    Raises:
        ArgumentError, ArgumentTypeError: as for `ctc_loss`.

    Source: TensorFlow 2, ``tf.nn.ctc_loss``. There, dense labels that cannot be aligned or are out
    of range give some number.

    >>> ctc_loss_v2(torch.tensor([[1, 1], [9, 9]]), torch.zeros(3, 2, 4), [2, 0], [3, 2])
    tensor([4.1589, 2.7726])
    """
    del unique, name
    check_choice("unalignable", unalignable, CHOICES)
    _check_kind(labels)
    ragged = _open(logits, logit_length, logits_time_major, ("logits", "logit_length"))
    if blank_index is None and is_sparse(labels):
        raise ArgumentError(
            "blank_index", None, "a class of the logits, where labels are sparse", "say the blank"
        )
    blank = _blank(0 if blank_index is None else blank_index, ragged.feature_shape[0])
    targets = check_labels(_open_labels(labels, label_length), ragged, blank)
    return row_losses(ragged, targets, blank, unalignable)[0]


@opaque
@torch.no_grad()
def ctc_greedy_decoder(
    inputs: Any,
    sequence_length: Any = None,
    merge_repeated: bool = True,
    blank_index: int | None = None,
) -> tuple[list[SparseTensor], Tensor]:
    """Decode by the best class of every step, as ``tf.nn.ctc_greedy_decoder``.

    Args:
        inputs: logits [S, B, C], or Ragged [T, C].
        sequence_length: [B], each 0 to S; None for a Ragged.
        merge_repeated: whether neighbouring steps of one class are one label.
        blank_index: the class of the blank, negative ones from the end; None: C - 1.

    Returns:
        A list of one `SparseTensor` of int64 [B, most labels]; and [B, 1], minus the sum of the
        winning logits, raw as they are. Length 0: no labels, and 0. No gradient.

    Raises:
        ArgumentError, ArgumentTypeError: lengths out of range, NaN in a row, wrong forms.

    Source: TensorFlow 1, ``tf.nn.ctc_greedy_decoder``.

    >>> decoded, score = ctc_greedy_decoder(torch.tensor([[[0., 3., 1.]], [[0., 0., 2.]]]), [2])
    >>> decoded[0].values, score
    (tensor([1]), tensor([[-5.]]))
    """
    ragged = _open(inputs, sequence_length, True, ("inputs", "sequence_length"))
    check_flag("merge_repeated", merge_repeated)
    blank = _blank(-1 if blank_index is None else blank_index, ragged.feature_shape[0])
    refuse_nan(ragged.values.log_softmax(-1), ragged, "inputs")
    score = 0.0 - ragged.with_values(ragged.values.amax(-1)).sum()
    return [sparse_of(best_path(ragged, blank, merge_repeated))], score.unsqueeze(-1)


@opaque
def ctc_beam_search_decoder(
    inputs: Any,
    sequence_length: Any = None,
    beam_width: int = 100,
    top_paths: int = 1,
    merge_repeated: bool = True,
) -> tuple[list[SparseTensor], Tensor]:
    """Decode by beam search, as ``tf.compat.v1.nn.ctc_beam_search_decoder``; the blank is C - 1.

    Args:
        inputs: logits [S, B, C], or Ragged [T, C].
        sequence_length: [B], each 0 to S; None for a Ragged.
        beam_width: how many prefixes are kept after each step.
        top_paths: how many answers for each row.
        merge_repeated: whether equal neighbours *in the answer* are merged, which makes "aab" of
            an answer "ab"; True as in TensorFlow 1, though it is seldom what is wanted.

    Returns:
        A list of ``top_paths`` `SparseTensor` of int64 [B, most labels], the likeliest first; and
        their log probabilities [B, top_paths]. No gradient.

    Raises:
        ArgumentError: a row with fewer answers than ``top_paths``, by its number (length 0 has
            one); else as for `ctc_greedy_decoder`.

    Source: TensorFlow 1, ``tf.nn.ctc_beam_search_decoder``.

    >>> inputs = torch.tensor([[[0., 3., 1.]], [[0., 0., 2.]]])
    >>> decoded, log_probability = ctc_beam_search_decoder(inputs, [2])
    >>> decoded[0].values, log_probability.exp()
    (tensor([1]), tensor([[0.7661]]))
    """
    check_flag("merge_repeated", merge_repeated)
    paths, log_probability = _beam(inputs, sequence_length, beam_width, top_paths)
    if merge_repeated:
        paths = [keep(path, ~repeats(path)) for path in paths]
    return [sparse_of(path) for path in paths], log_probability


@opaque
def ctc_beam_search_decoder_v2(
    inputs: Any, sequence_length: Any = None, beam_width: int = 100, top_paths: int = 1
) -> tuple[list[SparseTensor], Tensor]:
    """Decode by beam search, as TensorFlow 2's ``tf.nn.ctc_beam_search_decoder``.

    `ctc_beam_search_decoder` with the answers as they are: ``merge_repeated=False``.

    >>> inputs = torch.tensor([[[0., 3., 1.]], [[0., 0., 2.]]])
    >>> ctc_beam_search_decoder_v2(inputs, [2])[0][0].values
    tensor([1])
    """
    paths, log_probability = _beam(inputs, sequence_length, beam_width, top_paths)
    return [sparse_of(path) for path in paths], log_probability


def _beam(
    inputs: Any, sequence_length: Any, beam_width: int, top_paths: int
) -> tuple[list[Ragged], Tensor]:
    ragged = _open(inputs, sequence_length, True, ("inputs", "sequence_length"))
    blank = ragged.feature_shape[0] - 1
    with renamed("logits", "inputs"):
        paths, log_probability = ctc_beam_decode(
            ragged, beam_width=beam_width, top_paths=top_paths, blank=blank
        )
    missing = log_probability.isinf().any(-1).nonzero().flatten()
    if len(missing):
        raise ArgumentError(
            "top_paths",
            top_paths,
            f"no more than the answers there are for row {int(missing[0])}",
            "ask for fewer, or use unpad.functional.ctc_beam_decode",
        )
    return paths, log_probability


def _open(inputs: Any, lengths: Any, time_major: bool, names: tuple[str, str]) -> Ragged:
    """Return logits [S, B, C] (or [B, S, C]) and lengths as a Ragged; pads are not read."""
    check_flag("time_major", time_major)
    if not isinstance(inputs, Tensor) or inputs.is_nested:
        if lengths is not None:
            raise ArgumentError(
                names[1], lengths, f"None: ragged {names[0]} know their lengths", "leave it out"
            )
        return check_logits(inputs, names[0])
    axes = "[S, B, C]" if time_major else "[B, S, C]"
    if inputs.dim() != 3:
        raise ArgumentError(names[0], inputs, axes, "add or remove dimensions")
    if lengths is None:
        raise ArgumentError(names[1], None, "[B] lengths", "say how many steps each row has")
    steps, rows = inputs.shape[:2] if time_major else (inputs.shape[1], inputs.shape[0])
    checked = as_lengths(lengths, batch_size=rows, max_length=steps, argument=names[1])
    return check_logits(Ragged.from_padded(inputs, checked, batch_first=not time_major), names[0])


def _check_kind(labels: Any) -> None:
    """Refuse logits in the labels' place, and a sparse tensor's three parts."""
    refuse_triple(labels)
    if isinstance(labels, Tensor) and labels.is_floating_point():
        raise ArgumentTypeError(
            "labels", labels, "integers", "labels come first, as in TensorFlow, and then the logits"
        )


def _open_labels(labels: Any, lengths: Any) -> Any:
    if isinstance(labels, Tensor) and labels.layout == torch.strided and not labels.is_nested:
        if labels.dim() != 2 or lengths is None:
            raise ArgumentError(
                "label_length" if labels.dim() == 2 else "labels",
                lengths if labels.dim() == 2 else labels,
                "labels [B, most labels] and label_length [B]",
                "say how many labels each row has, or give a list of rows",
            )
        checked = as_lengths(
            lengths, batch_size=len(labels), max_length=labels.shape[1], argument="label_length"
        )
        return as_labels(Ragged.from_padded(labels, checked), "labels")
    if lengths is not None:
        raise ArgumentError(
            "label_length", lengths, "None: these labels know their lengths", "leave it out"
        )
    if is_sparse(labels):
        return to_ragged(labels)
    if not isinstance(labels, (Ragged, list, tuple)):
        raise ArgumentTypeError(
            "labels", labels, "a tensor [B, most labels], sparse, Ragged or a list", "convert it"
        )
    return labels


def _blank(index: Any, classes: int) -> int:
    """Return the class of the blank; TensorFlow counts negative ones from the end."""
    number = check_size("blank_index", index, least=-classes)
    return check_blank(number % classes if number < 0 else number, classes, "blank_index")
