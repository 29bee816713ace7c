"""Run the TensorFlow programs of docs/porting-from-tensorflow.md in TensorFlow itself.

python tools/golden.py [--write]

TensorFlow is installed into an environment of its own (benchmarks/peers). Every program must print
what stands below it on the page; ``--write`` puts its output there instead. The ports beside them
are compared with the same lines by tests/tf1/test_porting_page.py.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "porting-from-tensorflow.md"
SAVED = ROOT / "tests/golden/checkpoints/savedmodel_v1_lstm_basic/model"  # the page's classifier
PEERS = ROOT / "benchmarks" / "peers"
ENVIRONMENTS = Path(os.environ.get("UNPAD_PEERS", ROOT / ".venv-peers"))
PROGRAM = re.compile(
    r"^```python tensorflow\n(?P<code>.*?)^```\n\n```text\n(?P<printed>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
QUIET = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": "-1"}


def run(code: str) -> str:
    """What a program prints in TensorFlow's environment."""
    python = ENVIRONMENTS / "tensorflow" / "bin" / "python"
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(SAVED, Path(folder) / "classifier")
        done = subprocess.run(
            [str(python), "-c", code],
            capture_output=True,
            text=True,
            check=False,
            cwd=folder,
            env={**os.environ, **QUIET},
            timeout=600,
        )
    if done.returncode:
        raise SystemExit(f"a program failed:\n{code}\n{done.stderr[-3000:]}")
    return done.stdout


def main() -> None:
    install = [sys.executable, str(PEERS / "install.py"), "tensorflow"]
    print(subprocess.run(install, capture_output=True, text=True, check=True).stdout, end="")
    text, wrong, shift = PAGE.read_text(), 0, 0
    for number, match in enumerate(PROGRAM.finditer(text), 1):
        printed = run(match["code"])
        same = printed == match["printed"]
        print(f"program {number}: {'as on the page' if same else 'prints something else'}")
        if not same:
            wrong += 1
            print(printed, end="")
            start, end = (place + shift for place in match.span("printed"))
            text, shift = text[:start] + printed + text[end:], shift + len(printed) - (end - start)
    if "--write" in sys.argv[1:]:
        PAGE.write_text(text)
    elif wrong:
        raise SystemExit(f"{wrong} programs print something else than the page says")


if __name__ == "__main__":
    main()
