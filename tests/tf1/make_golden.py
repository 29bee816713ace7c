"""Write golden cases as tests/golden has them, drawn at random, with what TensorFlow computed.

Run with TensorFlow 2.15.1: python tests/tf1/make_golden.py FOLDER SEED COUNT [FAMILY ...]
then UNPAD_GOLDEN=FOLDER make test-golden. tensorflow_addons is used where it is installed.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

os.environ |= {"TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPP_MIN_LOG_LEVEL": "3"}
import numpy as np
import tensorflow as tf
from generators.draw import Draw
from generators.layers import draw_keras, keras_numbers
from generators.loops import BUILDERS, Graph, draw_v1
from generators.others import clip_numbers, ctc_numbers, draw_clip, draw_ctc

tf.get_logger().setLevel("ERROR")
warnings.simplefilter("ignore")


def distance(one, other):
    """How far TensorFlow's own float32 is from its float64, by group of results."""
    near = {}
    for key, value in one.items():
        parts = [p for p in key.split("/") if not p.isdigit()]
        if parts[0] in ("outputs", "final_state", "grad") and value.dtype == np.float32:
            gap = np.abs(value.astype(np.float64) - other[key]).max(initial=0.0)
            near[parts[0]] = max(near.get(parts[0], 0.0), float(gap))
    return near


def case_of(family, seed):
    draw = Draw(seed)
    if family == "ctc":
        case = draw_ctc(draw)
        return {**case, "dtype": "float32"}, lambda case: ctc_numbers(case, seed)
    if family == "clip":
        return draw_clip(draw), lambda case: clip_numbers(case, seed)
    dtype = draw.of("float32", "float32", "float32", "float64")
    case = draw_keras(draw) if family == "keras" else draw_v1(family, draw)
    case["dtype"] = dtype

    def numbers(case):
        def run(kind):
            if family == "keras":
                return keras_numbers(case, seed, kind)
            graph = Graph(case, seed, kind)
            found = graph.run(BUILDERS[family])
            case["weight_order"] = graph.weights
            return found

        found = run(dtype)
        if dtype == "float32":
            case["max_abs_float32_minus_float64"] = distance(found, run("float64"))
        return found

    return case, numbers


def main(out: Path, seed: int, count: int, *families: str) -> None:
    cases = []
    for family in families or (*BUILDERS, "keras", "ctc", "clip"):
        (out / family).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            name = f"{family}_{seed}_{number}"
            case, numbers = case_of(family, [seed, number, len(family)])
            case = {"id": name, "file": f"{family}/{name}.npz", **case}
            try:
                arrays = numbers(case)
            except Exception as error:  # TensorFlow refuses some of what is drawn
                print(f"{name}: refused: {' '.join(str(error).split())[:150]}", flush=True)
                continue
            np.savez_compressed(out / case["file"], **arrays)
            cases.append(case)
    versions = {"tensorflow": tf.__version__, "numpy": np.__version__}
    (out / "cases.json").write_text(json.dumps({"versions": versions, "cases": cases}, indent=1))
    print(len(cases), "cases", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
