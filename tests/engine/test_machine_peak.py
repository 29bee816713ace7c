"""The measured peak: a number for both types, and words for what cannot be measured."""

import pytest
import torch

import unpad
from unpad.engine import native_engine

native = pytest.mark.skipif(not native_engine.available(), reason="needs the native engine")


@native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_peak_is_a_speed(dtype):
    assert 1e8 < unpad.machine_peak(1, dtype) < 1e13


@native
@pytest.mark.parametrize("threads", [0, -1, 10**6])
def test_threads_out_of_range(threads):
    with pytest.raises(unpad.ArgumentError, match="`threads`"):
        unpad.machine_peak(threads)


@native
def test_other_types():
    with pytest.raises(unpad.ArgumentTypeError, match="`threads`"):
        unpad.machine_peak(1.5)  # type: ignore[arg-type]
    with pytest.raises(unpad.ArgumentError, match="`dtype`"):
        unpad.machine_peak(1, torch.float16)


def test_without_the_native_engine(monkeypatch):
    monkeypatch.setattr(native_engine, "_missing", "no compiler")
    with pytest.raises(unpad.UnpadError, match="native engine"):
        unpad.machine_peak()
