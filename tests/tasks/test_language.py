"""Language models from training to text: the same bits again, exact scores, reproducible words."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from unpad.data import DataError
from unpad.errors import ArgumentError, ArgumentTypeError
from unpad.tasks import (
    Classifier,
    LanguageJob,
    LanguageModel,
    LanguageSettings,
    LanguageTraining,
    RunError,
    train_language_model,
)
from unpad.tasks.language.training import encoded, fit_language, untrained

SMALL = LanguageSettings(hidden_size=8, layers=2, dropout=0.3, tokens="spaced")
BRIEF = LanguageTraining(epochs=4, batch=4, steps=6, batch_tokens=60, learning_rate=0.02)


def sentences(seed: int, count: int = 60) -> list[str]:
    """Lines of 0 to 9 words; a word's successors are few, so that there is something to learn."""
    random = np.random.default_rng(seed)
    lines: list[str] = []
    for _ in range(count):
        word, line = int(random.integers(12)), list[str]()
        for _ in range(random.integers(0, 10)):
            line.append(f"w{word}")
            word = (3 * word + int(random.integers(2))) % 12
        lines.append(" ".join(line))
    return lines


@pytest.fixture
def data(tmp_path: Path, seed: int) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    for part, count in (("train", 60), ("valid", 12), ("test", 12)):
        lines = sentences(seed + len(part), count)
        (folder / f"ptb.{part}.txt").write_text("\n".join(lines) + "\n")
    return folder


class Stop:
    """Presses Ctrl-C in the middle of an epoch."""

    def __init__(self, epoch: int) -> None:
        self.at = epoch

    def batch(self, epoch: int, done: int, batches: int) -> None:
        if epoch == self.at and done == 2:
            raise KeyboardInterrupt

    def epoch(self, row: dict[str, float | int]) -> None: ...


def job(data: Path, out: str, training: LanguageTraining = BRIEF, **model: Any) -> LanguageJob:
    return LanguageJob(data, data.parent / out, model=replace(SMALL, **model), training=training)


def same(a: Path, b: Path, name: str) -> bool:
    one, two = load_file(a / name), load_file(b / name)
    return one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)


def rows_of(run: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


@pytest.mark.parametrize(
    ("model", "training"),
    [
        ({"sequences": "stream", "softmax": "hierarchical", "classes": "bigrams"}, {}),
        ({"sequences": "lines", "softmax": "adaptive", "same_mask": False}, {}),
        ({"sequences": "stream", "tied": True, "cell": "layernorm_lstm"}, {}),
        ({"sequences": "stream"}, {"optimizer": "sgd", "schedule": "decay", "flat": 1}),
    ],
)
def test_a_stopped_run_resumes_to_the_same_bits(
    data: Path, model: dict[str, Any], training: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unpad.tasks.language.module.AT_ONCE", 120)  # a short epoch has a middle
    straight = job(data, "straight", replace(BRIEF, **training), **model)
    first = train_language_model(straight)
    broken = replace(straight, out=data.parent / "broken")
    record = train_language_model(broken, watcher=Stop(2))
    assert record["status"] == "interrupted"
    torch.rand(7)  # the caller's random state is not the run's
    again = train_language_model(broken, resume=True)
    assert again["status"] == "finished"
    for name in ("model.safetensors", "last.safetensors"):
        assert same(Path(straight.out), Path(broken.out), name)
    assert rows_of(Path(broken.out)) == rows_of(Path(straight.out))
    assert again["results"]["test_loss"] == first["results"]["test_loss"]


def test_training_is_that_of_a_plain_loop_in_torch(seed: int) -> None:
    """As Zaremba et al. train: sums over steps, clipping, the rate halved, the state carried."""
    lines = sentences(seed)
    settings = replace(SMALL, dropout=0.0, init=0.1)
    training = LanguageTraining(
        epochs=3, batch=4, steps=5, optimizer="sgd", learning_rate=1.0, schedule="decay", flat=1,
        clip=0.5, loss_per="sequence", valid_fraction=0, seed=seed,
    )  # fmt: skip
    model = untrained(lines, settings, training.seed)
    start = {name: value.clone() for name, value in model.network.state_dict().items()}
    ids, offsets = encoded(model, lines)
    ids = ids[: len(ids) // 4 * 4]  # rows of equal length, which is all that a plain loop can do
    fit_language(model, (ids, offsets), None, training, _folder(), tensorboard=False)

    words = len(model.vocabulary)
    embedding, lstm = nn.Embedding(words, 8), nn.LSTM(8, 8, 2)
    head = nn.Linear(8, words)
    embedding.load_state_dict({"weight": start["embedding.weight"]})
    head.load_state_dict({name: start[f"softmax.{name}"] for name in ("weight", "bias")})
    lstm.load_state_dict(
        {
            f"{name}_l{n}": start[f"layers.{n}.{name}_l0"]
            for n in (0, 1)
            for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        }
    )
    parameters = [*embedding.parameters(), *lstm.parameters(), *head.parameters()]
    for module in (embedding, lstm, head):
        module.double()
    inputs = torch.cat([torch.tensor([1]), ids[:-1]]).reshape(4, -1).T
    targets = ids.reshape(4, -1).T
    for epoch in range(3):
        optimizer = torch.optim.SGD(parameters, lr=0.5 ** max(0, epoch + 1 - 1))
        state = None
        for begin in range(0, len(inputs), 5):
            hidden, state = lstm(embedding(inputs[begin : begin + 5]), state)
            state = tuple(part.detach() for part in state)
            logits, wanted = head(hidden).flatten(0, 1), targets[begin : begin + 5].flatten()
            optimizer.zero_grad()
            (nn.functional.cross_entropy(logits, wanted, reduction="sum") / 4).backward()
            nn.utils.clip_grad_norm_(parameters, 0.5)
            optimizer.step()
    found = model.network.state_dict()
    for name, expected in (
        ("embedding.weight", embedding.weight),
        ("softmax.weight", head.weight),
        ("layers.1.weight_hh_l0", lstm.weight_hh_l1),
    ):
        torch.testing.assert_close(found[name].double(), expected.detach(), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(found[name], start[name], atol=1e-3)


def _folder() -> Path:
    import tempfile

    return Path(tempfile.mkdtemp())


@pytest.fixture(scope="module", params=["stream", "lines"])
def trained(request: pytest.FixtureRequest) -> LanguageModel:
    return LanguageModel.train(
        sentences(5, 200), sequences=request.param, hidden_size=16, dropout=0.0, epochs=15,
        batch=8, steps=10, batch_tokens=100, learning_rate=0.02, tokens="spaced", seed=2,
    )  # fmt: skip


def test_a_small_model_learns(trained: LanguageModel) -> None:
    # 14 tokens; a word has two successors, or the line ends.
    assert trained.perplexity(sentences(6, 40)) < 5


def test_scores_are_those_of_reading_token_by_token(trained: LanguageModel) -> None:
    texts = ["w1 w3 nothing", "", "w4"]
    network, vocabulary = trained.network, trained.vocabulary
    expected: list[float] = []
    state: Any = None
    last = vocabulary.end
    for text in texts:
        if trained.settings.sequences == "lines":
            state, last = None, vocabulary.end
        for token in vocabulary.encode([text])[0].tolist():
            x = torch.tensor([[last]])
            hidden = network.embedding(x)
            before = [None] * 2 if state is None else state
            state = []
            for layer, held in zip(network.layers, before, strict=True):
                torch_layer = nn.LSTM(16, 16, batch_first=True)
                torch_layer.load_state_dict(layer.state_dict())
                hidden, new = torch_layer(hidden, held)
                state.append(new)
            chances = nn.functional.linear(
                hidden[0, 0],
                network.softmax.weight,
                network.softmax.bias,  # pyright: ignore
            ).log_softmax(0)
            expected.append(float(chances[token].detach()))
            last = token
    found = trained.log_probabilities(texts)
    assert [len(row) for row in found] == [4, 1, 2]
    assert torch.cat(found).tolist() == pytest.approx(expected, abs=1e-5)
    assert trained.perplexity(texts) == pytest.approx(math.exp(-np.mean(expected)), rel=1e-5)


def test_a_line_is_scored_by_itself_and_a_stream_goes_on(trained: LanguageModel) -> None:
    alone = trained.log_probabilities(["w3 w9"])[0]
    after = trained.log_probabilities(["w1 w4 w0 w1", "w3 w9"])[1]
    if trained.settings.sequences == "lines":
        torch.testing.assert_close(alone, after)
    else:
        assert not torch.allclose(alone, after)


def test_a_long_text_in_one_line_is_scored_window_by_window(
    trained: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [" ".join(sentences(8, 30)), "w3"]
    whole = torch.cat(trained.log_probabilities(texts))
    monkeypatch.setattr("unpad.tasks.language.reading.WINDOW", 7)
    torch.testing.assert_close(torch.cat(trained.log_probabilities(texts)), whole)


def test_the_same_seed_writes_the_same_text(trained: LanguageModel) -> None:
    def written(seed: int, **options: Any) -> str:
        torch.rand(3)  # the caller's generator has no say
        return "".join(trained.generate("w1 w3", tokens=40, seed=seed, **options))

    assert written(1) == written(1)
    assert len({written(seed) for seed in range(5)}) > 1
    assert "<unk>" not in "".join(written(seed) for seed in range(5))
    if trained.settings.sequences == "lines":
        assert all(written(seed).count("\n") <= 1 for seed in range(5))


def test_temperature_0_and_top_1_take_the_likeliest_token(trained: LanguageModel) -> None:
    prompt = "w1 w3"
    found = "".join(trained.generate(prompt, tokens=1, temperature=0))
    assert found == "".join(trained.generate(prompt, tokens=1, top_k=1, seed=7))
    known = [f"w{i}" for i in range(12) if trained.vocabulary.id_of(f"w{i}")]
    chances = [float(trained.log_probabilities([f"{prompt} {c}"])[0][2]) for c in known]
    end = float(trained.log_probabilities([prompt])[0][2])
    expected = "\n" if end > max(chances) else f" {known[int(np.argmax(chances))]}"
    assert found == expected


def test_top_k_draws_the_k_likeliest_as_often_as_they_are_likely(trained: LanguageModel) -> None:
    known = [f"w{i}" for i in range(12) if trained.vocabulary.id_of(f"w{i}")]
    chances = {c: float(trained.log_probabilities([f"w1 {c}"])[0][1]) for c in known}
    best = sorted(known, key=lambda c: -chances[c])[:2]
    drawn = [
        "".join(trained.generate("w1", tokens=1, top_k=2, seed=seed)).strip() for seed in range(300)
    ]
    assert set(drawn) <= set(best)
    weight = math.exp(chances[best[0]]) / sum(math.exp(chances[c]) for c in best)
    assert drawn.count(best[0]) / 300 == pytest.approx(weight, abs=0.12)


def test_a_saved_model_is_the_model(trained: LanguageModel, tmp_path: Path) -> None:
    trained.save(tmp_path / "run")
    again = LanguageModel.load(tmp_path / "run")
    texts = sentences(9, 5)
    for one, two in zip(
        trained.log_probabilities(texts), again.log_probabilities(texts), strict=True
    ):
        assert torch.equal(one, two)
    assert again.settings == trained.settings


@pytest.mark.parametrize("tokens", ["characters", "subwords", "words"])
@pytest.mark.parametrize("cell", ["gru", "layernorm_lstm"])
def test_every_kind_of_token_and_cell_can_be_trained_with_narrow_products(
    tokens: str, cell: str
) -> None:
    lines = ["The cat sat.", "The dog sat.", "A naïve cat"] * 8
    model = LanguageModel.train(
        lines, tokens=tokens, cell=cell, precision="bfloat16", hidden_size=12, epochs=2, batch=2,
        vocabulary=300, softmax="hierarchical", dropout=0.0, seed=1,
    )  # fmt: skip
    assert math.isfinite(model.perplexity(lines))
    assert isinstance("".join(model.generate("The ", tokens=5, seed=0)), str)


def test_the_record_has_the_perplexity_of_the_best_weights(data: Path) -> None:
    record = train_language_model(job(data, "run"))
    results, rows = record["results"], rows_of(data.parent / "run")
    losses = [row["valid_loss"] for row in rows]
    assert losses[results["best_epoch"]] == min(losses)
    model = LanguageModel.load(data.parent / "run")
    lines = (data / "ptb.test.txt").read_text().split("\n")[:-1]
    assert results["test_perplexity"] == pytest.approx(model.perplexity(lines), rel=1e-6)
    assert results["test_tokens"] == sum(len(line.split()) + 1 for line in lines)
    words = set((data / "ptb.train.txt").read_text().split())
    assert record["vocabulary"] == len(words) + 2
    names = {path.name for path in (data.parent / "run").iterdir()}
    assert names == {
        "config.json", "vocabulary.json", "model.safetensors", "last.safetensors", "run.json",
        "metrics.jsonl", "loss.png", "tensorboard",
    }  # fmt: skip


def test_other_settings_are_refused_on_resume(data: Path) -> None:
    train_language_model(job(data, "run", replace(BRIEF, epochs=1)))
    with pytest.raises(RunError, match=r"settings\.model\.hidden_size was 8, now it is 9"):
        train_language_model(job(data, "run", hidden_size=9), resume=True)


def test_bad_texts_and_settings_are_refused_in_words(data: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n\n")
    with pytest.raises(DataError, match="there is no text in it"):
        train_language_model(replace(job(data, "run"), valid=empty))
    assert not (data.parent / "run").exists()
    with pytest.raises(ArgumentError, match=r"`embedding_size`: got 5; allowed: 8 \(hidden_size"):
        LanguageSettings(hidden_size=8, embedding_size=5, tied=True)
    with pytest.raises(ArgumentError, match="`tied`: got True"):
        LanguageSettings(tied=True, softmax="adaptive")
    with pytest.raises(ArgumentError, match="`softmax`: got fast; allowed: full, hierarchical"):
        LanguageSettings(softmax="fast")
    with pytest.raises(ArgumentError, match="`hiden_size`: got 5"):
        LanguageModel.train(["a b"], hiden_size=5)
    with pytest.raises(ArgumentTypeError, match="`texts`: got a b; allowed: a list of texts"):
        LanguageModel.train("a b")
    with pytest.raises(ArgumentTypeError, match=r"`texts\[1\]`"):
        LanguageModel.train(["a", 3])  # pyright: ignore[reportArgumentType]
    with pytest.raises(ArgumentError, match="`tokens`: got words; allowed: given"):
        LanguageModel.train([["a"]] * 9, tokens="words")


def test_a_run_of_another_task_is_refused(trained: LanguageModel, tmp_path: Path) -> None:
    trained.save(tmp_path / "run")
    with pytest.raises(RunError, match="a run of `unpad train lm`, and this needs one of `unpad"):
        Classifier.load(tmp_path / "run")
    (tmp_path / "run" / "vocabulary.json").write_text("{}")
    with pytest.raises(RunError, match="the saved model is broken"):
        LanguageModel.load(tmp_path / "run")


def test_options_of_writing_are_checked_at_once(trained: LanguageModel) -> None:
    for options in ({"tokens": -1}, {"top_k": 0}, {"temperature": -0.5}):
        with pytest.raises(ArgumentError, match=next(iter(options))):
            trained.generate("w1", **options)
