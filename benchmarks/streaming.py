"""What does one token cost, when tokens arrive one at a time?

One stream: the next token in, its output out, the state kept. The peer is torch.nn's layer of the
same weights, called on a sequence of length 1 with its state under `inference_mode`. One thread.
Ours takes a tensor (`call`), or the state too and gives it back (`step`), or arrays.
"""

from __future__ import annotations

from typing import Any

import torch
from measure import alternate, arguments, relative_error, save, share_of_peak, start

import unpad


def measure(kind: str, width: int, seconds: float) -> dict[str, Any]:
    torch.manual_seed(width)
    torch.set_num_threads(1)
    layer = getattr(unpad.nn, kind)(width, width).eval()
    theirs = getattr(torch.nn, kind)(width, width).eval()
    theirs.load_state_dict(layer.state_dict())
    tokens = torch.randn(100, width)
    stepper = unpad.Stepper(layer)
    exact = layer.double()(tokens.double())[0].detach()
    layer.float()
    stepper.refresh()
    with torch.inference_mode():
        error = relative_error([torch.stack([stepper(x) for x in tokens])], [exact])
        peer_error = relative_error([theirs(tokens)[0]], [exact])
    x, array, state = tokens[0], tokens[0].numpy(), stepper.state
    calls = 100  # a round: a single call is shorter than what surrounds it

    @torch.inference_mode()
    def peer() -> None:
        hx = state
        for _ in range(calls):
            _, hx = theirs(x[None], hx)

    def call() -> None:
        for _ in range(calls):
            stepper(x)

    def step() -> None:
        now = state
        for _ in range(calls):
            _, now = stepper.step(x, now)

    def arrays() -> None:
        for _ in range(calls):
            stepper(array)

    times, foreign = alternate(
        {"call": call, "step": step, "arrays": arrays, "torch": peer}, seconds=seconds
    )
    micro = {name: timing.median * 1000 / calls for name, timing in times.items()}
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind]
    return {
        "layer": f"{kind} {width}",
        "call us": micro["call"],
        "step us": micro["step"],
        "arrays us": micro["arrays"],
        "torch us": micro["torch"],
        "share of peak": share_of_peak(2.0 * 2 * gates * width**2, micro["call"] / 1000, 1),
        "ratio": micro["torch"] / micro["call"],
        "error": error,
        "peer error": peer_error,
        "foreign load": foreign,
    }


def main() -> None:
    parser = arguments(__doc__, seconds=4.0, layers=["LSTM", "GRU", "RNN"], widths=[32, 128])
    options = parser.parse_args()
    start()
    rows: list[dict[str, Any]] = []
    for kind in options.layers:
        for width in options.widths:
            row = measure(kind, width, options.seconds)
            rows.append(row)
            print(
                f"{kind:5}{width:4} call {row['call us']:6.1f}  step {row['step us']:6.1f}  arrays "
                f"{row['arrays us']:6.1f}  torch {row['torch us']:6.1f} us {row['ratio']:6.1f}x | "
                f"{row['error']:.1e} {row['peer error']:.1e} | {row['foreign load']:3.0%}",
                flush=True,
            )
    if not options.no_save:
        save("streaming", rows)


if __name__ == "__main__":
    main()
