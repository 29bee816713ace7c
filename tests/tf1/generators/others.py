"""Cases of CTC and of clipping by the global norm."""

from __future__ import annotations

import itertools

import numpy as np
import tensorflow as tf

from generators.draw import Draw

v1 = tf.compat.v1


def label_rows(draw, classes, blank, steps, least):
    rows = []
    for limit in steps:
        known = [c for c in range(classes) if c != blank]
        row = [int(draw.of(*known)) for _ in range(draw.number(least, max(least, limit)))]
        rows.append(row)
    return rows


def fewest(row, merge):
    return len(row) + (sum(a == b for a, b in itertools.pairwise(row)) if merge else 0)


def sparse(rows):
    indices = [[b, n] for b, row in enumerate(rows) for n in range(len(row))]
    values = [label for row in rows for label in row]
    shape = [len(rows), max(map(len, rows), default=0)]
    return {
        "labels/indices": np.array(indices, np.int64).reshape(-1, 2),
        "labels/values": np.array(values, np.int32),
        "labels/dense_shape": np.array(shape, np.int64),
    }


def draw_ctc(draw):
    batch, steps, classes = draw.number(1, 5), draw.number(2, 9), draw.number(2, 6)
    kind = draw.of("v1", "v1", "v2", "v2", "greedy", "beam_v1", "beam_v2")
    sizes = {"batch": batch, "max_time": steps, "num_classes": classes}
    case = {"family": "ctc", "sizes": sizes, "kind": kind}
    if kind == "v1":
        call = {"time_major": draw.yes()} | draw.some(
            preprocess_collapse_repeated=True, ctc_merge_repeated=False,
            ignore_longer_outputs_than_inputs=True)  # fmt: skip
        return {**case, "function": "tf.compat.v1.nn.ctc_loss", "call": call}
    if kind == "v2":
        call = {"time_major": draw.yes(), "blank_index": draw.number(-classes, classes - 1)}
        call |= draw.some(use_unique=True)
        return {**case, "function": "tf.nn.ctc_loss", "call": call, "sparse": draw.yes(0.4)}
    if kind == "greedy":
        call = draw.some(merge_repeated=draw.yes(), blank_index=draw.number(-classes, classes - 1))
        return {**case, "function": "tf.nn.ctc_greedy_decoder", "call": call}
    width = draw.of(1, 2, 3, 5, 20, 100)
    call = {"beam_width": width, "top_paths": draw.number(1, min(width, 2))}
    prefix = "tf" if kind == "beam_v2" else "tf.compat.v1"
    if kind == "beam_v1":
        call |= draw.some(merge_repeated=draw.yes())
    return {**case, "function": f"{prefix}.nn.ctc_beam_search_decoder", "call": call}


def decoder_numbers(case, draw, kind):
    b, t, c = (case["sizes"][name] for name in ("batch", "max_time", "num_classes"))
    least = 2 if kind.startswith("beam") else 0
    x = draw.array(t, b, c, scale=2.0).astype(np.float32)
    steps = draw.rng.integers(min(least, t), t + 1, b).astype(np.int32)
    decoders = {
        "greedy": tf.nn.ctc_greedy_decoder,
        "beam_v1": v1.nn.ctc_beam_search_decoder,
        "beam_v2": tf.nn.ctc_beam_search_decoder,
    }
    decoded, score = decoders[kind](x, steps, **case["call"])
    arrays = {"inputs": x, "sequence_length": steps}
    arrays["neg_sum_logits" if kind == "greedy" else "log_probability"] = score.numpy()
    for n, path in enumerate(decoded):
        for part in ("indices", "values", "dense_shape"):
            arrays[f"decoded/{n}/{part}"] = getattr(path, part).numpy()
    return arrays


def draw_labels(case, draw, blank, steps, least):
    """Rows of labels; most of the time they fit into their steps."""
    call, c = case["call"], case["sizes"]["num_classes"]
    rows = label_rows(draw, c, blank, steps, least)
    if draw.yes(0.2):
        if call.get("ignore_longer_outputs_than_inputs"):
            return rows
        return [row[: int(limit)] for row, limit in zip(rows, steps, strict=True)]
    merge = call.get("ctc_merge_repeated", True)
    for n, limit in enumerate(steps):
        while len(rows[n]) > 1 and fewest(rows[n], merge) > limit:
            rows[n] = rows[n][:-1]
    return rows


def dense(rows):
    labels = np.zeros((len(rows), max(1, *map(len, rows))), np.int32)
    for n, row in enumerate(rows):
        labels[n, : len(row)] = row
    return {"labels": labels, "label_length": np.array([len(row) for row in rows], np.int32)}


def losses_of(kind, call, arrays, x):
    if "labels" in arrays:
        labels = tf.constant(arrays["labels"])
    else:
        parts = ("indices", "values", "dense_shape")
        labels = tf.SparseTensor(*(arrays[f"labels/{part}"] for part in parts))
    if kind == "v1":
        return v1.nn.ctc_loss(labels, x, arrays["logit_length"], **call)
    return tf.nn.ctc_loss(
        labels,
        x,
        arrays.get("label_length"),
        arrays["logit_length"],
        logits_time_major=call["time_major"],
        unique=tf.nn.ctc_unique_labels(labels) if call.get("use_unique") else None,
        blank_index=call["blank_index"],
    )


def ctc_numbers(case, seed):
    draw, call, kind = Draw(seed), dict(case["call"]), case.pop("kind")
    if kind not in ("v1", "v2"):
        return decoder_numbers(case, draw, kind)
    b, t, c = (case["sizes"][name] for name in ("batch", "max_time", "num_classes"))
    steps = draw.rng.integers(1, t + 1, b).astype(np.int32)
    is_sparse = kind == "v1" or case.pop("sparse")
    blank = c - 1 if kind == "v1" else call["blank_index"] % c
    case["label_rows"] = rows = draw_labels(case, draw, blank, steps, 1 if is_sparse else 0)
    if is_sparse:
        case["call"].pop("use_unique", None)
        call.pop("use_unique", None)
    x = draw.array(*((t, b, c) if call["time_major"] else (b, t, c)), scale=1.5)
    arrays = {
        "logits": x.astype(np.float32),
        "logit_length": steps,
        "cotangent/losses": draw.array(b).astype(np.float32),
        **(sparse(rows) if is_sparse else dense(rows)),
    }
    x = tf.Variable(arrays["logits"])
    with tf.GradientTape() as tape:
        losses = losses_of(kind, call, arrays, tf.convert_to_tensor(x))
        loss = tf.reduce_sum(losses * arrays["cotangent/losses"])
    arrays["losses"], arrays["grad/logits"] = losses.numpy(), tape.gradient(loss, x).numpy()
    return arrays


def draw_clip(draw):
    entries = [
        draw.of("tensor", "tensor", "None", "IndexedSlices") for _ in range(draw.number(1, 5))
    ]
    use = draw.of(None, None, 0.5, 10.0)
    call = {"clip_norm": draw.of(0.1, 1.0, 5.0, 100.0), "use_norm": use}
    dtype = draw.of("float32", "float64")
    return {"family": "clip", "function": "tf.clip_by_global_norm", "call": call,
            "entries": entries, "dtype": dtype}  # fmt: skip


def clip_numbers(case, seed):
    draw, dtype = Draw(seed), case["dtype"]
    arrays, given = {}, []
    for n, entry in enumerate(case["entries"]):
        if entry == "None":
            given.append(None)
            continue
        shape = [draw.number(1, 4) for _ in range(draw.number(1 if entry != "tensor" else 0, 3))]
        value = draw.array(*shape).astype(dtype)
        if draw.yes(0.05):
            value = value * np.array(draw.of(np.inf, np.nan), dtype)
        if entry == "tensor":
            arrays[f"inputs/{n}"] = value
            given.append(tf.constant(value))
            continue
        indices = draw.rng.integers(0, 5, shape[0]).astype(np.int64)
        dense = np.array([5, *shape[1:]], np.int64)
        arrays |= {f"inputs/{n}/values": value, f"inputs/{n}/indices": indices,
                   f"inputs/{n}/dense_shape": dense}  # fmt: skip
        given.append(tf.IndexedSlices(*map(tf.constant, (value, indices, dense))))
    call = case["call"]
    use = None if call["use_norm"] is None else tf.constant(call["use_norm"], dtype)
    clipped, norm = tf.clip_by_global_norm(given, call["clip_norm"], use_norm=use)
    arrays["global_norm"] = norm.numpy()
    arrays["tf.linalg.global_norm"] = tf.linalg.global_norm(given).numpy()
    for n, value in enumerate(clipped):
        if isinstance(value, tf.IndexedSlices):
            for part in ("values", "indices", "dense_shape"):
                arrays[f"outputs/{n}/{part}"] = getattr(value, part).numpy()
        elif value is not None:
            arrays[f"outputs/{n}"] = value.numpy()
    return arrays
