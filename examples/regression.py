"""Three parties fit one linear regression twice: with an arbiter that holds the keys, and on shares without one."""

import numpy as np

from colonnade import Roles, simulate
from colonnade.data import load, train_test_split
from colonnade.models import LinearRegression

train, test = train_test_split(load("bank-shop-telco", rows=2000).split(), test=0.25, seed=0)
# With an arbiter the default asks for 64 rows per column, more than these tables have.
model = LinearRegression(max_iter=60, rows_per_column=40)

found = {}
for protocol, arbiter in {"With": "judge", "Without": None}.items():
    roles = Roles(label="bank", features=("shop", "telco"), arbiter=arbiter)
    run = simulate(model.fit, train, roles=roles, seed=1)
    shares = run.results
    scores = simulate({name: share.score for name, share in shares.items()}, test, roles=roles).results
    print(f"{protocol} an arbiter: R² on {len(test['bank'])} held-out rows is {scores['bank']:.3f}.")
    found[protocol] = {**shares["shop"].coefficients, **shares["telco"].coefficients}

print(shares["shop"].summary())
# With an arbiter, levels of fewer than 20 rows have no coefficient of their own.
both = np.array([(value, found["Without"][name]) for name, value in found["With"].items()])
difference = np.abs(both[:, 0] - both[:, 1]).max() / np.abs(both[:, 0]).max()
print(f"The coefficients differ by at most {difference:.2%} of the largest.")
