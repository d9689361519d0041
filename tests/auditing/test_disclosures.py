import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from colonnade.auditing.contents import Disclosure
from colonnade.auditing.report import budget, budget_over_runs, disclosures
from colonnade.privacy.history import History, Records
from colonnade.privacy.ledger import Event, Ledger
from colonnade.secret import Secret
from colonnade.tables.table import Table


def test_every_message_is_counted_once_with_its_bytes(toy: SimpleNamespace) -> None:
    run = toy.run(parties=("shop", "telco"))
    found = disclosures(run.transcripts)
    lines = {(d.sender, d.receiver, d.kind): (d.messages, d.reveals) for d in found}
    assert lines == {
        ("bank", "shop", "audit-tests/hint"): (1, (Secret.LABELS,)),
        ("bank", "telco", "audit-tests/hint"): (1, (Secret.LABELS,)),
        ("shop", "bank", "audit-tests/thanks"): (1, ()),
        ("telco", "bank", "audit-tests/thanks"): (1, ()),
    }
    sent = sum(e.size for transcript in run.transcripts.values() for e in transcript.entries if e.sent)
    assert sum(d.bytes for d in found) == sent
    assert all(d.confirmed for d in found)


def test_messages_under_other_protections_stand_on_lines_of_their_own(toy: SimpleNamespace) -> None:
    transcripts = dict(toy.run().transcripts)
    (entry, *others) = transcripts["bank"].entries
    protected = entry._replace(under=("Noise",))
    transcripts["bank"] = replace(transcripts["bank"], entries=(entry, protected, *others))
    found = [d for d in disclosures(transcripts) if d.sender == "bank"]
    assert [(d.under, d.messages) for d in found] == [((), 1), (("Noise",), 1)]


def test_a_receiver_that_recorded_something_else_is_noticed(toy: SimpleNamespace) -> None:
    transcripts = dict(toy.run().transcripts)
    changed = tuple(e._replace(digest="0" * 64) if not e.sent else e for e in transcripts["shop"].entries)
    transcripts["shop"] = replace(transcripts["shop"], entries=changed)
    assert {d.kind: d.confirmed for d in disclosures(transcripts)} == {
        "audit-tests/hint": False,
        "audit-tests/thanks": True,
    }


def hint(under: tuple[str, ...] = (), sender: str = "bank") -> Disclosure:
    return Disclosure(sender, "shop", "split/gradient", (Secret.LABELS,), under, 3, 100, True)


def charged(epsilon: float = 1.0, by: str = "RandomisedLabels") -> Ledger:
    ledger = Ledger()
    parameters = (("epsilon", epsilon), ("n_classes", 2.0))
    ledger.spend(Event(Secret.LABELS, "label", "randomised-response", parameters, by=by))
    return ledger


def test_a_message_that_reveals_a_secret_without_an_event_is_not_private() -> None:
    spent = budget([hint(under=("Noise",))], {"bank": Ledger(), "shop": Ledger()}, 1e-5)["labels"]
    assert math.isinf(spent.epsilon)
    assert str(spent) == "not private: split/gradient from bank to shop"
    assert spent.releases == {"not-private": 3}


def test_a_message_under_a_protection_that_was_accounted_for_costs_its_event() -> None:
    spent = budget([hint(under=("RandomisedLabels",))], {"bank": charged(1.5), "shop": Ledger()}, 0.0)["labels"]
    assert spent.epsilon == pytest.approx(1.5)


def test_one_unprotected_message_makes_a_secret_not_private_whatever_was_spent() -> None:
    found = [hint(under=("RandomisedLabels",)), hint()]
    assert not budget(found, {"bank": charged(), "shop": Ledger()}, 1e-5)["labels"].is_private


@pytest.mark.parametrize("by", ["", "RandomisedLabels"])
def test_one_protections_event_does_not_cover_messages_under_another(by: str) -> None:
    ledgers = {"bank": charged(by=by), "shop": Ledger()}
    spent = budget([hint(under=("GradientNoise", "Clipping"))], ledgers, 1e-5)["labels"]
    assert spent.notes == ("split/gradient from bank to shop",)


def test_one_senders_event_does_not_cover_anothers_messages() -> None:
    found = [hint(under=("Noise",)), hint(under=("Noise",), sender="telco")]
    ledgers = {"bank": charged(by="Noise"), "shop": Ledger(), "telco": Ledger()}
    assert budget(found, ledgers, 1e-5)["labels"].notes == ("split/gradient from telco to shop",)


def test_what_all_runs_spent_is_told_where_a_ledger_knows_of_them(tmp_path: Path) -> None:
    table = Table.of({"id": [1, 2], "x": [1, 2]})
    flip = Event(Secret.LABELS, "label", "randomised-response", (("epsilon", 1.5), ("n_classes", 2)))
    for run in range(3):
        ledger = Ledger(history=History(tmp_path / "privacy-of-bank", Records.of(table), f"run {run}"))
        ledger.spend(flip)
    assert ledger.epsilon(0.0, protects=Secret.LABELS) == 1.5
    over_runs = budget_over_runs({"bank": ledger, "shop": Ledger()}, 0.0)
    assert {party: {secret: spent.epsilon for secret, spent in each.items()} for party, each in over_runs.items()} == {
        "bank": {"labels": 4.5}
    }


def test_where_nothing_was_revealed_nothing_was_spent() -> None:
    assert budget([], {"bank": Ledger()}, 1e-5) == {}
