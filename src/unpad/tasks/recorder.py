"""What a run notes while it trains and when it ends, whatever it trains."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unpad.data.table import digest
from unpad.tasks.callbacks import Row, Watcher
from unpad.tasks.run_folder import METRICS, RunFolder
from unpad.tasks.training import Training


class Recorder:
    """Keeps metrics.jsonl and the curve up to date, and passes everything on."""

    def __init__(self, run: RunFolder, watcher: Watcher | None) -> None:
        self.run, self.watcher, self.rows = run, watcher, _rows(run)

    def batch(self, epoch: int, done: int, batches: int) -> None:
        """Pass on."""
        if self.watcher is not None:
            self.watcher.batch(epoch, done, batches)

    def epoch(self, row: Row) -> None:
        """Replace the rows of this epoch and later ones: a resumed run may see them again."""
        self.rows = [*(r for r in self.rows if r["epoch"] < row["epoch"]), row]
        self.run.show_epochs(self.rows)
        if self.watcher is not None:
            self.watcher.epoch(row)


def file_facts(path: str | Path, sequences: int) -> dict[str, Any]:
    """What run.json says about a data file."""
    return {"path": str(path), "sha256": digest(path), "sequences": sequences}


def totals(result: Training) -> dict[str, Any]:
    """Epochs, tokens and time of a run."""
    tokens = sum(int(row["tokens"]) for row in result.rows)
    padded = sum(int(row["padded_steps"]) for row in result.rows)
    seconds = sum(float(row["seconds"]) for row in result.rows)
    return {
        "epochs": len(result.rows),
        "best_epoch": result.best_epoch,
        "tokens": tokens,
        "seconds": seconds,
        "tokens_per_second": tokens / seconds if seconds else 0.0,
        "padding_avoided": 1 - tokens / padded if padded else 0.0,
    }


def _rows(run: RunFolder) -> list[Row]:
    path = run.path / METRICS
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
