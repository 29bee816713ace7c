"""Kernels of TensorFlow and Keras as the parameters of Unpad's cells.

========================  =========================================  ============================
cell                      saved as                                   gates of its columns
========================  =========================================  ============================
v1 BasicRNNCell           kernel [I+H, H], bias                      one
v1 (Basic)LSTMCell        kernel [I+R, 4H], bias; w_{i,f,o}_diag     i, j, f, o (j: candidate)
v1 GRUCell                gates [I+H, 2H], candidate [I+H, H]        r, u; reset before
Keras SimpleRNN           kernel [I, H], recurrent_kernel [H, H]     one
Keras LSTM                kernel [I, 4H], recurrent_kernel [H, 4H]   i, f, c, o
Keras GRU                 kernel [I, 3H], recurrent_kernel [H, 3H]   z, r, h; bias [2, 3H] says
                                                                     reset after
========================  =========================================  ============================

Unpad's are ``weight_ih`` [G*H, I] and ``weight_hh`` [G*H, R]: i, f, g, o and r, z, n. The second
bias is 0 but for TensorFlow 1's forget bias, which is added at run time and so is in no variable:
the saved numbers all stay what they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from unpad.importers.artefact import Array
from unpad.importers.errors import MalformedError

V1_FORGET_BIAS = 1.0
_PEEPHOLES = {
    "weight_ci": ("w_i_diag", "input_gate_peephole_weights"),
    "weight_cf": ("w_f_diag", "forget_gate_peephole_weights"),
    "weight_co": ("w_o_diag", "output_gate_peephole_weights"),
}
Weights = Mapping[str, Array]


@dataclass(frozen=True, eq=False)
class Cell:
    """One cell: the class's name in `unpad.nn`, what to build it with, and its parameters."""

    name: str
    arguments: dict[str, Any]
    parameters: dict[str, Array]


def v1_cell(kind: str, found: Weights, settings: Mapping[str, Any]) -> Cell:
    """A cell of TensorFlow 1: ``kind`` is "rnn" or "lstm"; see `v1_gru` for the third."""
    kernel, bias = found["kernel"], found.get("bias")
    gates = 4 if kind == "lstm" else 1
    _check(kernel.ndim == 2 and kernel.shape[1] % gates == 0, "kernel", kernel)
    hidden = kernel.shape[1] // gates
    projection = found.get("projection")
    if projection is not None:
        _check(projection.ndim == 2 and len(projection) == hidden, "projection/kernel", projection)
    state = hidden if projection is None else projection.shape[1]
    _check(kernel.shape[0] > state > 0, "kernel", kernel)
    if kind == "lstm":
        kernel, bias = _ijfo_to_ifgo(kernel), None if bias is None else _ijfo_to_ifgo(bias)
    parameters = _parameters(kernel[:-state], kernel[-state:], bias)
    arguments = {"input_size": len(kernel) - state, "hidden_size": hidden, "bias": bias is not None}
    if kind == "rnn":
        return Cell("RNNCell", arguments | _nonlinearity(settings), parameters)
    if bias is not None:
        forget = settings.get("forget_bias", V1_FORGET_BIAS)
        parameters["bias_hh"][hidden : 2 * hidden] = forget
    return _lstm(arguments, parameters, found, settings)


def v1_gru(found: Weights) -> Cell:
    """TensorFlow 1's GRUCell: gates r, u, and reset before the product."""
    joint, single = found["gates/kernel"], found["candidate/kernel"]
    _check(joint.ndim == 2 and joint.shape[1] % 2 == 0, "gates/kernel", joint)
    hidden = joint.shape[1] // 2
    _check(single.shape == (len(joint), hidden) and len(joint) > hidden > 0, "gates/kernel", joint)
    bias = None
    if "gates/bias" in found and "candidate/bias" in found:
        bias = np.concatenate([found["gates/bias"], found["candidate/bias"]])
    kernel = np.concatenate([joint, single], 1)
    parameters = _parameters(kernel[:-hidden], kernel[-hidden:], bias)
    arguments = {"input_size": len(joint) - hidden, "hidden_size": hidden}
    arguments |= {"bias": bias is not None, "reset_after": False}
    return Cell("GRUCell", arguments, parameters)


def keras_cell(found: Weights, settings: Mapping[str, Any]) -> Cell:
    """A cell of Keras; which one, the recurrent kernel's shape says."""
    kernel, recurrent, bias = found["kernel"], found["recurrent_kernel"], found.get("bias")
    _check(recurrent.ndim == 2 and len(recurrent) > 0, "recurrent_kernel", recurrent)
    hidden, columns = recurrent.shape
    _check(kernel.ndim == 2 and len(kernel) > 0 and kernel.shape[1] == columns, "kernel", kernel)
    arguments = {"input_size": len(kernel), "hidden_size": hidden, "bias": bias is not None}
    if columns == 3 * hidden:
        return _keras_gru(arguments, kernel, recurrent, bias, settings)
    _check(columns in (hidden, 4 * hidden), "recurrent_kernel", recurrent)
    parameters = _parameters(kernel, recurrent, bias)
    if columns == hidden:
        return Cell("RNNCell", arguments | _nonlinearity(settings), parameters)
    _only(settings, activation="tanh", recurrent_activation="sigmoid")
    return _lstm(arguments, parameters, found, settings)


def _keras_gru(
    arguments: dict[str, Any],
    kernel: Array,
    recurrent: Array,
    bias: Array | None,
    settings: Mapping[str, Any],
) -> Cell:
    _only(settings, activation="tanh", recurrent_activation="sigmoid")
    reset_after = settings.get("reset_after", None if bias is None else bias.ndim == 2)
    if not isinstance(reset_after, bool) or (bias is not None and reset_after != (bias.ndim == 2)):
        raise MalformedError(
            "a GRU whose weights don't tell whether reset comes before or after the product",
            'give a mapping with {"reset_after": true} or false for it',
        )
    both = (None, None) if bias is None else (bias[0], bias[1]) if reset_after else (bias, None)
    first, second = (None if half is None else _zrh_to_rzn(half) for half in both)
    parameters = _parameters(_zrh_to_rzn(kernel), _zrh_to_rzn(recurrent), first, second)
    return Cell("GRUCell", arguments | {"reset_after": reset_after}, parameters)


def _lstm(
    arguments: dict[str, Any],
    parameters: dict[str, Array],
    found: Weights,
    settings: Mapping[str, Any],
) -> Cell:
    """An LSTM with what it has beside the kernel: peepholes, projection, clipping."""
    _only(settings, activation="tanh")
    hidden = arguments["hidden_size"]
    for name, sources in _PEEPHOLES.items():
        for source in sources:
            if source in found:
                _check(found[source].shape == (hidden,), source, found[source])
                parameters[name] = found[source]
    peepholes = [name for name in _PEEPHOLES if name in parameters]
    if peepholes:
        if len(peepholes) < len(_PEEPHOLES):
            raise MalformedError("an LSTM with some of its peepholes missing")
        arguments = arguments | {"peepholes": True}
    if "projection" in found:
        parameters["weight_hr"] = np.ascontiguousarray(found["projection"].T)
        arguments = arguments | {"proj_size": found["projection"].shape[1]}
    clips = {k: settings[k] for k in ("cell_clip", "proj_clip") if settings.get(k) is not None}
    return Cell("LSTMCell", arguments | clips, parameters)


def _parameters(
    kernel: Array, recurrent: Array, bias: Array | None, second: Array | None = None
) -> dict[str, Array]:
    made = {
        "weight_ih": np.ascontiguousarray(kernel.T),
        "weight_hh": np.ascontiguousarray(recurrent.T),
    }
    if bias is not None:
        _check(bias.shape == (kernel.shape[1],), "bias", bias)
        made["bias_ih"] = bias.copy()
        made["bias_hh"] = np.zeros_like(bias) if second is None else second.copy()
    return made


def _ijfo_to_ifgo(columns: Array) -> Array:
    i, j, f, o = np.split(columns, 4, -1)
    return np.concatenate([i, f, j, o], -1)


def _zrh_to_rzn(columns: Array) -> Array:
    z, r, h = np.split(columns, 3, -1)
    return np.concatenate([r, z, h], -1)


def _nonlinearity(settings: Mapping[str, Any]) -> dict[str, str]:
    activation = settings.get("activation", "tanh")
    if activation not in ("tanh", "relu"):
        raise MalformedError(f"a simple cell with activation {activation}: tanh and relu exist")
    return {"nonlinearity": activation}


def _only(settings: Mapping[str, Any], **allowed: str) -> None:
    for name, value in allowed.items():
        if settings.get(name, value) != value:
            raise MalformedError(
                f"{name} is {settings[name]}, and the cell here has {value}",
                "write a cell with it (unpad.Cell) and map the variables by name",
            )


def _check(fits: bool, name: str, found: Array) -> None:
    if not fits:
        raise MalformedError(f"{name} has shape {list(found.shape)}, which fits no cell")
