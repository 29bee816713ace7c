"""A trained classifier on disk: config.json, vocabulary.json (text) and model.safetensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from unpad.data import Roles, SequenceTable, TokenBudgetBatchSampler, Vocabulary
from unpad.data.collate import RaggedDataset
from unpad.tasks.atomic import write_text
from unpad.tasks.model import SequenceModel
from unpad.tasks.model_files import (
    CLASSIFY,
    VOCABULARY,
    broken,
    load_weights,
    read_config,
    read_text,
    save_weights,
    write_config,
)
from unpad.tasks.prepare import Preparation
from unpad.tasks.settings import ModelSettings

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
        facts = {
            "model": self.settings.to_dict(),
            "preparation": self.preparation.to_dict(),
            "columns": roles,
        }
        write_config(folder, CLASSIFY, facts)

    @classmethod
    def untrained(cls, folder: str | Path) -> Classifier:
        """Read what `save_config` wrote; fresh weights, drawn from torch's global generator.

        What a setting of None or 0 came to is read, not chosen again: a newer version may choose
        otherwise. Raises `RunError` where a file is missing or broken.
        """
        folder = Path(folder)
        config = read_config(folder, CLASSIFY)
        try:
            has_vocabulary = config["preparation"]["kind"] != "numbers"
            vocabulary = (
                Vocabulary.from_json(read_text(folder / VOCABULARY)) if has_vocabulary else None
            )
            columns = dict(config.get("columns", {}))
            columns["features"] = tuple(columns.get("features", ()))
            return cls.build(
                Preparation.from_dict(config["preparation"], vocabulary),
                ModelSettings.from_dict(config["model"]),
                Roles(**columns),
            )
        except (OSError, KeyError, TypeError, ValueError, RuntimeError, AttributeError) as error:
            raise broken(folder, error) from None

    @classmethod
    def load(cls, folder: str | Path) -> Classifier:
        """Read what `save` wrote. Raises `RunError` where a file is missing or broken."""
        folder = Path(folder)
        with torch.random.fork_rng():  # fresh weights draw numbers, and are thrown away here
            built = cls.untrained(folder)
        load_weights(built.model, folder)
        return built
