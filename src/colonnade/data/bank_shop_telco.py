"""Customers of a bank, a shop and a telephone company: a generated set with the dirt real tables have.

The bank knows who defaulted. What leads to default is spread over the three: low income and balance at the bank, paying
later and sending back at the shop, unpaid bills at the telephone company, and combinations of these.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from colonnade.tables.table import Table

PARTIES = ("bank", "shop", "telco")
POSITIVE_SHARE = 0.2
HELD_SHARE = 0.85

_EMPLOYMENT = {
    "employed": 0.6,
    "self-employed": 0.12,
    "retired": 0.13,
    "student": 0.08,
    "unemployed": 0.067,
    "envoy": 0.003,
}
_CITY = {"Zürich": 0.34, "Genève": 0.2, "Basel": 0.17, "Bern": 0.15, "Lugano": 0.08, "Neuchâtel": 0.056, "東京": 0.004}
_CATEGORY = {"clothes": 0.35, "books": 0.2, "garden": 0.17, "electronics": 0.2, "café": 0.075, "falconry": 0.005}
_PAYMENT = {"card": 0.5, "invoice": 0.24, "pay later": 0.2, "Überweisung": 0.06}
_CONTRACT = {"monthly": 0.45, "two years": 0.35, "prepaid": 0.19, "satellite": 0.01}


def generate(customers: int = 4000, seed: int = 0) -> dict[str, Table]:
    """Make the three parties' tables; each lacks some customers and has its own row order.

    Args:
        customers: How many people there are; each party knows about 85 % of them.
        seed: Which set to make; equal seeds make equal tables.
    """
    random = np.random.default_rng(seed)
    bank = _bank(random, customers)
    shop = _shop(random, customers, bank)
    telco = _telco(random, customers)
    bank["default"] = _defaults(random, bank, shop, telco)
    _lose_values(random, bank, {"income": 0.06, "savings": 0.12, "employment": 0.03, "owns_home": 0.05})
    _lose_values(random, shop, {"return_rate": 0.1, "favourite_category": 0.08, "payment": 0.02})
    _lose_values(random, telco, {"data_gb": 0.07, "contract": 0.02, "roaming": 0.04})
    ids = np.array([f"C{number:07d}" for number in random.choice(10**7, customers, replace=False)])
    tables = {}
    for party, columns in zip(PARTIES, (bank, shop, telco), strict=True):
        rows = random.permutation(customers)[: max(1, round(HELD_SHARE * customers))]
        held = {"customer": ids[rows], **{name: values[rows] for name, values in columns.items()}}
        labels = "default" if party == "bank" else None
        tables[party] = Table.of(held, ids="customer", labels=labels, owner=party)
    return tables


Columns = dict[str, npt.NDArray[Any]]


def _bank(random: np.random.Generator, n: int) -> Columns:
    employment = _levels(random, n, _EMPLOYMENT)
    age = np.clip(random.normal(44, 14, n) + 24 * (employment == "retired") - 18 * (employment == "student"), 18, 95)
    earning = np.where(np.isin(employment, ["student", "unemployed"]), 0.45, 1.0)
    income = np.round(earning * random.lognormal(8.4, 0.45, n), 2)
    return {
        "age": age.astype(np.int64),
        "income": income,
        "balance": np.round(random.normal(0.6, 1.1, n) * income, 2),
        "savings": np.round(random.lognormal(8, 1.6, n), 2),
        "years_as_customer": np.minimum(random.poisson(8, n), age - 16).astype(np.int64),
        "loans": random.poisson(0.8, n),
        "employment": employment,
        "city": _levels(random, n, _CITY),
        "owns_home": (random.random(n) < 0.35).astype(object),
    }


def _shop(random: np.random.Generator, n: int, bank: Columns) -> Columns:
    orders = random.poisson(random.gamma(2.0, 3.0, n))
    return {
        "orders": orders,
        "spend": np.round(orders * random.lognormal(3.6, 0.6, n) * (bank["income"] / 5000) ** 0.3, 2),
        "return_rate": np.round(random.beta(1.5, 6, n), 3),
        "days_since_order": np.minimum(random.exponential(60, n).astype(np.int64), 730),
        "favourite_category": _levels(random, n, _CATEGORY),
        "payment": _levels(random, n, _PAYMENT),
        "newsletter": random.random(n) < 0.4,
    }


def _telco(random: np.random.Generator, n: int) -> Columns:
    return {
        "minutes": np.round(random.gamma(2.0, 90.0, n), 1),
        "data_gb": np.round(random.lognormal(1.5, 1.0, n), 2),
        "unpaid_bills": random.poisson(random.gamma(0.6, 1.0, n)),
        "months_with_contract": random.integers(0, 120, n),
        "contract": _levels(random, n, _CONTRACT),
        "roaming": (random.random(n) < 0.25).astype(object),
    }


def _defaults(random: np.random.Generator, bank: Columns, shop: Columns, telco: Columns) -> npt.NDArray[np.int64]:
    poor = -_standard(np.log(bank["income"]))
    overdrawn = bank["balance"] < 0
    pays_later = shop["payment"] == "pay later"
    unpaid = np.minimum(telco["unpaid_bills"], 4)
    score = (
        0.7 * poor
        + 0.9 * overdrawn
        + 0.8 * (bank["employment"] == "unemployed")
        - 0.3 * _standard(np.log(bank["savings"]))
        + 1.1 * pays_later
        + 0.7 * _standard(shop["return_rate"])
        + 0.5 * (telco["contract"] == "prepaid")
        + 0.7 * unpaid
        # Who spends more than their income allows, or has debts on two sides, is worse off than the sum says.
        + 0.6 * poor * _standard(np.log1p(shop["spend"]))
        + 0.6 * overdrawn * np.minimum(unpaid, 2)
        + random.logistic(0, 1, len(poor))
    )
    return np.asarray(score > np.quantile(score, 1 - POSITIVE_SHARE), dtype=np.int64)


def _levels(random: np.random.Generator, n: int, shares: dict[str, float]) -> npt.NDArray[Any]:
    return np.array(list(shares), dtype=object)[random.choice(len(shares), n, p=list(shares.values()))]


def _standard(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    return np.asarray((values - values.mean()) / (values.std() + 1e-9), dtype=np.float64)


def _lose_values(random: np.random.Generator, columns: Columns, shares: dict[str, float]) -> None:
    for name, share in shares.items():
        missing = np.nan if columns[name].dtype == np.float64 else None
        columns[name][random.random(len(columns[name])) < share] = missing
