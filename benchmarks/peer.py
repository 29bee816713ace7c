"""A peer in a process and an environment of its own that takes its turn among the rivals.

The environments are made by `make bench-peers` (`peers/install.py`); what cannot be installed is
left out, with the reason. The process times its own call, so that the pipe is not charged to it.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import torch
from measure import Milliseconds, milliseconds

from unpad.bench.machine import MALLOC_ENVIRONMENT

SCRIPTS = Path(__file__).parent / "peers"
ENVIRONMENTS = Path(os.environ.get("UNPAD_PEERS", SCRIPTS.parents[1] / ".venv-peers"))
# Worker threads spin a while after a call, in the hope of the next one, on the core that the other
# process is about to use. So each process gets the machine when the other has gone to sleep.
SETTLE = 0.01
# Seconds of calls in a row, as in training. A single call after that pause finds its threads asleep
# and its caches cold: three tanh layers on two threads took Unpad 7.1 ms so, 4.8 in a row.
TURN = 0.1


def turn(
    run: Callable[[], object], *, threads: int | None = None, seconds: float = TURN
) -> Callable[[], Milliseconds]:
    """A rival of this process that takes its turns as a `Peer` does: the median of calls in a row.

    Args:
        run: one call.
        threads: how many torch is given for the turn; None leaves it as it is.
        seconds: of a turn.
    """

    def median() -> Milliseconds:
        if threads is not None:
            torch.set_num_threads(threads)
        time.sleep(SETTLE)
        end, taken = time.perf_counter() + seconds, [milliseconds(run)]
        while time.perf_counter() < end:
            taken.append(milliseconds(run))
        time.sleep(SETTLE)
        return Milliseconds(statistics.median(taken))

    return median


class PeerError(Exception):
    """The peer is not there or cannot do the job; the message is the reason."""


class Peer:
    """A process that runs one job.

    Args:
        script: a file of ``peers/``, without its ending.
        job, arrays: what its `build` takes.
        environment: the name of a peer's environment; None is the project's own.
        without: prefixes of environment variables that the process shall not see.
        malloc: whether glibc's malloc keeps its memory, as it does in this process.
        seconds: of calls in a row at each turn.
    """

    def __init__(
        self,
        script: str,
        job: dict[str, Any],
        arrays: Mapping[str, np.ndarray],
        *,
        environment: str | None = None,
        without: tuple[str, ...] = (),
        malloc: bool = True,
        seconds: float = TURN,
    ) -> None:
        python = sys.executable if environment is None else _python(environment)
        variables = {k: v for k, v in os.environ.items() if not k.startswith(without or ("\0",))}
        self._seconds = seconds
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            [python, str(SCRIPTS / f"{script}.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=variables | (MALLOC_ENVIRONMENT if malloc else {}),
        )
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/in.npz"
            np.savez(path, **arrays)
            self.version: str = self.ask("build", job=job, arrays=path)["version"]

    def __enter__(self) -> Peer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __call__(self) -> Milliseconds:
        """Take a turn: calls in a row, of which the median counts."""
        time.sleep(SETTLE)
        answer = self.ask("loop", seconds=self._seconds)
        time.sleep(SETTLE)
        return Milliseconds(answer["milliseconds"])

    def results(self) -> dict[str, np.ndarray]:
        """What the job computes, by name."""
        with tempfile.TemporaryDirectory() as folder:
            self.ask("results", arrays=f"{folder}/out.npz")
            with np.load(f"{folder}/out.npz") as file:
                return dict(file)

    def peak(self) -> int:
        """Bytes of memory at its highest, above those after the import."""
        return int(self.ask("peak")["bytes"])

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Send a request and wait for its answer."""
        self.tell(what, **arguments)
        return self.hear()

    def tell(self, what: str, **arguments: Any) -> None:
        """Send a request; the answer is heard later."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"do": what, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise PeerError(self._last_words()) from error

    def hear(self) -> dict[str, Any]:
        """Wait for the answer to the last request."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        answer = json.loads(line) if line else {"error": self._last_words()}
        if "error" in answer:
            self.close()
            raise PeerError(answer["error"])
        return answer

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None and not self._process.stdin.closed:
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().strip().splitlines()
        return f"the process ended: {lines[-1] if lines else 'it said nothing'}"


def _python(environment: str) -> str:
    folder = ENVIRONMENTS / environment
    if (folder / "installed.txt").exists():
        return str(folder / "bin" / "python")
    why = ENVIRONMENTS / f"{environment}.failed.txt"
    reason = why.read_text().strip() if why.exists() else "run `make bench-peers` to install it"
    raise PeerError(f"not installed: {reason}")
