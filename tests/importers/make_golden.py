"""Write tests/golden/importers: saved models of more kinds, with what TensorFlow computed.

Run with TensorFlow 2.15.1 (Keras 2.15): python tests/importers/make_golden.py FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

os.environ |= {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
B, T, D = 5, 7, 3
LENGTHS = np.array([7, 3, 0, 1, 5], np.int32)


def randomise(variables, session):
    chance = np.random.default_rng(5)
    for variable in variables:
        variable.load(chance.normal(0, 0.5, variable.shape).astype(variable.dtype.as_numpy_dtype),
                      session)  # fmt: skip


def flat(name, value):
    """Nested results by path; LSTMStateTuples by field."""
    if hasattr(value, "_fields"):
        return {
            k: v for f in value._fields for k, v in flat(f"{name}.{f}", getattr(value, f)).items()
        }
    if isinstance(value, (tuple, list)):
        return {k: v for n, part in enumerate(value) for k, v in flat(f"{name}.{n}", part).items()}
    return {name: value}


def save_v1(folder: Path, build, *, dtype=np.float32, **saver):
    """A model in a graph of its own, saved by a Saver."""
    folder.mkdir(parents=True)
    with tf.Graph().as_default(), v1.Session() as session:
        x = v1.placeholder(dtype, [None, T, D], "x")
        lengths = v1.placeholder(tf.int32, [None], "lengths")
        output, state = build(x, lengths)
        results = flat("output", output) | flat("state", state)
        variables = v1.global_variables()
        session.run(v1.global_variables_initializer())
        randomise(variables, session)
        given = np.random.default_rng(6).normal(size=(B, T, D)).astype(dtype)
        found = session.run(results, {x: given, lengths: LENGTHS})
        v1.train.Saver(**saver).save(session, str(folder / "model"), write_meta_graph=False,
                                    write_state=False)  # fmt: skip
        np.savez(folder / "io.npz", x=given, lengths=LENGTHS, **found)


def cells():
    rnn = v1.nn.rnn_cell
    dynamic, both = v1.nn.dynamic_rnn, v1.nn.bidirectional_dynamic_rnn

    def full(x, n):
        cell = rnn.LSTMCell(5, use_peepholes=True, num_proj=4, cell_clip=0.4, proj_clip=0.3,
                            forget_bias=0.5)  # fmt: skip
        return dynamic(cell, x, n, dtype=x.dtype, scope="enc")

    def directions(x, n):
        stack = lambda: rnn.MultiRNNCell([rnn.GRUCell(4), rnn.LSTMCell(3)])  # noqa: E731
        return both(stack(), stack(), x, n, dtype=x.dtype)

    def stacked(x, n):
        states = []
        for number in range(2):
            with v1.variable_scope(f"stack_bidirectional_rnn/cell_{number}"):
                outputs, state = both(
                    rnn.BasicLSTMCell(4), rnn.BasicLSTMCell(4), x, n, dtype=x.dtype
                )
            x = tf.concat(outputs, -1)
            states.append(state)
        return x, states

    def named(x, n):
        return dynamic(rnn.BasicRNNCell(5, name="mine", activation=tf.nn.relu), x, n, dtype=x.dtype)

    return {"full": full, "directions": directions, "stacked": stacked, "named": named}


def save_bundle(folder: Path):
    """Every dtype, and slices whose starts take more than a byte in the index."""
    folder.mkdir(parents=True)
    chance = np.random.default_rng(7)
    tensors = {
        "string": np.array([[b"", b"a\0b"], ["ä".encode(), b"x" * 300]], object),
        "bool": np.array([True, False, True]),
        "scalar": np.float32(3.5),
        "empty": np.zeros((0, 4), np.float64),
    }
    for kind in ("float16", "float32", "float64", "bfloat16"):
        tensors[kind] = tf.cast(chance.normal(size=(3, 4)), kind).numpy()
    for kind in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
        tensors[kind] = chance.integers(0, 100, (2, 3)).astype(kind)
    for kind in ("complex64", "complex128"):
        tensors[kind] = (chance.normal(size=4) + 1j * chance.normal(size=4)).astype(kind)
    whole = chance.normal(size=(9000, 3)).astype(np.float32)
    names, slices, values = list(tensors), [""] * len(tensors), list(tensors.values())
    for start, end in ((0, 100), (100, 8500), (8500, 9000)):
        names.append("whole")
        slices.append(f"9000 3 {start},{end - start}:-")
        values.append(whole[start:end])
    for start, end in ((0, 70), (70, 200)):
        names.append("columns")
        slices.append(f"2 200 -:{start},{end - start}")
        values.append(whole.reshape(-1)[:400].reshape(2, 200)[:, start:end])
    tf.raw_ops.SaveV2(prefix=str(folder / "model"), tensor_names=names, shape_and_slices=slices,
                      tensors=values)  # fmt: skip
    tensors["bfloat16"] = tensors["bfloat16"].astype(np.float32)
    tensors |= {"whole": whole, "columns": whole.reshape(-1)[:400].reshape(2, 200)}
    tensors["string"] = np.array([[t.hex() for t in row] for row in tensors["string"]])
    np.savez_compressed(folder / "io.npz", **tensors)


def keras_models():
    layers, models = tf.keras.layers, tf.keras
    inner = models.Sequential([layers.SimpleRNN(4, return_sequences=True, activation="relu")],
                              name="inner")  # fmt: skip
    cells = [layers.LSTMCell(4), layers.GRUCell(3, reset_after=False)]
    return {
        "simple": [layers.SimpleRNN(4, return_sequences=True, name="a"), layers.LSTM(3, name="b")],
        "before": [layers.GRU(4, reset_after=False, return_sequences=True, name="a")],
        "without_bias": [layers.LSTM(4, use_bias=False, return_sequences=True),
                         layers.GRU(3, use_bias=False, reset_after=False)],
        "sum": [layers.Bidirectional(layers.GRU(4, return_sequences=True), merge_mode="sum",
                                     name="both")],
        "backwards": [layers.LSTM(4, go_backwards=True, return_sequences=True, name="back")],
        "cells": [layers.RNN(cells, return_sequences=True, name="stack")],
        "nested": [inner, layers.LSTM(3, name="top")],
        "dense": [layers.TimeDistributed(layers.Dense(4, activation="relu"), name="each"),
                  layers.Dense(2, activation="softmax", name="top")],
        "hard": [layers.LSTM(4, recurrent_activation="hard_sigmoid", name="hard")],
    }  # fmt: skip


def save_keras(folder: Path, parts):
    folder.mkdir(parents=True)
    model = tf.keras.Sequential([tf.keras.layers.Input((None, D)), *parts])
    chance = np.random.default_rng(8)
    model.set_weights([chance.normal(0, 0.5, w.shape).astype(w.dtype) for w in model.get_weights()])
    x = chance.normal(size=(B, T, D)).astype(np.float32)
    np.savez(folder / "io.npz", x=x, output=model(x).numpy())
    model.save(folder / "model.h5")
    model.save(folder / "model.keras")
    if folder.name == "dense":
        model.save(folder / "saved", save_format="tf")
    model.save_weights(folder / "model.weights.h5")
    tf.train.Checkpoint(model=model).write(str(folder / "ckpt"))


def main(out: Path) -> None:
    for name, parts in keras_models().items():
        save_keras(out / "keras" / name, parts)
    save_bundle(out / "bundle")
    for name, build in cells().items():
        with v1.variable_scope("", reuse=v1.AUTO_REUSE):
            save_v1(out / "v1" / name, build, sharded=name == "named")
    save_v1(out / "v1" / "double", cells()["directions"], dtype=np.float64)
    versions = {"tensorflow": tf.__version__, "numpy": np.__version__}
    (out / "versions.json").write_text(json.dumps(versions) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
