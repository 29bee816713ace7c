"""Cases of TensorFlow 1's recurrent functions, each in a graph of its own."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from generators.draw import Draw

v1 = tf.compat.v1
rnn_cell = v1.nn.rnn_cell
FUNCTIONS = {None: None, "0.5*input + output": lambda x, output: 0.5 * x + output}


class NestedCell(rnn_cell.RNNCell):
    """The manifest's cell of a nest of inputs, a nest of outputs, a nest of states."""

    def __init__(self, n):
        super().__init__()
        self.n = n

    state_size = property(lambda self: (self.n, (1,)))
    output_size = property(lambda self: (self.n, 1))

    def __call__(self, inputs, state, scope=None):
        (a, b), (s, (k,)) = inputs, state
        with v1.variable_scope(scope or "nested_cell", reuse=v1.AUTO_REUSE):
            wa = v1.get_variable("wa", [a.shape[-1], self.n], a.dtype)
            wb = v1.get_variable("wb", [b.shape[-1], self.n], a.dtype)
            u = v1.get_variable("u", [self.n, self.n], a.dtype)
        s, k = tf.tanh(a @ wa + b @ wb + s @ u), k + 1
        return (s, tf.reduce_sum(s * k, 1, keepdims=True)), (s, (k,))


def make(spec):
    args = dict(spec.get("args", {}))
    if spec["class"] == "NestedCell":
        return NestedCell(**args)
    if spec["class"] == "MultiRNNCell":
        return rnn_cell.MultiRNNCell([make(inner) for inner in spec["cells"]], **args)
    if spec["class"] == "ResidualWrapper":
        function = FUNCTIONS[args.get("residual_fn")]
        return rnn_cell.ResidualWrapper(make(spec["cell"]), residual_fn=function)
    return getattr(rnn_cell, spec["class"])(**args)


def flat(prefix, value, path=""):
    """A nest's leaves by the manifest's keys."""
    if isinstance(value, rnn_cell.LSTMStateTuple):
        parts = value._asdict().items()
    elif isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, (list, tuple)):
        parts = enumerate(value)
    else:
        return {f"{prefix}/{path}".rstrip("/"): value}
    found = {}
    for name, inner in parts:
        found.update(flat(prefix, inner, f"{path}.{name}".strip(".")))
    return found


class Graph:
    """One case in a graph of its own, in one dtype; the same numbers whatever the dtype."""

    def __init__(self, case, seed, dtype):
        self.case, self.draw, self.dtype = case, Draw(seed), dtype
        self.given, self.leaves, self.extra = {}, {}, {}

    def leaf(self, key, *shape):
        value = self.draw.array(*shape).astype(self.dtype)
        self.given[key] = value
        self.leaves[key] = v1.placeholder_with_default(tf.constant(value), value.shape)
        return self.leaves[key]

    def state(self, cell, prefix, path, batch):
        if self.case["call"].get("initial_state") is None:
            return None
        like = flat(prefix, cell.state_size, path)
        leaves = [self.leaf(key, batch, size) for key, size in like.items()]
        return tf.nest.pack_sequence_as(cell.state_size, leaves)

    def run(self, build):
        with tf.Graph().as_default(), v1.Session() as session:
            v1.disable_control_flow_v2()
            v1.disable_resource_variables()
            lengths = self.case["call"].get("sequence_length")
            if lengths is not None:
                kind = self.case["call"]["sequence_length_dtype"]
                self.given["sequence_length"] = np.array(lengths, kind)
                lengths = tf.constant(self.given["sequence_length"])
            results, extra = build(self, lengths)
            for v in v1.global_variables():
                value = self.draw.array(*v.shape.as_list(), scale=0.6).astype(self.dtype)
                self.given[f"weights/{v.op.name}"] = value
                self.leaves[f"weights/{v.op.name}"] = v
            session.run(v1.global_variables_initializer())
            for v in v1.global_variables():
                v.load(self.given[f"weights/{v.op.name}"], session)
            found = session.run({**results, **extra})
            loss, cotangents = 0.0, {}
            for key in results:
                value = self.draw.array(*found[key].shape).astype(self.dtype)
                cotangents[f"cotangent/{key}"] = value
                loss = loss + tf.reduce_sum(results[key] * tf.constant(value))
            names = list(self.leaves)
            gradients = tf.gradients(loss, list(self.leaves.values()))
            wanted = {
                f"grad/{name}": tf.convert_to_tensor(g)
                for name, g in zip(names, gradients, strict=True)
                if g is not None and not (name == "inputs" and 0 in self.given[name].shape)
            }
            numbers = session.run({"loss": loss, **wanted})
            self.weights = [v.op.name for v in v1.global_variables()]
        return {**self.given, **found, **cotangents, **numbers}


def one_way(graph, lengths):
    case, sizes = graph.case, graph.case["sizes"]
    cell = make(case["cell"])
    b, t, d = sizes["batch"], sizes["max_time"], sizes["input"]
    static = case["family"] == "static_rnn"
    major = static or case["call"]["time_major"]
    shape = (t, b) if major else (b, t)
    if isinstance(d, list):
        x = tuple(graph.leaf(f"inputs/{n}", *shape, each) for n, each in enumerate(d))
    else:
        x = graph.leaf("inputs", *shape, d)
    state = graph.state(cell, "initial_state", "", b)
    more = {"dtype": tf.as_dtype(graph.dtype), "sequence_length": lengths}
    if static:
        steps = (
            list(zip(*map(tf.unstack, x), strict=True)) if isinstance(d, list) else tf.unstack(x)
        )
        outputs, final = v1.nn.static_rnn(cell, steps, state, scope=case["call"]["scope"], **more)
        outputs = tf.nest.map_structure(lambda *leaves: tf.stack(leaves), *outputs)
    else:
        outputs, final = v1.nn.dynamic_rnn(
            cell, x, initial_state=state, time_major=major, scope=case["call"]["scope"], **more
        )
    return {**flat("outputs", outputs), **flat("final_state", final)}, {}


def two_ways(graph, lengths):
    case, sizes = graph.case, graph.case["sizes"]
    fw, bw = make(case["cell_fw"]), make(case["cell_bw"])
    b, t, d = sizes["batch"], sizes["max_time"], sizes["input"]
    static = case["family"] == "static_bidirectional_rnn"
    major = static or case["call"]["time_major"]
    x = graph.leaf("inputs", *((t, b) if major else (b, t)), d)
    starts = [graph.state(c, "initial_state", p, b) for c, p in ((fw, "fw"), (bw, "bw"))]
    more = {"dtype": tf.as_dtype(graph.dtype), "sequence_length": lengths}
    if static:
        outputs, f, g = v1.nn.static_bidirectional_rnn(fw, bw, tf.unstack(x), *starts, **more)
        return {"outputs": tf.stack(outputs), **flat("final_state", {"fw": f, "bw": g})}, {}
    outputs, finals = v1.nn.bidirectional_dynamic_rnn(
        fw, bw, x, initial_state_fw=starts[0], initial_state_bw=starts[1], time_major=major, **more
    )
    sides = [dict(zip(("fw", "bw"), pair, strict=True)) for pair in (outputs, finals)]
    return {**flat("outputs", sides[0]), **flat("final_state", sides[1])}, {}


def stacked(graph, lengths):
    case, sizes = graph.case, graph.case["sizes"]
    b, t, d = sizes["batch"], sizes["max_time"], sizes["input"]
    major = case["call"]["time_major"]
    x = graph.leaf("inputs", *((t, b) if major else (b, t)), d)
    finals = {"fw": [], "bw": []}
    for number, (fw, bw) in enumerate(zip(case["cell_fw"], case["cell_bw"], strict=True)):
        with v1.variable_scope(f"stack_bidirectional_rnn/cell_{number}"):
            outputs, states = v1.nn.bidirectional_dynamic_rnn(
                make(fw), make(bw), x, lengths, dtype=tf.as_dtype(graph.dtype), time_major=major
            )
        x = tf.concat(outputs, -1)
        for side, state in zip(finals, states, strict=True):
            finals[side].append(state)
    return {"outputs": x, **flat("final_state", finals)}, {}


def raw(graph, lengths):
    case, sizes = graph.case, graph.case["sizes"]
    cell = make(case["cell"])
    b, t, d = sizes["batch"], sizes["max_time"], sizes["input"]
    x = graph.leaf("inputs", b, t, d)
    start = graph.state(cell, "initial_state", "", b)

    def copying(time, output, state, loop_state):
        finished = time >= lengths
        x_t = tf.cond(
            tf.reduce_all(finished), lambda: tf.zeros([b, d], x.dtype), lambda: x[:, time]
        )
        return finished, x_t, start if output is None else state, output, None

    def feeding_back(time, output, state, loop_state):
        finished = time >= lengths
        if output is None:
            return finished, x[:, 0], start, tf.zeros([d], x.dtype), tf.constant(0)
        y = output @ projection
        x_t = tf.tanh(y) + x[:, tf.minimum(time, t - 1)]
        return finished, x_t, state, y, loop_state + 1

    copies = case["loop_fn"].startswith("The")
    if not copies:
        with v1.variable_scope("decoder"):
            projection = v1.get_variable("proj", [cell.output_size, d], x.dtype)
    emitted, final, count = v1.nn.raw_rnn(cell, copying if copies else feeding_back)
    extra = {} if copies else {"loop_state": count}
    return {"outputs": emitted.stack(), **flat("final_state", final)}, extra


BUILDERS = {
    "dynamic_rnn": one_way, "static_rnn": one_way, "bidirectional_dynamic_rnn": two_ways,
    "static_bidirectional_rnn": two_ways, "bidirectional_stack": stacked, "raw_rnn": raw,
}  # fmt: skip


def draw_v1(family, draw):
    width, nested = draw.number(1, 5), family in ("dynamic_rnn", "static_rnn") and draw.yes(0.1)
    least = 1 if family != "dynamic_rnn" else 0
    batch, steps = draw.of(0, *[draw.number(1, 6)] * 9), draw.of(least, *[draw.number(1, 9)] * 9)
    if family in ("raw_rnn", "bidirectional_stack"):
        batch = max(batch, 1)
    wild = family in ("dynamic_rnn", "static_rnn")
    lengths = draw.lengths(batch, steps, wild)
    if family == "raw_rnn" and lengths is None:
        lengths = [draw.number(0, steps) for _ in range(batch)]
    call = {
        "sequence_length": lengths,
        "sequence_length_dtype": None if lengths is None else draw.of("int32", "int64"),
        "initial_state": draw.of("array", "array", None),
    }
    if family in ("dynamic_rnn", "static_rnn"):
        call["scope"] = draw.of(None, None, "encoder")
    case = {"family": family, "call": call}
    if family == "raw_rnn":
        call["initial_state"], call["sequence_length_dtype"] = "array", "int32"
        case["loop_fn"] = draw.of("The docstring's emulation", "A decoder that feeds itself")
    if family not in ("static_rnn", "static_bidirectional_rnn", "raw_rnn"):
        call["time_major"] = draw.yes()
    sizes = {"batch": batch, "max_time": steps, "input": width}
    if nested:
        sizes["input"] = [width, draw.number(1, 4)]
        case["cell"] = {"class": "NestedCell", "args": {"n": draw.number(1, 5)}}
        call["initial_state"] = "array"
    elif family == "bidirectional_stack":
        call["initial_state"] = None
        case["cell_fw"], case["cell_bw"] = [], []
        for _ in range(draw.number(1, 3)):
            (fw, one), (bw, other) = draw.cell(width), draw.cell(width)
            case["cell_fw"].append(fw)
            case["cell_bw"].append(bw)
            width = one + other
    elif "bidirectional" in family:
        case["cell_fw"], case["cell_bw"] = draw.cell(width)[0], draw.cell(width)[0]
    else:
        case["cell"] = draw.cell(width)[0]
    return {**case, "sizes": sizes}
