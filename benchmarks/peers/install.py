"""Make an environment for each peer, with the versions that stand in the .txt files here.

python benchmarks/peers/install.py [NAME ...]

The project's own environment is never touched. A peer that cannot be had here (no wheel for this
Python or machine, no network) is left out, and the reason kept for the benchmarks to print. pip is
configured as ever: by its files and its variables in the environment.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ENVIRONMENTS = Path(os.environ.get("UNPAD_PEERS", HERE.parents[1] / ".venv-peers"))
PEERS = sorted(path.stem for path in HERE.glob("*.txt"))


def install(peer: str) -> str:
    """Install a peer where it is not yet, in this version; the result is a reason if it fails."""
    wanted = (HERE / f"{peer}.txt").read_text()
    folder = ENVIRONMENTS / peer
    installed, failed = folder / "installed.txt", ENVIRONMENTS / f"{peer}.failed.txt"
    if installed.exists() and installed.read_text() == wanted:
        return ""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    python = str(folder / "bin" / "python")
    steps = (
        [python, "-m", "pip", "install", "--quiet", "--requirement", str(HERE / f"{peer}.txt")],
        [python, "-c", f"import {peer}"],
    )
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True, check=False)
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            errors = [line for line in lines if line.startswith("ERROR")] or lines
            failed.write_text(errors[-1] + "\n")
            return errors[-1]
    failed.unlink(missing_ok=True)
    installed.write_text(wanted)
    return ""


def main() -> None:
    for peer in sys.argv[1:] or PEERS:
        reason = install(peer)
        print(f"{peer}: {f'left out: {reason}' if reason else 'installed'}", flush=True)


if __name__ == "__main__":
    main()
