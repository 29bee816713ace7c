"""Words by id and by n-grams: what a batch holds, what the model makes of it, what is chosen."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from unpad.data import SequenceTable, Vocabulary, read
from unpad.data.ngrams import ngrams
from unpad.data.table import Source, make_table, token_lists
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.ragged import Ragged
from unpad.tasks import Classifier, Job, ModelSettings, TrainingSettings, train_classifier
from unpad.tasks.model import SequenceModel
from unpad.tasks.prepare import Preparation
from unpad.tasks.settings import SUBWORDS
from unpad.tasks.words import WordDataset

ROWS = [["play", "it", "again"], [], ["it"], ["again", "play", "it", "it"]]
SMALL = ModelSettings(hidden_size=6, embedding_size=8, min_count=2, subwords=50)


def table_of(rows: list[list[str]]) -> SequenceTable:
    source = Source("t.jsonl", "line", "tokens")
    labels = ["ab"[i % 2] for i in range(len(rows))]
    return make_table("tokens", token_lists(rows), source, places=range(len(rows)), label=labels)


def test_a_batch_has_the_id_and_the_ngrams_of_every_token() -> None:
    vocabulary = Vocabulary.build([["it", "it", "play"]], "given")
    data = WordDataset.of(ROWS, vocabulary, 50, torch.tensor([0, 1, 2, 3]))
    order = [3, 1, 0]
    x, grams, labels = data.collate([data[i] for i in order])
    assert labels.tolist() == order
    assert x.lengths.tolist() == [4, 0, 3]
    assert x.values.tolist() == [0, 2, 1, 1, 2, 1, 0]  # "again" is unknown
    words = [word for i in order for word in ROWS[i]]
    assert [row.tolist() for row in grams.to_list()] == [ngrams(word, 50) for word in words]


def test_texts_are_cut_as_the_vocabulary_cuts_them() -> None:
    vocabulary = Vocabulary.build(["Don't stop"], "words", lowercase=True)
    data = WordDataset.of(["STOP it", ""], vocabulary, 50, torch.tensor([0, 0]))
    x, grams, _ = data.collate([data[0], data[1]])
    assert x.lengths.tolist() == [2, 0]
    assert x.values.tolist() == [vocabulary.id_of("stop"), 0]
    assert [row.tolist() for row in grams.to_list()] == [ngrams("stop", 50), ngrams("it", 50)]


def test_a_batch_of_empty_sequences_is_ordinary() -> None:
    data = WordDataset.of([[], []], Vocabulary.build([["a"]], "given"), 50, torch.tensor([0, 1]))
    x, grams, _ = data.collate([data[0], data[1]])
    model = SequenceModel(SMALL, 2, 3, text=True, subwords=50).eval()
    assert torch.equal(model(x, grams), model.head.bias.expand(2, 3))


def test_the_vector_of_a_token_is_the_sum_of_those_of_its_id_and_its_ngrams() -> None:
    model = SequenceModel(SMALL, 4, 3, text=True, subwords=50).double().eval()
    assert model.embedding is not None
    assert model.subwords is not None
    bags = [[3, 7, 3], [], [49]]  # a repeated bucket counts twice
    x = Ragged.from_lengths(torch.tensor([2, 0, 3]), [2, 0, 1])
    grams = Ragged.from_list([torch.tensor(bag, dtype=torch.int64) for bag in bags])
    vectors = [
        model.embedding.weight[i] + sum(model.subwords.weight[j] for j in bag)
        for i, bag in zip((2, 0, 3), bags, strict=True)
    ]
    plain = SequenceModel(replace(SMALL, embedding_size=8), 8, 3, text=False).double().eval()
    plain.encoder, plain.head = model.encoder, model.head
    expected = plain(x.with_values(torch.stack(vectors)))
    torch.testing.assert_close(model(x, grams), expected, rtol=0, atol=1e-12)


def test_word_dropout_hides_the_word_and_leaves_its_ngrams() -> None:
    settings = replace(SMALL, dropout=0.0, word_dropout=0.999999)
    model = SequenceModel(settings, 4, 3, text=True, subwords=50)
    x = Ragged.from_list([torch.tensor([1, 2, 3])])
    grams = Ragged.from_list([torch.tensor([n]) for n in (5, 6, 7)])
    model(x, grams).square().sum().backward()
    ids, buckets = (
        layer.weight.grad.abs().sum(1).nonzero().flatten().tolist()  # type: ignore[union-attr]
        for layer in (model.embedding, model.subwords)
    )
    assert (ids, buckets) == ([0], [5, 6, 7])


@pytest.mark.parametrize(
    ("kind", "tokens", "asked", "buckets"),
    [
        ("text", "words", None, SUBWORDS),
        ("text", "characters", None, 0),
        ("tokens", "auto", None, SUBWORDS),
        ("text", "words", 0, 0),
        ("tokens", "auto", 7, 7),
    ],
)
def test_words_have_ngrams_unless_the_user_says_no(
    kind: Any, tokens: str, asked: int | None, buckets: int
) -> None:
    table = table_of([["on", "off"], ["up"]])
    if kind == "text":
        column = token_lists([["on off", "up"]]).flatten()
        table = make_table("text", column, table.source, places=[1, 2], label=["a", "b"])
    preparation = Preparation.fit(table, ModelSettings(tokens=tokens, subwords=asked))
    assert preparation.subwords == buckets
    assert isinstance(preparation.dataset(table), WordDataset) == bool(buckets)
    model = Classifier.build(preparation, ModelSettings()).model
    assert (model.subwords.num_embeddings if model.subwords else 0) == buckets


@pytest.mark.parametrize(("value", "error"), [(-1, ArgumentError), (2.5, ArgumentTypeError)])
def test_buckets_out_of_range_are_named(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="argument `subwords`"):
        ModelSettings(subwords=value)


# Runs ----------------------------------------------------------------------------------------


@pytest.fixture
def words(tmp_path: Path, seed: int) -> Path:
    """40 rows of tokens, many of them rare, one row without any."""
    random = np.random.default_rng(seed)
    path = tmp_path / "words.jsonl"
    with path.open("w") as file:
        for i in range(40):
            stems = random.integers(0, 60, 0 if i == 3 else random.integers(1, 8))
            tokens = [f"{'ab'[i % 2]}{'xyz'[n % 3]}{n}" for n in stems.tolist()]
            file.write(json.dumps({"tokens": tokens, "label": "ab"[i % 2]}) + "\n")
    return path


class Stop:
    """Presses Ctrl-C in the third epoch."""

    def batch(self, epoch: int, done: int, batches: int) -> None:
        if epoch == 2:
            raise KeyboardInterrupt

    def epoch(self, row: dict[str, float | int]) -> None: ...


def job(data: Path, out: str, model: ModelSettings = SMALL) -> Job:
    training = TrainingSettings(epochs=4, batch_tokens=64, patience=0)
    return Job(data, data.parent / out, model=model, training=training)


def bits(run: Path) -> dict[str, bytes]:
    found = load_file(run / "model.safetensors") | load_file(run / "last.safetensors")
    return {name: tensor.numpy().tobytes() for name, tensor in found.items()}


@pytest.mark.parametrize("asked", [50, None])
def test_a_stopped_run_on_words_resumes_to_the_same_bits(words: Path, asked: int | None) -> None:
    model = replace(SMALL, subwords=asked)
    train_classifier(job(words, "straight", model))
    broken = job(words, "broken", model)
    assert train_classifier(broken, watcher=Stop())["status"] == "interrupted"
    torch.rand(7)
    assert train_classifier(broken, resume=True)["status"] == "finished"
    assert bits(words.parent / "straight") == bits(words.parent / "broken")


def test_a_saved_model_gives_an_unseen_word_the_same_probabilities_by_its_ngrams(
    words: Path,
) -> None:
    train_classifier(job(words, "run"))
    classifier = Classifier.load(words.parent / "run")
    table = table_of([["qqq"], ["rrr"], [], ["ax3", "qqq"]])
    chances = classifier.probabilities(table)
    assert not np.array_equal(chances[0], chances[1])  # two unknown words are two words
    np.testing.assert_array_equal(
        Classifier.load(words.parent / "run").probabilities(table), chances
    )
    classifier.save(words.parent / "copy")
    np.testing.assert_array_equal(
        Classifier.load(words.parent / "copy").probabilities(table), chances
    )


def forget(run: Path, *settings: str) -> None:
    """Make a run folder what a version wrote that did not know these settings."""
    record = json.loads((run / "run.json").read_text())
    config = json.loads((run / "config.json").read_text())
    for name in settings:
        del record["settings"]["model"][name], config["model"][name]
        config["preparation"].pop(name, None)
    (run / "run.json").write_text(json.dumps(record))
    (run / "config.json").write_text(json.dumps(config))


def test_a_folder_from_before_ngrams_predicts_and_resumes_as_it_did(words: Path) -> None:
    without = replace(SMALL, subwords=0)
    train_classifier(job(words, "straight", without))
    train_classifier(job(words, "old", without), watcher=Stop())
    straight, old = words.parent / "straight", words.parent / "old"
    for run in (straight, old):
        expected = Classifier.load(run).probabilities(read(words))
        forget(run, "subwords", "word_dropout")
        np.testing.assert_array_equal(Classifier.load(run).probabilities(read(words)), expected)
    train_classifier(job(words, "old", replace(SMALL, subwords=None)), resume=True)
    assert bits(straight) == bits(old)


def test_a_setting_that_the_folder_did_not_know_counts_as_its_default(words: Path) -> None:
    train_classifier(job(words, "old"), watcher=Stop())
    forget(words.parent / "old", "word_dropout")
    other = replace(SMALL, word_dropout=0.5)
    with pytest.raises(ValueError, match=r"model.word_dropout was 0.02, now it is 0.5"):
        train_classifier(job(words, "old", other), resume=True)


def test_a_broken_vocabulary_is_refused_in_words(words: Path) -> None:
    train_classifier(job(words, "run"))
    for content in (b"", b"{}", b"\xff"):
        (words.parent / "run" / "vocabulary.json").write_bytes(content)
        with pytest.raises(ValueError, match="the saved model is broken"):
            Classifier.load(words.parent / "run")
