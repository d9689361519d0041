"""The contract of defences: a defence acts where it says so, and only there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial

from colonnade.catalogue import DEFENCES
from colonnade.errors import PlanError, ProtocolError
from colonnade.models.base import Estimator
from colonnade.roles import Roles
from colonnade.runtime.context import HookContext, Tensor
from colonnade.runtime.party import Defence, Party
from colonnade.storage import pack, unpack
from colonnade.tables.table import Table
from colonnade.testing.assertions import must, must_be_alike, must_refuse
from colonnade.testing.resume import killed_runs_end_alike
from colonnade.testing.setup import Setup, arrays, ending, is_finite, witness


def check_defence(
    defence: Defence,
    make: Callable[[], Estimator],
    tables: Mapping[str, Table],
    roles: Roles,
    *,
    holder: str | None = None,
) -> None:
    """Check that a defence acts where it says so, and only there.

    Args:
        defence: A defence of a class that other processes can import.
        make: Makes a model that it protects, as for `check_estimator`.
        tables: Rows to train on.
        roles: Who does what.
        holder: Who holds the defence; if None, the first party on whose side its hooks are called.
    """
    setup = Setup(make, tables, roles)
    holders = setup.holders(defence) if holder is None else [holder]
    must(bool(holders), f"{defence.name} should be of use to some party of {type(make()).__name__}, but is to none.")
    for check in DEFENCE_CHECKS:
        check(defence, holders[0], setup)


def what_it_returns_has_the_same_shape_and_type(defence: Defence, holder: str, setup: Setup) -> None:
    """And where it overrides no hook, what passes is not touched at all."""

    def look(hook: str, at: HookContext, given: Tensor, returned: Tensor) -> None:
        where = f"{defence.name}.{hook} at step {at.step}"
        must(returned is given or hook in defence.overridden(), f"{where} acts, but is not overridden.")
        must(returned.shape == given.shape, f"{where} should keep the shape {tuple(given.shape)}.")
        must(returned.dtype == given.dtype, f"{where} should keep the type {given.dtype}.")

    _watch(defence, holder, setup, look)


def one_seed_gives_one_run(defence: Defence, holder: str, setup: Setup) -> None:
    """Under a seed, a defended run can be repeated."""
    first, predicted = setup.both(defences={holder: [defence]})
    second, predicted_again = setup.both(defences={holder: [defence]})
    must_be_alike(ending(second), ending(first), f"A repeated run with {defence.name}")
    must_be_alike(ending(predicted_again), ending(predicted), f"A repeated prediction with {defence.name}")


def its_state_can_be_written_down(defence: Defence, holder: str, setup: Setup) -> None:
    """What a defence says of its state can be stored, and restoring it leads to the same state."""
    parties: list[Party] = []

    class Guest(Defence):
        def before_run(self, party: Party) -> None:
            parties.append(party)

    setup.fit(defences={holder: [defence, Guest()]})
    written = pack(parties[0].defences[0].state())
    restored = copy.deepcopy(defence)
    restored.before_run(parties[0])
    restored.restore(unpack(written))
    must(pack(restored.state()) == written, f"{defence.name} should have the same state after it was restored.")


def a_killed_run_resumes_with_it(defence: Defence, holder: str, setup: Setup) -> None:
    """A defended run that was killed goes on to the same frames and the same ledger."""
    killed_runs_end_alike(setup, {holder: [defence]}, renames=(3, 6))


def it_composes_with_every_defence_in_any_order(defence: Defence, holder: str, setup: Setup) -> None:
    """With itself and with each of the catalogue's that suits the model, before and after, all numbers stay finite."""
    for other in (defence, *(make() for make in DEFENCES.values())):
        for party in setup.holders(other):
            composes(defence, holder, other, party, setup)


def composes(defence: Defence, holder: str, other: Defence, party: str, setup: Setup) -> None:
    """Demand that all numbers stay finite with two defences, in both orders where one party holds both."""
    orders = [[defence, other], [other, defence]] if party == holder else [[defence]]
    for order in orders:
        held = f"{', then '.join(each.name for each in order)} at {holder} and {other.name} at {party}"
        try:
            fitted, predicted = setup.both(defences={party: [other], holder: order})
        except ProtocolError as error:
            raise AssertionError(f"With {held}, training should come to its end, but {error}") from error
        numbers = [array for estimator in fitted.results.values() for array in arrays(estimator.share())]
        numbers += [prediction.values for prediction in predicted.results.values() if prediction is not None]
        must(all(map(is_finite, numbers)), f"With {held}, everything learned should be finite.")


def it_is_refused_where_it_would_never_act(defence: Defence, holder: str, setup: Setup) -> None:
    """A party on whose side one of its hooks is never called, or which lacks the labels it reads, cannot hold it."""
    for party, called in setup.hooks.items():
        if idle := sorted(defence.overridden() - called):
            what = f"{defence.name} at {party}, where {', '.join(idle)} is never called,"
        elif defence.reads_labels and "labels" not in called:
            what = f"{defence.name} at {party}, which has no labels,"
        else:
            continue
        must_refuse(partial(setup.fit, defences={party: [defence]}), PlanError, party, defence.name, what=what)


def the_message_ledger_names_it_where_it_acts(defence: Defence, holder: str, setup: Setup) -> None:
    """Messages that it changes say so; where changing messages is all it does, no other message says so."""
    for party in setup.holders(defence):
        changed: set[str] = set()

        def look(hook: str, at: HookContext, given: Tensor, returned: Tensor, changed: set[str] = changed) -> None:
            if hook == "outgoing" and at.message is not None and returned is not given:
                changed.add(at.message.kind)

        _watch(defence, party, setup, look)
        runs = setup.both(defences={party: [defence]})
        sent = [entry for run in runs for entry in run.transcripts[party].entries if entry.sent]
        under = {entry.kind for entry in sent if defence.name in entry.under}
        silent, boasted = ", ".join(sorted(changed - under)), ", ".join(sorted(under - changed))
        must(not silent, f"{defence.name} changes {silent}, but {party}'s message ledger does not say so.")
        if defence.overridden() & {"labels", "loss", "modules"}:
            must(bool(under), f"{defence.name} changes what {party} learns from, but its message ledger never says so.")
        else:
            must(not boasted, f"{party}'s message ledger puts {boasted} under {defence.name}, which never changes it.")


def _watch(
    defence: Defence, holder: str, setup: Setup, look: Callable[[str, HookContext, Tensor, Tensor], None]
) -> None:
    """Train and predict with a witness before the defence and one behind it, and look at all that passes."""
    last: list[Tensor] = []

    def note_given(hook: str, tensor: Tensor, at: HookContext | None) -> None:
        last[:] = [tensor]

    def note_returned(hook: str, tensor: Tensor, at: HookContext | None) -> None:
        assert at is not None
        look(hook, at, last[0], tensor)

    hooks = setup.hooks[holder] - {"modules"}
    setup.both(defences={holder: [witness(hooks, note_given), defence, witness(hooks, note_returned)]})


DEFENCE_CHECKS: tuple[Callable[[Defence, str, Setup], None], ...] = (
    what_it_returns_has_the_same_shape_and_type,
    one_seed_gives_one_run,
    its_state_can_be_written_down,
    a_killed_run_resumes_with_it,
    it_composes_with_every_defence_in_any_order,
    it_is_refused_where_it_would_never_act,
    the_message_ledger_names_it_where_it_acts,
)
