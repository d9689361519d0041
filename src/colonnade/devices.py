"""Devices: where a party computes, by the names that models take as `device`."""

from __future__ import annotations

import os
import platform
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from colonnade.errors import PlanError, imported

DEVICES = ("cpu", "cuda", "auto")


def computes_on_gpu(device: str) -> bool:
    """Whether a device's name stands for a GPU here; "auto" is a GPU where there is one."""
    if device == "cpu" or (device == "auto" and find_spec("torch") is None):
        return False
    torch: Any = imported("torch", "torch", "The device 'cuda'")
    if torch.cuda.is_available():
        return True
    if device == "cuda":
        raise PlanError("The device 'cuda' needs an NVIDIA GPU, but there is none. Use device='auto' or 'cpu'.")
    return False


def gpu_name() -> str | None:
    """The name of the GPU that "auto" stands for here; None where there is none."""
    if not computes_on_gpu("auto"):
        return None
    torch: Any = imported("torch", "torch", "A GPU's name")
    return str(torch.cuda.get_device_name())


def hardware() -> str:
    """This machine in words."""
    model = platform.machine()
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    gpu = f", {name}" if (name := gpu_name()) else ""
    return f"{model}, {os.cpu_count()} cores{gpu}, {platform.system()}, Python {platform.python_version()}"


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name]
    torch: Any = imported("torch", "torch", "A trial with a GPU")
    return [str(number) for number in range(torch.cuda.device_count())]
