"""Settings that a backend of `Ops` cannot follow are refused, by name."""

from __future__ import annotations

import pytest
import torch

from relevo.core.errors import SettingsError
from relevo.engine.ops.native.ops import NativeOps
from relevo.engine.ops.torch.ops import TorchOps


def test_settings_that_the_native_backend_cannot_follow_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="int4"):
        NativeOps("int4")
    with pytest.raises(SettingsError, match="int2"):
        NativeOps(quantization="int2")
    with pytest.raises(SettingsError, match="int4"):
        NativeOps(activation_dtype="int4")
    with pytest.raises(SettingsError, match="no kernels on path neon"):
        monkeypatch.setattr(NativeOps, "path", "neon")
        NativeOps(activation_dtype="bfloat16")
    with pytest.raises(SettingsError, match="sse9"):
        NativeOps(path="sse9")


def test_settings_that_torch_cannot_follow_are_refused() -> None:
    with pytest.raises(SettingsError, match="int4"):
        TorchOps("int4")
    if not torch.cuda.is_available():
        with pytest.raises(SettingsError, match="no CUDA device"):
            TorchOps(device="cuda")
