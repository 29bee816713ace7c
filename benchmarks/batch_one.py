"""How fast is one sequence by itself, where frameworks pay for every step's dispatch?

Forward and backward over one sequence of 100 tokens, H = 64: RNN against a NumPy loop and against
torch.nn, LSTM and GRU against torch.nn. The NumPy loop runs in a process of its own, without the
OPENBLAS_* variables that may hold it to slow kernels, both as one writes it and with every product
that needs no loop taken out of it. A rival's turn is as many calls as fit in 100 ms, after a pause,
and counts with its median; each runs with the number of threads that suits it best.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from measure import alternate, arguments, relative_error, save, start
from peer import Peer, turn

from unpad.bench import Rivals, Task, share_of_peak


def numpy_peer(rivals: Rivals, hoisted: bool) -> Peer:
    arrays = {name: p.detach().numpy() for name, p in rivals.torch.named_parameters()}
    arrays |= {"x": rivals.sequences[0].numpy(), "pull": rivals.pull[0].numpy()}
    job = {"hoisted": hoisted, "threads": 1}
    return Peer("numpy_loop", job, arrays, without=("OPENBLAS_",))


def measure(cell: str, options: Any) -> list[dict[str, Any]]:
    task = Task(cell, options.width)
    rivals = Rivals(task, [options.steps])
    exact = rivals.exact()
    errors = {way: relative_error(rivals.gradients(way), exact) for way in ("unpad", "padded")}
    calls: dict[str, Callable[[], object]] = {
        f"{name}, {threads} threads": turn(run, threads=threads)
        for name, run in (("unpad", rivals.run_ours), ("torch", rivals.run_padded))
        for threads in options.threads
    }
    peers: dict[str, Peer] = {}
    if cell == "RNN":
        peers = {f"NumPy loop{h * ', by hand'}": numpy_peer(rivals, h) for h in (False, True)}
    names = ["x", *dict(rivals.torch.named_parameters())]
    for name, peer in peers.items():
        found = peer.results()
        errors[name] = relative_error([torch.from_numpy(found[key]) for key in names], exact)
    times, foreign = alternate({**calls, **peers}, seconds=options.seconds)
    for peer in peers.values():
        peer.close()
    best = {
        name: min((times[n] for n in calls if n.startswith(name)), key=lambda t: t.median)
        for name in ("unpad", "torch")
    } | {name: times[name] for name in peers}
    return [
        {
            "cell": cell,
            "peer": name,
            "version": peers[name].version if name in peers else f"torch {torch.__version__}",
            "tokens": options.steps,
            "unpad": best["unpad"],
            "theirs": best[name],
            "ratio": best[name].median / best["unpad"].median,
            "share of peak": share_of_peak(task.operations(options.steps), best["unpad"].median, 1),
            "error": errors["unpad"],
            "peer error": errors.get(name, errors["padded"]),
            "foreign load": foreign,
        }
        for name in list(best)[1:]
    ]


def main() -> None:
    parser = arguments(__doc__, seconds=6.0, cells=["RNN", "GRU", "LSTM"], threads=[1, 2])
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    options = parser.parse_args()
    start()
    rows: list[dict[str, Any]] = []
    for cell in options.cells:
        rows += measure(cell, options)
        for row in rows[-3 if cell == "RNN" else -1 :]:
            print(
                f"{cell:5} unpad {1e3 * row['unpad'].median:7.0f} us  {row['peer']:20}"
                f"{1e3 * row['theirs'].median:8.0f} us {row['ratio']:7.2f}x | padding 1.00x | "
                f"{row['error']:.1e} {row['peer error']:.1e} | {row['foreign load']:3.0%} | "
                f"{row['version']}",
                flush=True,
            )
    if not options.no_save:
        save("batch_one", rows, steps=options.steps, width=options.width)


if __name__ == "__main__":
    main()
