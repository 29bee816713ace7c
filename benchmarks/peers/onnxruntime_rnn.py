"""ONNX Runtime's LSTM, GRU and RNN operators, with sequence_lens: they skip pads. Forward only.

The job: `cell`, `threads`. The arrays: x [S, B, I] padded, lengths [B], parameters of one layer by
torch's names. The result: h [B, H] after each sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from protocol import Arrays, serve

# torch's gates in ONNX's order: LSTM i f g o -> i o f c; GRU r z n -> z r h.
GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


def build(job: dict[str, Any], arrays: Arrays) -> tuple[Callable[[], Any], Callable[[Any], Arrays]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    session = onnxruntime.InferenceSession(
        _model(job["cell"], arrays), options, providers=["CPUExecutionProvider"]
    )
    feed = {"x": arrays["x"], "lengths": arrays["lengths"].astype(np.int32)}
    return lambda: session.run(None, feed), lambda found: {"h": found[1][0]}


def _in_onnx_order(parameter: np.ndarray, cell: str) -> np.ndarray:
    gates = np.split(parameter, len(GATES[cell]))
    return np.concatenate([gates[gate] for gate in GATES[cell]])


def _model(cell: str, arrays: Arrays) -> bytes:
    """One operator with the layer's weights; inputs x [S, B, I] and lengths [B]."""
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    w, r, w_bias, r_bias = (_in_onnx_order(arrays[name], cell) for name in names)
    weights = {"W": w[None], "R": r[None], "B": np.concatenate([w_bias, r_bias])[None]}
    options = {"linear_before_reset": 1} if cell == "GRU" else {}
    node = helper.make_node(
        cell, ["x", "W", "R", "B", "lengths"], ["y", "h"], hidden_size=r.shape[1], **options
    )
    graph = helper.make_graph(
        [node],
        cell,
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["S", "B", w.shape[1]]),
            helper.make_tensor_value_info("lengths", TensorProto.INT32, ["B"]),
        ],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "h")],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()


if __name__ == "__main__":
    serve(f"onnxruntime {onnxruntime.__version__}", build)
