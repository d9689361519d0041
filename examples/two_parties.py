"""A bank and a shop train together, save their shares, predict together, and read what the shop could have learned."""

import numpy as np

from colonnade import Roles, audit, simulate
from colonnade.attacks import DirectionScore, NormScore
from colonnade.data import load, train_test_split
from colonnade.models import SplitClassifier

train, test = train_test_split(load("breast-cancer").split(), test=0.25, seed=0)
roles = Roles(label="bank", features=("shop",))
model = SplitClassifier(epochs=10, batch_size=64)

run = simulate(model.fit, train, roles=roles, seed=1)
for name, share in run.results.items():
    share.save(f"{name}.safetensors")

shares = {name: SplitClassifier.load(f"{name}.safetensors") for name in roles.parties}
predicted = simulate({name: share.predict for name, share in shares.items()}, test, roles=roles)
right = predicted.results["bank"].values == np.asarray(test["bank"].labels)
print(f"Of {len(right)} held-out rows {right.sum()} are predicted correctly.")

report = audit(run, [NormScore(), DirectionScore()])
print(report.render())
report.to_html("report.html")
