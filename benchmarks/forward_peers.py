"""How fast does a recurrent layer run forward on ragged sequences, against other engines?

Inference of LSTM, GRU and RNN, 128 -> 128, on lengths drawn uniformly from 10..100. The peers:
ONNX Runtime's own operators with `sequence_lens` (they skip pads), torch padded and torch packed.
The ratio is to the fastest of them. The error is against torch in float64, over the final states.
ONNX Runtime runs in a process and an environment of its own (`make bench-peers` installs it); it is
left out, with the reason, where it is not there.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import TYPE_CHECKING, Any

import torch
from measure import (
    alternate,
    arguments,
    gains,
    heading,
    relative_error,
    save,
    share_of_peak,
    start,
    table_line,
)
from peer import Peer, PeerError, turn

from unpad.bench import CELLS, Rivals, Task, draw, padding_gain

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

RIVALS = ("unpad", "onnxruntime", "padded", "packed")


def final(result: tuple[Any, Any]) -> Tensor:
    """h after each sequence, [B, H], of what a layer gives."""
    states = result[1]
    return (states[0] if isinstance(states, tuple) else states)[0]


def measure(cell: str, width: int, batch: int, threads: int, seconds: float) -> dict[str, Any]:
    torch.set_num_threads(threads)
    lengths, task = draw("uniform 10-100", batch), Task(cell, width)
    rivals = Rivals(task, lengths)
    ragged, padded, packed = (form[0] for form in (rivals.ragged, rivals.padded, rivals.packed))
    calls: dict[str, Callable[[], object]] = {
        "unpad": lambda: rivals.ours(ragged),
        "padded": lambda: rivals.torch(padded),
        "packed": lambda: rivals.torch(packed),
    }
    found = {"unpad": final(rivals.ours(ragged)), "packed": final(rivals.torch(packed))}
    arrays = {name: p.detach().numpy() for name, p in rivals.torch.named_parameters()}
    arrays |= {"x": padded.detach().numpy(), "lengths": ragged.lengths.numpy()}
    exact = final(rivals.torch.double()(packed.to(torch.float64)))
    rivals.torch.float()
    version = ""
    with contextlib.ExitStack() as stack:
        timed: dict[str, Callable[[], object]] = {name: turn(run) for name, run in calls.items()}
        try:
            job = {"cell": cell, "threads": threads}
            peer = stack.enter_context(
                Peer("onnxruntime_rnn", job, arrays, environment="onnxruntime")
            )
            found["onnxruntime"] = torch.from_numpy(peer.results()["h"])
            timed["onnxruntime"], version = peer, peer.version
        except PeerError as reason:
            print(f"left out, onnxruntime: {reason}", flush=True)
        times, foreign = alternate(timed, seconds=seconds)
    work = task.operations(sum(lengths)) / 3  # training is three times the products of inference
    peer_error = found.get("onnxruntime", found["packed"])
    return {
        "cell": cell,
        "width": width,
        "batch": batch,
        "threads": threads,
        "tokens": sum(lengths),
        **times,
        **gains(times, [name for name in timed if name != "unpad"], padding_gain(lengths)),
        "version": version,
        "share of peak": share_of_peak(work, times["unpad"].median, threads),
        "error": relative_error([found["unpad"]], [exact]),
        "peer error": relative_error([peer_error], [exact]),
        "foreign load": foreign,
    }


def main() -> None:
    parser = arguments(
        __doc__, seconds=3.0, pieces=True, cells=list(CELLS), batches=[1, 32, 128], threads=[1, 2]
    )
    parser.add_argument("--width", type=int, default=128)
    options = parser.parse_args()
    start()
    print(f"{'cell':5}{heading(RIVALS)}")
    rows = []
    with torch.no_grad():
        for cell, batch, threads in itertools.product(
            options.cells, options.batches, options.threads
        ):
            rows.append(measure(cell, options.width, batch, threads, options.seconds))
            print(f"{cell:5}{table_line(rows[-1], RIVALS)}", flush=True)
    if not options.no_save:
        save("forward_peers", rows, keep=options.keep, by=("cell", "batch", "threads"))


if __name__ == "__main__":
    main()
