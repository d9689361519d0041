"""Devices, and this machine in words."""

import re

import torch

from colonnade.devices import hardware


def test_a_machine_is_told_with_its_gpu_if_it_has_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    without = hardware()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "A GPU")
    assert re.fullmatch(r".+, \d+ cores, \w+, Python 3\.\d+\.\d+", without)
    assert hardware() == without.replace(" cores,", " cores, A GPU,")
