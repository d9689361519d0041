"""Contracts: what every transport, model, attack and defence keeps, also those of users.

    check_transport(run)                           a frame arrives once and in order, or somebody is told
    check_estimator(make, tables, roles)           scikit-learn's manners, one share each, a crash changes nothing,
                                                   a peer that restarts with other values learns nothing
    check_hiding(make, tables, roles)              what a model or an alignment hides is hidden by draws that serve
                                                   once
    check_attack(attack, run)                      one guess, from the view alone
    check_defence(defence, make, tables, roles)    it acts where it says so, and only there

Each contract is a tuple of small checks, over which tests can be parametrised: `TRANSPORT_CHECKS` and so on. A check
that does not hold raises an `AssertionError` with a sentence.
"""

from colonnade.testing.attack import ATTACK_CHECKS, attempt_on, check_attack
from colonnade.testing.defence import DEFENCE_CHECKS, check_defence
from colonnade.testing.estimator import ESTIMATOR_CHECKS, check_estimator
from colonnade.testing.hiding import HIDING_CHECKS, check_hiding
from colonnade.testing.setup import Setup
from colonnade.testing.transport import TRANSPORT_CHECKS, check_transport

__all__ = [
    "ATTACK_CHECKS",
    "DEFENCE_CHECKS",
    "ESTIMATOR_CHECKS",
    "HIDING_CHECKS",
    "TRANSPORT_CHECKS",
    "Setup",
    "attempt_on",
    "check_attack",
    "check_defence",
    "check_estimator",
    "check_hiding",
    "check_transport",
]
