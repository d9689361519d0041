"""Messages of networks are read where PyTorch is not installed."""

import subprocess
import sys

import pytest

WITHOUT_TORCH = "import sys; sys.modules['torch'] = None; import {module}"


@pytest.mark.parametrize(
    "module",
    ["colonnade.models.networks.messages", "colonnade.attacks.labels.gradients", "colonnade.attacks.labels.clustering"],
)
def test_messages_and_attacks_that_read_them_need_no_torch(module):
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH.format(module=module)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_networks_themselves_need_torch():
    """So that the test above can fail."""
    code = WITHOUT_TORCH.format(module="colonnade.models.networks.split")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "torch" in ended.stderr.splitlines()[-1]
