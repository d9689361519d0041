"""An attack of one's own: declared, held to the contract, and audited."""

import numpy as np

from colonnade import Roles, audit, simulate
from colonnade.attacks import Attack, Guess, Needs, View
from colonnade.data import load
from colonnade.models import SplitClassifier
from colonnade.models.networks.messages import Gradient
from colonnade.testing import check_attack


class NearestGradient(Attack):
    """A row has the class of those known rows whose gradients are nearest to its own."""

    needs = Needs(messages=(Gradient,), known_labels=5)

    def guess(self, view: View) -> Guess:
        """Compare each row's mean gradient with those of the known rows of each class."""
        gradients = view.row_means(Gradient)
        told = [view.grant.rows[view.grant.labels == number] for number in range(view.grant.n_classes)]
        centres = np.stack([gradients[rows].mean(axis=0) for rows in told])
        rows = np.flatnonzero(~np.isnan(gradients[:, 0]))
        distances = np.linalg.norm(gradients[rows, None] - centres, axis=2)
        return Guess(rows, classes=distances.argmin(axis=1))


def main() -> None:
    """Attack a small run."""
    # The contract repeats the guess in another process, which must be able to import the attack from its file.
    from own_attack import NearestGradient

    roles = Roles(label="bank", features=("shop",))
    run = simulate(SplitClassifier(epochs=10).fit, load("digits", rows=600).split(), roles=roles, seed=1)
    check_attack(NearestGradient(), run)
    print(audit(run, [NearestGradient()]).render())


if __name__ == "__main__":
    main()
