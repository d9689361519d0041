"""Three parties fit one linear regression twice: with an arbiter that holds the keys, and on shares without one."""

import numpy as np

from colonnade import Roles, simulate
from colonnade.data import load, train_test_split
from colonnade.models import LinearRegression

train, test = train_test_split(load("bank-shop-telco", rows=2000).split(), test=0.25, seed=0)
model = LinearRegression(max_iter=60)

found = {}
for protocol, arbiter in {"With": "judge", "Without": None}.items():
    roles = Roles(label="bank", features=("shop", "telco"), arbiter=arbiter)
    run = simulate(model.fit, train, roles=roles, seed=1)
    shares = run.results
    scores = simulate({name: share.score for name, share in shares.items()}, test, roles=roles).results
    print(f"{protocol} an arbiter: R² on {len(test['bank'])} held-out rows is {scores['bank']:.3f}.")
    found[protocol] = np.concatenate([shares[name].coef_ for name in ("shop", "telco")])

print(shares["shop"].summary())
difference = np.abs(found["With"] - found["Without"]).max() / np.abs(found["With"]).max()
print(f"The coefficients differ by at most {difference:.2%} of the largest.")
