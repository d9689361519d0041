"""Every defence of the catalogue names the attack that knows it, and the documentation says the same."""

import re
from pathlib import Path

import pytest

from colonnade.auditing.attempt import name_of
from colonnade.catalogue import DEFENCES, attack_knowing
from colonnade.secret import Secret

PAGE = Path(__file__).parents[2] / "docs" / "defences" / "index.md"


@pytest.mark.parametrize("name", DEFENCES)
def test_a_defence_names_an_attack_on_labels_that_knows_it(name):
    attack = attack_knowing(DEFENCES[name]())
    assert attack.about is Secret.LABELS
    documented = dict(re.findall(r"^\| `([a-z-]+)` \| `([^`]+)` \|", PAGE.read_text(encoding="utf-8"), re.M))
    assert documented[name] == name_of(attack)
