"""TensorFlow 1's dynamic_rnn and static_rnn, and Keras layers, over tanh layers: one training step.

The job: `way` (dynamic_rnn, static_rnn, keras_masked, keras_ragged), `layers`, `threads`, `ragged`
(whether to pass the lengths). The arrays: x [S, B, I] and pull [S, B, H] padded with zeros, lengths
[B], parameters by torch's names. The results: the gradients of x and of every parameter.

TensorFlow as it is fastest at this (AMD EPYC, 2 cores, equal lengths; dynamic_rnn / static_rnn): as
many threads between operations as within, 21 / 17 ms, with one between them 39 / 33; without
oneDNN, which made no difference or a loss. XLA makes it slower: dynamic_rnn under jit_compile 42 ms
beside 29 without, Keras 60 beside 46; and it has no ragged tensors.
"""

from __future__ import annotations

import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf
from protocol import Arrays, serve

tf1 = tf.compat.v1


def build(job: dict[str, Any], arrays: Arrays) -> tuple[Callable[[], Any], Callable[[Any], Arrays]]:
    tf.config.threading.set_intra_op_parallelism_threads(job["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(job["threads"])
    ways = {"dynamic_rnn": _graph, "static_rnn": _graph, "keras_masked": _masked}
    run = ways.get(job["way"], _ragged)(job, arrays)
    return run, lambda gradients: _named(job, arrays, gradients)


def _kernel(arrays: Arrays, layer: int) -> list[np.ndarray]:
    """What TensorFlow calls kernel [I + H, H] and bias [H]."""
    parts = [arrays[f"weight_{name}_l{layer}"].T for name in ("ih", "hh")]
    return [np.concatenate(parts), arrays[f"bias_ih_l{layer}"] + arrays[f"bias_hh_l{layer}"]]


def _graph(job: dict[str, Any], arrays: Arrays) -> Callable[[], Any]:
    width = arrays["weight_hh_l0"].shape[0]
    with tf.Graph().as_default():
        x = tf1.Variable(arrays["x"], trainable=False)
        pull = tf1.Variable(arrays["pull"], trainable=False)
        lengths = tf.constant(arrays["lengths"], tf.int32) if job["ragged"] else None
        cells = [tf1.nn.rnn_cell.BasicRNNCell(width) for _ in range(job["layers"])]
        cell = tf1.nn.rnn_cell.MultiRNNCell(cells)
        if job["way"] == "dynamic_rnn":
            outputs, _ = tf1.nn.dynamic_rnn(
                cell, x, lengths, dtype=tf.float32, time_major=True, swap_memory=False
            )
        else:
            steps = tf.unstack(x)
            outputs, _ = tf1.nn.static_rnn(cell, steps, dtype=tf.float32, sequence_length=lengths)
            outputs = tf.stack(outputs)
        weights = tf1.trainable_variables()
        gradients = tf.gradients(outputs, [x, *weights], grad_ys=pull)
        threads = job["threads"]
        session = tf1.Session(
            config=tf1.ConfigProto(
                intra_op_parallelism_threads=threads, inter_op_parallelism_threads=threads
            )
        )
        session.run(tf1.global_variables_initializer())
        values = [value for layer in range(job["layers"]) for value in _kernel(arrays, layer)]
        for variable, value in zip(weights, values, strict=True):
            variable.load(value, session)
        # The gradients themselves are fetched: work whose result is only grouped is dropped.
        return session.make_callable(gradients)


def _layers(job: dict[str, Any], arrays: Arrays, shape: tuple[int | None, ...]) -> Any:
    width = arrays["weight_hh_l0"].shape[0]
    model = tf.keras.Sequential([
        tf.keras.layers.SimpleRNN(width, return_sequences=True) for _ in range(job["layers"])
    ])  # fmt: skip
    model.build(shape)
    features = arrays["x"].shape[2]
    for number, layer in enumerate(model.layers):
        kernel, bias = _kernel(arrays, number)
        split = features if number == 0 else width
        layer.set_weights([kernel[:split], kernel[split:], bias])
    return model


def _trained(model: Any, x: Any, loss: Callable[[], Any]) -> Callable[[], Any]:
    """A compiled training step; gradients as those of the graphs: x, then kernel and bias."""

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            value = loss()
        return tape.gradient(value, [x, *model.trainable_variables])

    def run() -> list[Any]:
        first, *rest = step()
        triples = [rest[i : i + 3] for i in range(0, len(rest), 3)]
        return [first, *(part for k, r, b in triples for part in (tf.concat([k, r], 0), b))]

    return run


def _masked(job: dict[str, Any], arrays: Arrays) -> Callable[[], Any]:
    x = tf.Variable(np.swapaxes(arrays["x"], 0, 1))
    pull = tf.constant(np.swapaxes(arrays["pull"], 0, 1))
    mask = tf.sequence_mask(arrays["lengths"], x.shape[1]) if job["ragged"] else None
    model = _layers(job, arrays, x.shape)

    def loss() -> Any:
        y = x
        for layer in model.layers:
            y = layer(y, mask=mask)
        return tf.reduce_sum(y * pull)

    return _trained(model, x, loss)


def _ragged(job: dict[str, Any], arrays: Arrays) -> Callable[[], Any]:
    valid = _valid(arrays)
    x = tf.Variable(np.swapaxes(arrays["x"], 0, 1)[valid])
    pull = tf.constant(np.swapaxes(arrays["pull"], 0, 1)[valid])
    lengths = tf.constant(arrays["lengths"], tf.int64)
    model = _layers(job, arrays, (None, None, x.shape[1]))

    def loss() -> Any:
        y = tf.RaggedTensor.from_row_lengths(tf.identity(x), lengths)
        for layer in model.layers:
            y = layer(y)
        return tf.reduce_sum(y.flat_values * pull)

    return _trained(model, x, loss)


def _valid(arrays: Arrays) -> np.ndarray:
    return np.arange(len(arrays["x"])) < arrays["lengths"][:, None]


def _named(job: dict[str, Any], arrays: Arrays, gradients: list[Any]) -> Arrays:
    x, *rest = (np.asarray(tf.convert_to_tensor(gradient)) for gradient in gradients)
    if job["way"] == "keras_ragged":
        padded = np.zeros_like(np.swapaxes(arrays["x"], 0, 1))
        padded[_valid(arrays)] = x
        x = padded
    named = {"x": np.swapaxes(x, 0, 1) if job["way"].startswith("keras") else x}
    for layer in range(job["layers"]):
        kernel, bias = rest[2 * layer : 2 * layer + 2]
        split = arrays[f"weight_ih_l{layer}"].shape[1]
        named[f"weight_ih_l{layer}"] = kernel[:split].T
        named[f"weight_hh_l{layer}"] = kernel[split:].T
        named[f"bias_ih_l{layer}"] = named[f"bias_hh_l{layer}"] = bias
    return named


if __name__ == "__main__":
    serve(f"tensorflow {tf.__version__}", build)
