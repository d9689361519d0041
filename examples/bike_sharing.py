"""A rental company predicts a day's rentals, hour by hour, from a weather service's curves.

First in the clear, then under differential privacy. Needs bike sharing's curves in the folder that $COLONNADE_DATA
names, and writes two figures.
"""

from colonnade import Roles, simulate
from colonnade.attacks.members.curves import ReleaseMembership
from colonnade.auditing import measure_membership
from colonnade.curves.plots import new_axes
from colonnade.data import load, train_test_split
from colonnade.models import FunctionalBoost, Penalties, Protection
from colonnade.models.functional.metrics import curve_metrics

train, test = train_test_split(load("bike-sharing-curves").split(), test=0.25, seed=0)
roles = Roles(label="bank", features=("shop",))
penalties = Penalties(s=10.0, t=0.01, relative=True)
observed = test["bank"].curves("rentals")


def fit(protection):
    """Train, predict the test days, and say how well."""
    model = FunctionalBoost(inputs="partial", penalties=penalties, protection=protection)
    run = simulate(model.fit, train, roles=roles, seed=1)
    shares = {name: share.predict for name, share in run.results.items()}
    predicted = simulate(shares, test, roles=roles).results["bank"].curves
    mean = run.results["bank"].centers_["y"]
    return run, predicted, curve_metrics(predicted, observed, mean=mean)["OverMean"]


run, predicted, ratio = fit(Protection())
model = run.results["bank"]
print(f"In the clear: {ratio:.2f} of the mean's error.")
print(f"The model has selected {', '.join(model.selected_)}.")

axes = new_axes()
observed.plot(axes, rows=[3], color="black", label="observed")
predicted.plot(axes, rows=[3], color="tab:blue", label="predicted")
model.centers_["y"].plot(axes, color="grey", linestyle="--", label="mean day")
axes.set(xlabel="hour", ylabel="rentals per hour")
axes.legend(frameon=False)
axes.figure.savefig("bike-day.png", dpi=120)
axes = model.plot_surface("temperature")
axes.set(xlabel="hour of rentals", ylabel="hour of temperature")
axes.figure.savefig("bike-surface.png", dpi=120)

# Temperature, humidity and wind are scaled to at most 1, so no curve over 23 hours is longer than sqrt(23), about 4.8.
for epsilon in (10_000.0, 1_000.0, 100.0):
    run, _, ratio = fit(Protection(clip=4.8, epsilon=epsilon, n_curves=3))
    attack = measure_membership(run, ReleaseMembership())
    kept = "predicts the mean" if run.results["bank"].is_mean_ else f"{ratio:.2f} of the mean's error"
    leak = f"membership AUC {attack.score.value:.2f}, measured epsilon {attack.measured:.1f}"
    print(f"Epsilon {epsilon:,.0f}: {kept}; {leak}.")
