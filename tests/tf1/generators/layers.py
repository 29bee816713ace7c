"""Cases of Keras 2's recurrent layers."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import tensorflow as tf

from generators.draw import Draw


def keras_cell_args(draw, kind):
    args = {"units": draw.number(1, 5)}
    args |= draw.some(activation=draw.of("relu", "sigmoid", "linear", "softsign", "elu", "selu"))
    args |= draw.some(use_bias=draw.yes())
    if "LSTM" in kind or "GRU" in kind:
        args |= draw.some(recurrent_activation=draw.of("hard_sigmoid", "sigmoid", "tanh"))
    if "LSTM" in kind:
        args |= draw.some(unit_forget_bias=draw.yes())
    if "GRU" in kind:
        args |= draw.some(reset_after=draw.yes(), implementation=draw.of(1, 2))
    return args


def keras_layer(draw, **fixed):
    kind = draw.of("SimpleRNN", "LSTM", "GRU")
    args = keras_cell_args(draw, kind) | draw.some(zero_output_for_mask=True) | fixed
    return [kind, args]


def draw_keras(draw):
    flags = {"return_sequences": draw.yes(0.7), "return_state": draw.yes(0.7)}
    shape = draw.of("layer", "layer", "bidirectional", "bidirectional", "rnn")
    ragged = draw.yes(0.25)
    calls = draw.of(1, 1, 1, 2, 3) if not ragged else 1
    call = {"initial_state": draw.of(None, "list of arrays"), "mask": None,
            "ragged_input": ragged, "calls": calls}  # fmt: skip
    more = dict(flags)
    if calls > 1:
        call["initial_state"] = None
        more["stateful"] = True
    if not ragged and draw.yes(0.2):
        more["time_major"] = True
    if not ragged and draw.yes(0.15):
        more["unroll"] = True
    if not ragged and draw.yes(0.6):
        call["mask"] = draw.of("trailing", "gaps", "leading", "nothing")
    if shape == "layer":
        kind, args = keras_layer(draw, **more)
        args |= draw.some(go_backwards=True)
    elif shape == "rnn":
        kind = "RNN"
        names = ["LSTMCell", "GRUCell", "SimpleRNNCell"]
        if addons() is not None:
            names += ["tfa.LayerNormLSTMCell", "tfa.LayerNormSimpleRNNCell", "tfa.PeepholeLSTMCell"]
        cells = []
        for _ in range(draw.of(1, 1, 2, 3)):
            name = draw.of(*names)
            args = keras_cell_args(draw, name)
            if name.startswith("tfa."):
                args = {"units": args["units"]}
            cells.append([name, args])
        args = {"cells": cells, **more, **draw.some(go_backwards=True, zero_output_for_mask=True)}
    else:
        kind = "Bidirectional"
        merge = draw.of("concat", "sum", "ave", "mul", None)
        inner = keras_layer(draw, **more)
        args = {"inner": inner, "merge_mode": merge}
        if draw.yes(0.3):
            back = keras_layer(draw, **more)
            back[1]["go_backwards"] = True
            back[1]["units"] = inner[1]["units"]
            args["backward"] = back
    for inner in (args, args.get("inner", [0, {}])[1], args.get("backward", [0, {}])[1]):
        differs(inner, call, "inner" in args)
    sizes = {"batch": draw.number(1, 5), "max_time": draw.number(1, 8), "input": draw.number(1, 4)}
    return {"family": "keras", "cell": {"class": kind, "args": args}, "call": call, "sizes": sizes}


def differs(args, call, both):
    """Take out what the porting page lists as another number on purpose."""
    backwards = both or args.get("go_backwards")
    zeros = both or args.get("zero_output_for_mask")
    if call["mask"] is not None and backwards and zeros:
        args.pop("unroll", None)
    if call["ragged_input"] and not args.get("return_sequences"):
        args.pop("zero_output_for_mask", None)


@functools.cache
def addons():
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import tensorflow_addons
    except ImportError:
        return None
    return tensorflow_addons


def keras_make(name, args):
    args = dict(args)
    layers = tf.keras.layers
    if name == "Bidirectional":
        inner = keras_make(*args.pop("inner"))
        back = keras_make(*args.pop("backward")) if "backward" in args else None
        return layers.Bidirectional(inner, backward_layer=back, **args)
    if name == "RNN":
        cells = [keras_make(*each) for each in args.pop("cells")]
        return layers.RNN(cells if len(cells) > 1 else cells[0], **args)
    if name.startswith("tfa."):
        return getattr(addons().rnn, name.removeprefix("tfa."))(**args)
    return getattr(layers, name)(**args)


def keras_mask(draw, kind, b, t):
    if kind is None:
        return None
    counts = draw.rng.integers(0, t + 1, b)
    if kind == "trailing":
        return np.arange(t)[None] < counts[:, None]
    if kind == "leading":
        return np.arange(t)[None] >= counts[:, None]
    if kind == "nothing":
        return np.zeros((b, t), bool)
    return draw.rng.random((b, t)) < 0.5


class LayerCase:
    """One case in one dtype: a layer, what it is given, what it gives; the same numbers in both."""

    def __init__(self, case, seed, dtype):
        tf.keras.backend.clear_session()
        tf.keras.backend.set_floatx(dtype)
        self.case, self.call, self.draw, self.dtype = case, case["call"], Draw(seed), dtype
        self.sizes = [case["sizes"][name] for name in ("batch", "max_time", "input")]
        args = case["cell"]["args"]
        self.inner = args["inner"][1] if "inner" in args else args
        self.layer = keras_make(case["cell"]["class"], args)
        self.arrays, self.leaves, self.results = {}, {}, {}

    def shape(self):
        b, t, d = self.sizes
        return (t, b, d) if self.inner.get("time_major") else (b, t, d)

    def leaf(self, key, *shape):
        variable = tf.Variable(self.draw.array(*shape).astype(self.dtype))
        self.arrays[key], self.leaves[key] = variable.numpy(), variable
        return variable

    def mask(self):
        b, t, _ = self.sizes
        mask = keras_mask(self.draw, self.call["mask"], b, t)
        if mask is None:
            return {}
        major = self.inner.get("time_major")
        self.arrays["mask"] = np.ascontiguousarray(mask.T) if major else mask
        return {"mask": tf.constant(self.arrays["mask"])}

    def fill(self):
        """Make the weights and give them random numbers."""
        self.layer(np.zeros(self.shape(), self.dtype))
        weights = [v for v in self.layer.weights if v.trainable]
        names = [v.name.removesuffix(":0") for v in weights]
        if len(set(names)) < len(names):
            raise ValueError("two weights of one name")
        for v, name in zip(weights, names, strict=True):
            v.assign(self.draw.array(*v.shape.as_list(), scale=0.6).astype(self.dtype))
            self.arrays[f"weights/{name}"], self.leaves[f"weights/{name}"] = v.numpy(), v
        if self.inner.get("stateful"):
            self.layer.reset_states()
        self.case["weight_order"] = names

    def states(self):
        if self.call["initial_state"] is None:
            return None
        layers = [getattr(self.layer, "forward_layer", self.layer)]
        layers += [self.layer.backward_layer] if hasattr(self.layer, "backward_layer") else []
        sizes = [size for each in layers for size in tf.nest.flatten(each.cell.state_size)]
        return [
            self.leaf(f"initial_state/{n}", self.sizes[0], size) for n, size in enumerate(sizes)
        ]

    def inputs(self, here):
        b, t, d = self.sizes
        if not self.call["ragged_input"]:
            return tf.convert_to_tensor(self.leaf(f"inputs{here}", *self.shape()))
        rows = self.draw.rng.integers(0, t + 1, b)
        rows[0] = t
        self.arrays[f"inputs{here}/row_lengths"] = rows.astype(np.int64)
        return tf.RaggedTensor.from_row_lengths(
            self.leaf(f"inputs{here}/values", int(rows.sum()), d), rows
        )

    def keep(self, prefix, found):
        """Keep what a call gave; return its part of the loss."""
        found = list(found) if isinstance(found, (list, tuple)) else [found]
        count = 2 if self.case["cell"]["args"].get("merge_mode", "") is None else 1
        keys = ["outputs"] if count == 1 else ["outputs/0", "outputs/1"]
        outputs, final = found[:count], tf.nest.flatten(found[count:])
        keys += [f"final_state/{n}" for n in range(len(final))]
        loss = 0.0
        for key, value in zip(keys, outputs + final, strict=True):
            cotangent = f"cotangent/{prefix}{key}"
            if isinstance(value, tf.RaggedTensor):
                self.results[f"{prefix}{key}/row_lengths"] = value.row_lengths().numpy()
                key, value = f"{key}/values", value.values
            self.results[prefix + key] = value.numpy()
            self.arrays[cotangent] = self.draw.array(*value.shape).astype(self.dtype)
            loss = loss + tf.reduce_sum(value * self.arrays[cotangent])
        return loss

    def run(self):
        mask, loss = self.mask(), 0.0
        self.fill()
        with tf.GradientTape() as tape:
            states = self.states()
            for number in range(self.call["calls"]):
                several = self.call["calls"] > 1
                x = self.inputs(f"/{number}" if several else "")
                given = [tf.convert_to_tensor(s) for s in states] if states else None
                found = self.layer(x, initial_state=given, **mask)
                loss = loss + self.keep(f"{number}/" if several else "", found)
        gradients = tape.gradient(loss, list(self.leaves.values()))
        for name, gradient in zip(self.leaves, gradients, strict=True):
            zero = tf.zeros(self.leaves[name].shape, self.dtype)
            gradient = zero if gradient is None else tf.convert_to_tensor(gradient)
            self.arrays[f"grad/{name}"] = gradient.numpy()
        return {**self.arrays, **self.results, "loss": loss.numpy()}


def keras_numbers(case, seed, dtype):
    return LayerCase(case, seed, dtype).run()
