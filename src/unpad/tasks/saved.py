"""A trained classifier on disk: config.json, vocabulary.json (text) and model.safetensors."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.utils.data import DataLoader

from unpad.data import Roles, SequenceTable, TokenBudgetBatchSampler, Vocabulary
from unpad.data.collate import RaggedDataset
from unpad.tasks.atomic import write_atomically, write_json, write_text
from unpad.tasks.model import SequenceModel
from unpad.tasks.prepare import Preparation
from unpad.tasks.run_error import RunError
from unpad.tasks.settings import ModelSettings

FORMAT = 1
CONFIG, VOCABULARY, WEIGHTS = "config.json", "vocabulary.json", "model.safetensors"
PREDICTION_TOKENS = 16_384
"""Tokens of one batch of prediction."""


@dataclass(frozen=True)
class Classifier:
    """A network with its preparation: from tables of sequences to probabilities."""

    model: SequenceModel
    preparation: Preparation
    settings: ModelSettings
    roles: Roles = field(default_factory=Roles)

    @classmethod
    def build(
        cls, preparation: Preparation, settings: ModelSettings, roles: Roles | None = None
    ) -> Classifier:
        """A classifier with fresh weights, drawn from torch's global generator."""
        model = SequenceModel(
            settings,
            preparation.input_size,
            len(preparation.labels),
            text=preparation.vocabulary is not None,
            subwords=preparation.subwords,
        )
        return cls(model, preparation, settings, roles or Roles())

    def probabilities(self, table: SequenceTable) -> npt.NDArray[np.float64]:
        """Probabilities [B, classes] of the sequences of a table, in its order."""
        data = self.preparation.inputs(table, torch.zeros(len(table), dtype=torch.int64))
        parts = [torch.zeros(0, len(self.preparation.labels))]
        parts += [torch.softmax(logits, 1) for logits in self._logits(data)]
        return torch.cat(parts).double().numpy()

    def _logits(self, data: RaggedDataset) -> Iterator[Tensor]:
        device = next(self.model.parameters()).device
        sampler = TokenBudgetBatchSampler(
            data.lengths.numpy(), PREDICTION_TOKENS, PREDICTION_TOKENS, shuffle=False
        )
        # Its own generator: a loader would draw from torch's global one, which is the caller's.
        loader = DataLoader(
            data, batch_sampler=sampler, collate_fn=data.collate, generator=torch.Generator()
        )
        self.model.eval()
        with torch.no_grad():
            for *inputs, _ in loader:
                yield self.model(*(x.to(device) for x in inputs)).cpu()

    def save(self, folder: str | Path) -> None:
        """Write the classifier into a folder (made where missing); each file atomically."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        save_weights(self.model.state_dict(), folder)
        self.save_config(folder)

    def save_config(self, folder: Path) -> None:
        """Write all but the weights."""
        if self.preparation.vocabulary is not None:
            write_text(folder / VOCABULARY, self.preparation.vocabulary.to_json())
        roles = {k: v for k, v in vars(self.roles).items() if v}
        config = {
            "format": FORMAT,
            "task": "classify",
            "unpad": version(),
            "model": self.settings.to_dict(),
            "preparation": self.preparation.to_dict(),
            "columns": roles,
        }
        write_json(folder / CONFIG, config)

    @classmethod
    def untrained(cls, folder: str | Path) -> Classifier:
        """Read what `save_config` wrote; fresh weights, drawn from torch's global generator.

        What a setting of None or 0 came to is read, not chosen again: a newer version may choose
        otherwise. Raises `RunError` where a file is missing or broken.
        """
        folder = Path(folder)
        config = _config(folder)
        try:
            has_vocabulary = config["preparation"]["kind"] != "numbers"
            vocabulary = (
                Vocabulary.from_json(_text(folder / VOCABULARY)) if has_vocabulary else None
            )
            columns = dict(config.get("columns", {}))
            columns["features"] = tuple(columns.get("features", ()))
            return cls.build(
                Preparation.from_dict(config["preparation"], vocabulary),
                ModelSettings.from_dict(config["model"]),
                Roles(**columns),
            )
        except (OSError, KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise _broken(folder, error) from None

    @classmethod
    def load(cls, folder: str | Path) -> Classifier:
        """Read what `save` wrote. Raises `RunError` where a file is missing or broken."""
        folder = Path(folder)
        with torch.random.fork_rng():  # fresh weights draw numbers, and are thrown away here
            built = cls.untrained(folder)
        try:
            built.model.load_state_dict(load_file(folder / WEIGHTS))
        except FileNotFoundError:
            raise RunError(
                f"{folder}: no trained weights yet ({WEIGHTS}); let an epoch of training finish"
            ) from None
        except (SafetensorError, RuntimeError) as error:
            raise _broken(folder, error) from None
        built.model.eval()
        return built


def save_weights(state: Mapping[str, Tensor], folder: Path) -> None:
    """Replace the weights of a run atomically."""
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in state.items()}
    write_atomically(folder / WEIGHTS, lambda temporary: save_file(tensors, temporary))


def version() -> str:
    """The version of the installed package, or "unknown" for a bare source tree."""
    try:
        return metadata.version("unpad")
    except metadata.PackageNotFoundError:
        return "unknown"


def _broken(folder: Path, error: Exception) -> RunError:
    first = next(iter(str(error).splitlines()), type(error).__name__)
    return RunError(f"{folder}: the saved model is broken ({first}); train again")


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise RunError(f"{folder}: no run folder (there is no {CONFIG}); give the --out of a run")
    try:
        config = json.loads(_text(path))
    except ValueError as error:
        raise RunError(f"{path}: not valid JSON ({error}); train again") from None
    if config.get("format") != FORMAT:
        raise RunError(
            f"{path}: format {config.get('format')!r}, this version reads {FORMAT}; "
            "use the version of unpad that wrote it, or train again"
        )
    return config


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")
