"""The progress bar of training, on standard error."""

from __future__ import annotations

from types import TracebackType

from rich import progress as rich_progress

from unpad.cli.console import err, percent


class Progress:
    """A bar over all batches with the last metrics; a line an epoch where there is no terminal."""

    def __init__(self, epochs: int, *, silent: bool) -> None:
        self.epochs, self.silent = epochs, silent
        self.bar = rich_progress.Progress(
            rich_progress.TextColumn("epoch {task.fields[epoch]}"),
            rich_progress.BarColumn(),
            rich_progress.TextColumn("{task.fields[note]}"),
            rich_progress.TimeRemainingColumn(),
            console=err,
            transient=True,
            disable=silent or not err.is_terminal,
        )
        self.task = self.bar.add_task("", total=epochs, epoch=f"1/{epochs}", note="")

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def batch(self, epoch: int, done: int, batches: int) -> None:
        """Move the bar."""
        self.bar.update(
            self.task, completed=epoch + done / batches, epoch=f"{epoch + 1}/{self.epochs}"
        )

    def epoch(self, row: dict[str, float | int]) -> None:
        """Note an epoch."""
        parts = [f"loss {row['train_loss']:.4f}"]
        if "valid_loss" in row:
            parts.append(f"valid {row['valid_loss']:.4f}")
        if "valid_accuracy" in row:
            parts.append(percent(row["valid_accuracy"]))
        if "valid_perplexity" in row:
            parts.append(f"perplexity {row['valid_perplexity']:.2f}")
        note = ", ".join(parts)
        self.bar.update(self.task, note=note)
        if not self.silent and not err.is_terminal:
            err.print(f"epoch {int(row['epoch']) + 1}/{self.epochs}: {note}", highlight=False)
