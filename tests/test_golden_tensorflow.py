"""Cells and functions against numbers that TensorFlow 1's own cells and functions gave.

The files in ``golden`` hold inputs, weights, results and gradients of TensorFlow 2.15.1;
``cases.json`` says what each call was.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from unpad.cells import GRUCell, LSTMCell, Residual, RNNCell, Stack
from unpad.functional import bidirectional_dynamic_rnn, dynamic_rnn, static_rnn

FOLDER = Path(__file__).parent / "golden"
CASES = {case["id"]: case for case in json.loads((FOLDER / "cases.json").read_text())["cases"]}
# One of each kind; `tests/tf1` runs every case through the cells of TensorFlow's own names.
FORWARD = [
    "dyn_basic_relu_len_init",
    "dyn_edge_all_zero_lengths",
    "dyn_edge_max_below_T",
    "dyn_edge_zero_batch",
    "dyn_edge_zero_time",
    "dyn_f64_gru_len_noinit_tm",
    "dyn_f64_lstm_peep_len_init",
    "dyn_lstm_all_len_init_tm",
    "dyn_lstm_cellclip_len_init",
    "dyn_lstm_fb0_len_noinit_tm",
    "dyn_lstm_proj_wider_nolen_init_tm",
    "dyn_multi_gru_peep_proj_basic_len_init_tm",
    "dyn_multi_residual_lstm_len_init",
]
BOTH = [
    "bid_gru_nolen_init_tm",
    "bid_lstm_gru_len_init",
    "bid_multi_len_init",
]


class Port:
    """One TensorFlow cell as ours; its variables are leaves, so that their gradients compare."""

    def __init__(self, described, input_size, variables, path):
        args = described.get("args", {})
        self.path, self.kind = path, described["class"]
        self.weights = {}
        if self.kind == "MultiRNNCell":
            self.parts = []
            for number, inner in enumerate(described["cells"]):
                self.parts.append(Port(inner, input_size, variables, [*path, str(number)]))
                input_size = self.parts[-1].cell.output_size
            self.cell = Stack([part.cell for part in self.parts])
        elif self.kind == "ResidualWrapper":
            self.parts = [Port(described["cell"], input_size, variables, path)]
            self.cell = Residual(self.parts[0].cell)
        else:
            self.parts = []
            make = {"GRUCell": self._gru, "BasicRNNCell": self._rnn}.get(self.kind, self._lstm)
            make(input_size, args, variables)

    def _rnn(self, size, args, variables):
        kernel, bias = variables.pop(0), variables.pop(0)
        self.cell = RNNCell(size, args["num_units"], nonlinearity=args.get("activation", "tanh"))
        self._set(weight_ih=kernel[:size].T, weight_hh=kernel[size:].T, bias_ih=bias)

    def _gru(self, size, args, variables):
        gates, gate_bias, candidate, candidate_bias = (variables.pop(0) for _ in range(4))
        self.cell = GRUCell(size, args["num_units"], reset_after=False)
        kernel = torch.cat([gates, candidate], 1).T
        bias = torch.cat([gate_bias, candidate_bias])
        self._set(weight_ih=kernel[:, :size], weight_hh=kernel[:, size:], bias_ih=bias)

    def _lstm(self, size, args, variables):
        kernel, bias = variables.pop(0), variables.pop(0)
        peepholes, proj_size = args.get("use_peepholes", False), args.get("num_proj", 0)
        self.cell = LSTMCell(
            size,
            args["num_units"],
            peepholes=peepholes,
            proj_size=proj_size,
            cell_clip=args.get("cell_clip"),
            proj_clip=args.get("proj_clip"),
        )

        def ours(gates):  # theirs stand as i, j, f, o along the last axis, ours as i, f, j, o
            i, j, f, o = gates.chunk(4, dim=-1)
            return torch.cat([i, f, j, o], dim=-1)

        i, j, f, o = bias.chunk(4)
        bias = torch.cat([i, j, f + args.get("forget_bias", 1.0), o])
        kernel = ours(kernel).T
        self._set(weight_ih=kernel[:, :size], weight_hh=kernel[:, size:], bias_ih=ours(bias))
        if peepholes:
            w_f, w_i, w_o = (variables.pop(0) for _ in range(3))
            self._set(weight_cf=w_f, weight_ci=w_i, weight_co=w_o)
        if proj_size:
            self._set(weight_hr=variables.pop(0).T)

    def _set(self, **tensors):
        self.weights.update(tensors)
        self.weights.setdefault("bias_hh", torch.zeros_like(self.weights["bias_ih"]))

    def named_weights(self, prefix=""):
        found = {f"{prefix}{name}": value for name, value in self.weights.items()}
        for number, part in enumerate(self.parts):
            inner = "cell." if self.kind == "ResidualWrapper" else f"cells.{number}."
            found.update(part.named_weights(prefix + inner))
        return found

    def state(self, get):
        """The state in our form, each leaf got by its TensorFlow path."""
        if self.kind == "ResidualWrapper":
            return self.parts[0].state(get)
        if self.parts:
            return tuple(part.state(get) for part in self.parts)
        if isinstance(self.cell, LSTMCell):
            return get([*self.path, "h"]), get([*self.path, "c"])
        return get(self.path)


class Golden:
    """One case: its arrays in float64, those that have a gradient as leaves."""

    def __init__(self, name):
        self.case = CASES[name]
        with np.load(FOLDER / self.case["file"]) as arrays:
            self.arrays = {key: torch.from_numpy(arrays[key]) for key in arrays.files}
        for key, value in self.arrays.items():
            if value.is_floating_point():
                leaf = key.startswith(("weights/", "inputs", "initial_state"))
                self.arrays[key] = value.double().requires_grad_(leaf)
        self.time_major = self.case["call"]["time_major"]
        self.lengths = self.arrays.get("sequence_length")
        self.inputs = self.arrays["inputs"]

    def port(self, key, scope=""):
        names = [n for n in self.case["weight_order"] if f"/{scope}/" in n or not scope]
        variables = [self.arrays[f"weights/{name}"] for name in names]
        port = Port(self.case[key], self.inputs.shape[-1], variables, [scope] if scope else [])
        assert not variables, "every variable of the case must have found its place"
        port.cell.double()
        return port

    def initial(self, port):
        if self.case["call"]["initial_state"] is None:
            return None
        return port.state(
            lambda path: self.arrays["/".join(["initial_state", ".".join(path)]).strip("/")]
        )

    def check(self, found):
        """Compare results by key, then every gradient of TensorFlow's loss."""
        assert found.keys() == {k for k in self.arrays if k.startswith(("outputs", "final_state"))}
        for key, value in found.items():
            self.close(key, value)
        loss = sum((self.arrays[f"cotangent/{key}"] * value).sum() for key, value in found.items())
        wanted = [key for key in self.arrays if key.startswith("grad/")]
        leaves = [self.arrays[key.removeprefix("grad/")] for key in wanted]
        gradients = torch.autograd.grad(loss, leaves, materialize_grads=True)
        for key, gradient in zip(wanted, gradients, strict=True):
            self.close(key, gradient)

    def close(self, key, value):
        near = self.case.get("max_abs_float32_minus_float64", {}).get(key.split("/")[0], 0.0)
        exact = self.case["dtype"] == "float64"
        absolute = 1e-12 if exact else max(1e-5, 4 * near)
        torch.testing.assert_close(
            value, self.arrays[key], atol=absolute, rtol=1e-12 if exact else 1e-5, msg=key
        )


class Call(nn.Module):
    """A function of cells as a module, so that weights may be put in its place for one call."""

    def __init__(self, function, *cells):
        super().__init__()
        self.function, self.cells = function, nn.ModuleList(cells)

    def forward(self, *args, **options):
        return self.function(*self.cells, *args, **options)


def call(function, ports, *args, **options):
    weights = {}
    for number, port in enumerate(ports):
        weights.update(port.named_weights(f"cells.{number}."))
    module = Call(function, *(port.cell for port in ports))
    assert weights.keys() == dict(module.named_parameters()).keys()
    return torch.func.functional_call(module, weights, args, options)


def states(port, final, prefix="final_state"):
    """The leaves of a state by their TensorFlow keys."""
    paths = []
    port.state(paths.append)
    flat = torch.utils._pytree.tree_leaves(final)
    return {"/".join([prefix, ".".join(p)]).strip("/"): v for p, v in zip(paths, flat, strict=True)}


@pytest.mark.parametrize("name", FORWARD)
def test_dynamic_rnn_gives_tensorflows_numbers(name):
    golden = Golden(name)
    port = golden.port("cell")
    outputs, final = call(
        dynamic_rnn,
        [port],
        golden.inputs,
        golden.lengths,
        golden.initial(port),
        time_major=golden.time_major,
    )
    golden.check({"outputs": outputs, **states(port, final)})


@pytest.mark.parametrize("name", [name for name in FORWARD if "zero_time" not in name])
def test_static_rnn_gives_tensorflows_numbers(name):
    golden = Golden(name)
    port = golden.port("cell")
    axis = 0 if golden.time_major else 1
    steps = list(golden.inputs.unbind(axis))
    outputs, final = call(
        static_rnn, [port], steps, golden.initial(port), sequence_length=golden.lengths
    )
    golden.check({"outputs": torch.stack(outputs, axis), **states(port, final)})


@pytest.mark.parametrize("name", BOTH)
def test_bidirectional_dynamic_rnn_gives_tensorflows_numbers(name):
    golden = Golden(name)
    fw, bw = golden.port("cell_fw", "fw"), golden.port("cell_bw", "bw")
    outputs, finals = call(
        bidirectional_dynamic_rnn,
        [fw, bw],
        golden.inputs,
        golden.lengths,
        golden.initial(fw),
        golden.initial(bw),
        time_major=golden.time_major,
    )
    found = {"outputs/fw": outputs[0], "outputs/bw": outputs[1]}
    golden.check({**found, **states(fw, finals[0]), **states(bw, finals[1])})
