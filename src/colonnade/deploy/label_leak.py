"""Whether a plan sends feature parties what labels can be read from, said before anything leaves."""

from __future__ import annotations

from colonnade.auditing.remedies import comparable_set, remedies
from colonnade.errors import PlanError
from colonnade.models.base import Estimator
from colonnade.plans.plan import Plan
from colonnade.runtime.party import Defence
from colonnade.secret import Secret

HOOKS = frozenset({"labels", "outgoing", "loss"})
"""A defence that acts on one of these changes what the label party or the server tells of labels."""

MOST_EPSILON = 8.0
"""Of two classes that are randomised with a larger epsilon, fewer than one label in 2,900 is another one."""

INSTEAD = {
    "classification": "logistic-regression, secureboost-classifier or one-shot",
    "regression": "linear-regression, secureboost-regressor or one-shot-regressor",
}


def label_leak(plan: Plan) -> str | None:
    """What the plan tells feature parties about each row's label, in a sentence; None where no gradient is sent."""
    model = None if plan.model is None else plan.model.build()
    if model is None or plan.roles.label is None or not sends_gradients(model):
        return None
    tellers = plan.roles.label, plan.roles.server
    held = [each.name for each in plan.defences if each.party in tellers and hides_labels(each.build())]
    under = f"under {' and '.join(held)}" if held else "without a defence"
    told = f"this plan sends {' and '.join(plan.roles.features)} gradients of every row, {under}"
    measured = {each.name: each for each in remedies() if each.set == comparable_set(2) and not each.is_model}
    found = [measured[name] for name in held or ["none"] if name in measured and measured[name].excess is not None]
    for each in found:
        told += (
            f". The best attack on such gradients ({each.attack}) scored {each.excess:+.2f} beside a feature party "
            f"alone, on {each.set} over {each.seeds} seeds"
        )
    return told


def require_accepted(plan: Plan) -> None:
    """Refuse to send gradients without a defence, unless the label party has accepted that.

    Raises:
        PlanError: The plan sends them, and its section [privacy] does not accept that.
    """
    told = label_leak(plan)
    if told is None or "without a defence" not in told or plan.privacy.accept_label_leak:
        return
    raise PlanError(
        f"{plan.roles.label}'s labels should stay with {plan.roles.label}, but {told}. Take "
        f"{INSTEAD[plan.trained.build().task]}, which send no gradient of a row, hold a defence, or accept that by "
        "accept_label_leak = true under [privacy]."
    )


def hides_labels(defence: Defence) -> bool:
    """Whether a defence changes what is told of labels; one that acts on embeddings alone hides columns."""
    acts = not defence.acts_on or any(Secret.LABELS in kind.reveals for kind in defence.acts_on)
    return acts and bool(defence.overridden() & HOOKS) and _moves_labels(defence)


def sends_gradients(model: Estimator) -> bool:
    """Whether feature parties are sent something row by row that depends on labels as they are."""
    sent = (*model.sends.get("label", ()), *model.sends.get("server", ()))
    randomised = model.randomises_labels and _moves_labels(model)
    return not randomised and any(Secret.LABELS in kind.reveals for kind in sent)


def _moves_labels(randomiser: Defence | Estimator) -> bool:
    """Whether labels that are randomised, if they are, differ from the true ones now and then."""
    return float(getattr(randomiser, "epsilon", 0.0)) <= MOST_EPSILON
