from importlib.util import find_spec

import pytest
from hypothesis import HealthCheck, settings

# How fast a machine is, and how busy, is nothing a test should fail by.
settings.register_profile("colonnade", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("colonnade")


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Two workers on two cores would otherwise fight for them, and thread counts change the last bits of a sum."""
    if find_spec("torch"):
        import torch

        torch.set_num_threads(1)
