"""Milliseconds to import torch, then unpad beyond it, in a fresh process."""

from __future__ import annotations

import json
import time

start = time.perf_counter()
import torch  # noqa: E402, F401

middle = time.perf_counter()
import unpad  # noqa: E402, F401

end = time.perf_counter()
print(json.dumps({"torch": 1e3 * (middle - start), "unpad": 1e3 * (end - middle)}))
