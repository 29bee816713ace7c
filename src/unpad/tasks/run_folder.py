"""A run's folder: what made it, what came out, how the loss went.

``run.json`` (command, settings, versions, data digests, length profile, results), ``metrics.jsonl``
(a line an epoch), ``loss.png``, ``tensorboard/``, the model (`unpad.tasks.saved`) and the state to
resume (``last.safetensors``).
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, cast

import torch

from unpad.tasks.atomic import leftovers, write_atomically, write_json, write_text
from unpad.tasks.model_files import version
from unpad.tasks.run_error import RunError

RUN, METRICS, CURVE, LAST = "run.json", "metrics.jsonl", "loss.png", "last.safetensors"
_QUANTITIES = ("loss", "accuracy", "perplexity")
_FREE = ("epochs",)  # settings that a resumed run may raise
_PACKAGES = ("torch", "numpy", "lightning", "pyarrow", "tokenizers", "safetensors", "torchmetrics")


Settings = dict[str, dict[str, Any]]
"""A task's settings by group ("model", "training"), as run.json has them."""


class RunFolder:
    """The folder of one training run, new or taken up again.

    ``defaults`` are the settings of the task as they are where nobody chooses.

    >>> import tempfile
    >>> run = RunFolder(Path(tempfile.mkdtemp()) / "run")
    >>> run.begin({"settings": {"seed": 0}, "data": {}}, resume=False)
    >>> run.record["status"]
    'running'
    """

    def __init__(self, path: str | Path, defaults: Settings | None = None) -> None:
        self.path = Path(path)
        self.defaults = _flat(defaults or {})
        self.record: dict[str, Any] = {}

    def check(self, facts: dict[str, Any], *, resume: bool) -> None:
        """Refuse what this folder cannot hold, as `begin` does, and touch nothing."""
        if resume:
            self._check_same(self._read(), facts)
        elif self.path.exists() and (not self.path.is_dir() or self._holds_something()):
            raise RunError(
                f"{self.path}: exists and is not empty; add --resume to go on with that run, "
                "or choose another --out"
            )

    def _holds_something(self) -> bool:
        """What a run leaves that was stopped as it began is nothing."""
        return set(self.path.iterdir()) != set(leftovers(self.path))

    def begin(self, facts: dict[str, Any], *, resume: bool) -> None:
        """Claim the folder for a run described by ``facts`` ("settings", "data", ...).

        A folder that holds something is refused without ``resume``; with it, settings and data must
        be those of the run (the number of epochs may grow; a setting that the run did not know yet
        counts as its default). Raises `RunError`.
        """
        self.check(facts, resume=resume)
        self.path.mkdir(parents=True, exist_ok=True)
        for path in leftovers(self.path):
            path.unlink()
        self.record = {
            "status": "running",
            "started": _now(),
            "versions": _versions(),
            "machine": {
                "processor": platform.machine(),
                "system": platform.platform(),
                "threads": torch.get_num_threads(),
            },
            **facts,
        }
        self.write()

    @property
    def can_resume(self) -> bool:
        """Whether a whole epoch of this run is on disk."""
        return (self.path / LAST).is_file()

    def write(self) -> None:
        """Replace run.json."""
        write_json(self.path / RUN, self.record)

    def show_epochs(self, rows: Sequence[dict[str, Any]]) -> None:
        """Replace metrics.jsonl and loss.png."""
        write_text(self.path / METRICS, "".join(json.dumps(row) + "\n" for row in rows))
        write_atomically(self.path / CURVE, lambda temporary: _draw(rows, temporary))

    def end(self, status: str, **results: Any) -> None:
        """Note how the run ended ("finished", "interrupted") and its results."""
        self.record |= {"status": status, "ended": _now(), **results}
        self.write()

    def _read(self) -> dict[str, Any]:
        path = self.path / RUN
        if not path.is_file():
            raise RunError(f"{self.path}: no run to resume (there is no {RUN}); leave out --resume")
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise RunError(f"{path}: not valid JSON ({error}); train again") from None

    def _check_same(self, old: dict[str, Any], new: dict[str, Any]) -> None:
        for part in ("settings", "data"):
            before = _flat(old.get(part, {}))
            now = _flat(json.loads(json.dumps(new[part])))
            for name in _FREE:
                self._check_grows(before.get(f"training.{name}"), now.get(f"training.{name}"), name)
            for name in sorted(before.keys() | now.keys()):
                short, was = name.split(".")[-1], before.get(name, self.defaults.get(name))
                if was != now.get(name) and short not in (*_FREE, "path"):
                    raise RunError(
                        f"{self.path}: cannot resume: {part}.{name} was {was!r}, "
                        f"now it is {now.get(name)!r}; give the same options and data, or another "
                        "--out"
                    )

    def _check_grows(self, before: Any, now: Any, name: str) -> None:
        if before is not None and now is not None and now < before:
            raise RunError(
                f"{self.path}: cannot resume: {name} was {before}, now it is {now}, and may only "
                f"grow; give --{name} {before} or more, or another --out"
            )


def _flat(data: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(data, dict):
        return {prefix: data}
    found: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", data).items():
        found |= _flat(value, f"{prefix}.{key}" if prefix else key)
    return found


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def _versions() -> dict[str, str]:
    found = {"unpad": version(), "python": platform.python_version()}
    return found | {name: metadata.version(name) for name in _PACKAGES}


def _draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    from matplotlib.figure import Figure

    names = {name for row in rows for name in row}
    shown = [q for q in _QUANTITIES if names & {f"train_{q}", f"valid_{q}"}]
    figure = Figure(figsize=(3.5 * len(shown), 3), layout="constrained")
    for axes, quantity in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
        for part in ("train", "valid"):
            key = f"{part}_{quantity}"
            points = [(row["epoch"] + 1, row[key]) for row in rows if key in row]
            if points:
                axes.plot(*zip(*points, strict=True), label=part, marker=".")
        axes.set_xlabel("epoch")
        axes.set_ylabel(quantity)
        axes.legend()
    figure.savefig(path, dpi=110)
