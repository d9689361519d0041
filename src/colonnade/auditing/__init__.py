"""The audit: what each party could learn about the others, measured.

audit              a simulated run: everything
audit_own_side     a deployed run, by one party alone: what it sent itself
JointAudit         a deployed run, by consent: the attacker guesses, the owner of the labels scores
measure_membership who was in a simulated run, beside the claimed epsilon
"""

from colonnade._lazy import attach as _attach

__getattr__, __dir__, __all__ = _attach(__name__, __file__)
