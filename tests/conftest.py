"""What every test gets: a seed of its own, and torch as the test before it found it."""

from __future__ import annotations

import importlib.util
import os
import random
import zlib
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

# The engine's speed varies with what else the machine does: deadlines would only make noise.
settings.register_profile(
    "default", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_configure(config: pytest.Config) -> None:
    """Without a native build the library says so, once: expected there, an error anywhere else."""
    if importlib.util.find_spec("unpad._native") is None:
        config.addinivalue_line(
            "filterwarnings", "ignore:cells run on the torch engine:RuntimeWarning"
        )


@pytest.fixture(autouse=True)
def seed(request: pytest.FixtureRequest) -> int:
    """A seed from the test's own name: fresh inputs for every test, the same ones at every run."""
    value = zlib.crc32(request.node.nodeid.encode())
    random.seed(value)
    np.random.seed(value)  # noqa: NPY002 - libraries under test draw from the global generator
    torch.manual_seed(value)
    return value


@pytest.fixture(autouse=True)
def torch_as_found() -> Iterator[None]:
    """Threads, default dtype and grad mode are global to torch: no test leaves them changed."""
    threads, dtype, grad = (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
    )
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(grad)
