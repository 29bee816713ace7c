"""Random choices, arrays, and cells of TensorFlow 1 as the manifest describes them."""

from __future__ import annotations

import numpy as np

ACTIVATIONS = [None, "relu", "sigmoid", "tanh", "elu", "softsign", "softplus", "linear", "selu"]


class Draw:
    """Random choices, and arrays."""

    def __init__(self, seed):
        self.rng = np.random.default_rng(seed)

    def of(self, *choices):
        return choices[self.rng.integers(len(choices))]

    def number(self, low, high):
        return int(self.rng.integers(low, high + 1))

    def yes(self, share=0.5):
        return bool(self.rng.random() < share)

    def array(self, *shape, scale=1.0):
        return self.rng.normal(0.0, scale, shape)

    def some(self, **values):
        """Half of these options, but for those that are None."""
        return {k: v for k, v in values.items() if v is not None and self.yes()}

    # Cells of TensorFlow 1 ------------------------------------------------------------------------

    def cell(self, width, depth=0, single=False):
        """A cell and the width of its output; ``single``: its state is one tensor."""
        kinds = ["basic", "lstm", "lstm", "basic_lstm", "gru"]
        kind = self.of(*kinds, *([] if depth else ["multi", "multi", "residual"]))
        units, activation = self.number(1, 6), self.of(*ACTIVATIONS)
        if kind == "multi":
            return self.multi(width, depth, single)
        if kind == "residual":
            inner, given = self.sized(width, single, depth + 1)
            assert given == width
            function = self.of(None, "0.5*input + output")
            args = {} if function is None else {"residual_fn": function}
            return {"class": "ResidualWrapper", "cell": inner, "args": args}, width
        return self.plain(kind, units, activation, single)

    def plain(self, kind, units, activation, single):
        args = {"num_units": units} | self.some(activation=activation)
        if self.yes(0.15):
            args["name"] = "own"
        if kind == "basic":
            return {"class": "BasicRNNCell", "args": args}, units
        if kind == "gru":
            return {"class": "GRUCell", "args": args}, units
        if single:
            args["state_is_tuple"] = False
        args |= self.some(forget_bias=self.of(0.0, 0.5, 1.0, 2.5, -1.0))
        if kind == "basic_lstm":
            return {"class": "BasicLSTMCell", "args": args}, units
        proj = self.of(None, self.number(1, 6))
        args |= self.some(use_peepholes=True, cell_clip=self.of(0.3, 0.5, 3.0))
        if proj is not None:
            args["num_proj"] = proj
        args |= self.some(proj_clip=self.of(0.1, 0.25, 1.0))
        return {"class": "LSTMCell", "args": args}, proj or units

    def sized(self, width, single, depth):
        """A cell whose output has this width, so that a residual can be added."""
        kind = self.of("basic", "lstm", "basic_lstm", "gru", *(["multi"] if depth < 2 else []))
        if kind == "multi":
            below, _ = self.cell(width, depth, single)
            above, _ = self.sized(width, single, 9)
            tuple_ = {"state_is_tuple": False} if single else {}
            return {"class": "MultiRNNCell", "cells": [below, above], "args": tuple_}, width
        spec, found = self.plain(kind, width, self.of(*ACTIVATIONS), single)
        if found != width:
            spec["args"]["num_proj"] = width
        return spec, width

    def multi(self, width, depth, single):
        single = single or self.yes(0.3)
        cells = []
        for _ in range(self.number(1, 4)):
            if cells and self.yes(0.3):
                inner, width = self.sized(width, single, 9)
                cells.append({"class": "ResidualWrapper", "cell": inner, "args": {}})
            else:
                inner, width = self.cell(width, 2, single)
                cells.append(inner)
        args = {"state_is_tuple": False} if single else {}
        return {"class": "MultiRNNCell", "cells": cells, "args": args}, width

    def lengths(self, batch, steps, wild):
        if self.yes(0.2):
            return None
        low, high = (-2, steps + 3) if wild and self.yes(0.25) else (0, steps)
        return [self.number(low, high) for _ in range(batch)]
