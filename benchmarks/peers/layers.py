"""A layer of unpad or of torch in a process by itself: one training step.

The job: `way` (unpad, padded or packed), `cell`, `width`, `layers`, `features`, `lengths`,
`threads`. It has no arrays of its own: the data is drawn from a seed, the same for every way.
The results: the gradients of x and of every parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from protocol import Arrays, serve

import unpad
from unpad.bench import Rivals, Task


def build(job: dict[str, Any], arrays: Arrays) -> tuple[Callable[[], Any], Callable[[Any], Arrays]]:
    torch.set_num_threads(job["threads"])
    task = Task(job["cell"], job["width"], job["layers"], job["features"])
    rivals = Rivals(task, job["lengths"])
    return rivals.calls()[job["way"]], lambda found: {
        str(place): gradient.numpy() for place, gradient in enumerate(found)
    }


if __name__ == "__main__":
    serve(f"unpad {unpad.__version__}, torch {torch.__version__}", build)
