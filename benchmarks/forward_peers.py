"""How fast does a recurrent layer run forward on ragged sequences, against other engines?

Inference of LSTM, GRU and RNN, 128 -> 128, on lengths drawn uniformly from 10..100. The peers:
ONNX Runtime's own operators with `sequence_lens` (they skip pads), torch padded and torch packed.
The ratio is to the fastest of them. The error is against torch in float64, over the final states.
Needs the extra `export` (`make bench-peers` installs it).
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnxruntime
import torch
from measure import alternate, machine, relative_error, save, tuned_malloc
from onnx import TensorProto, helper, numpy_helper
from torch.nn.utils.rnn import pack_sequence, pad_sequence

import unpad

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

# torch's gates in ONNX's order: LSTM i f g o -> i o f c; GRU r z n -> z r h.
GATES = {"LSTM": (0, 3, 1, 2), "GRU": (1, 0, 2), "RNN": (0,)}


def in_onnx_order(parameter: Tensor, cell: str) -> np.ndarray:
    gates = parameter.detach().chunk(len(GATES[cell]))
    return torch.cat([gates[gate] for gate in GATES[cell]]).numpy()


def onnx_model(layer: torch.nn.RNNBase, cell: str, width: int) -> bytes:
    """One ONNX operator with the layer's weights; inputs x [S, B, I] and lengths [B]."""
    w, r, w_bias, r_bias = (in_onnx_order(p, cell) for p in layer.parameters())
    weights = {"W": w[None], "R": r[None], "B": np.concatenate([w_bias, r_bias])[None]}
    options = {"linear_before_reset": 1} if cell == "GRU" else {}
    node = helper.make_node(
        cell, ["x", "W", "R", "B", "lengths"], ["y", "h"], hidden_size=width, **options
    )
    graph = helper.make_graph(
        [node],
        cell,
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, ["S", "B", width]),
            helper.make_tensor_value_info("lengths", TensorProto.INT32, ["B"]),
        ],
        [
            helper.make_tensor_value_info("y", TensorProto.FLOAT, None),
            helper.make_tensor_value_info("h", TensorProto.FLOAT, None),
        ],
        [numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8).SerializeToString()


def in_onnx_runtime(
    model: bytes, feed: dict[str, np.ndarray], threads: int
) -> Callable[[], Tensor]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: torch.from_numpy(session.run(None, feed)[1][0])


def final(states: Any) -> Tensor:
    """h after each sequence, [B, H], of a layer's second result."""
    return (states[0] if isinstance(states, tuple) else states)[0]


def measure(cell: str, width: int, batch: int, threads: int, seconds: float) -> dict[str, Any]:
    torch.manual_seed(batch)
    torch.set_num_threads(threads)
    lengths = torch.randint(10, 101, (batch,)).tolist()
    sequences = [torch.randn(n, width) for n in lengths]
    ours, theirs = getattr(unpad.nn, cell)(width, width), getattr(torch.nn, cell)(width, width)
    ours.load_state_dict(theirs.state_dict())
    ragged = unpad.Ragged.from_list(sequences)
    padded, packed = pad_sequence(sequences), pack_sequence(sequences, enforce_sorted=False)
    feed = {"x": padded.numpy(), "lengths": np.array(lengths, np.int32)}
    rivals: dict[str, Callable[[], Tensor]] = {
        "unpad": lambda: final(ours(ragged)[1]),
        "onnxruntime": in_onnx_runtime(onnx_model(theirs, cell, width), feed, threads),
        "padded": lambda: final(theirs(padded)[1]),
        "packed": lambda: final(theirs(packed)[1]),
    }
    found = {name: rivals[name]() for name in ("unpad", "onnxruntime")}
    wide = pack_sequence([sequence.double() for sequence in sequences], enforce_sorted=False)
    exact = final(theirs.double()(wide)[1])
    theirs.float()
    times, foreign = alternate(rivals, seconds=seconds)
    peer = min(list(rivals)[1:], key=lambda name: times[name].median)
    return {
        "cell": cell,
        "width": width,
        "batch": batch,
        "threads": threads,
        "tokens": sum(lengths),
        "padding factor": max(lengths) * batch / sum(lengths),
        **times,
        "peer": peer,
        "ratio": times[peer].median / times["unpad"].median,
        "error": relative_error([found["unpad"]], [exact]),
        "peer error": relative_error([found["onnxruntime"]], [exact]),
        "foreign load": foreign,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cells", nargs="+", default=list(GATES), choices=list(GATES))
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 32, 128])
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--seconds", type=float, default=3.0, help="per row")
    parser.add_argument("--no-save", action="store_true", help="print only")
    options = parser.parse_args()
    tuned_malloc()
    print({**machine(), "onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__})
    print(
        "cell    B thr  tokens  pad x | unpad ms  onnxrt  padded  packed | ratio to    | "
        "error unpad  onnxrt | foreign"
    )
    rows = []
    with torch.no_grad():
        for cell in options.cells:
            for batch in options.batches:
                for threads in options.threads:
                    rows.append(measure(cell, options.width, batch, threads, options.seconds))
                    print(line(rows[-1]), flush=True)
    if not options.no_save:
        save("forward_peers", rows)


def line(row: dict[str, Any]) -> str:
    names = ("unpad", "onnxruntime", "padded", "packed")
    times = " ".join(f"{row[name].median:7.2f}" for name in names)
    return (
        f"{row['cell']:5}{row['batch']:4}{row['threads']:4}{row['tokens']:8}"
        f"{row['padding factor']:7.2f} | {times} | {row['ratio']:4.2f}x {row['peer'][:6]:6} | "
        f"{row['error']:.1e}  {row['peer error']:.1e} | {row['foreign load']:4.0%}"
    )


if __name__ == "__main__":
    main()
