"""Every model that hides something keeps the contract of hiding, and each broken one is found out."""

from functools import cache, partial

import numpy as np
import pytest

from colonnade.crypto.profiles import SHARES, Budget
from colonnade.crypto.rlwe import PublicKey, SecretKey
from colonnade.crypto.sampling import Stream
from colonnade.curves import BSplines
from colonnade.data import load
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.models.functional.messages import MaskedProducts
from colonnade.models.functional.moment_regression import MomentRegression
from colonnade.models.glm.estimator import LogisticRegression
from colonnade.models.glm.messages import (
    MaskedProduct,
    MaskedScores,
    MaskedSums,
    PublicKeyBytes,
    ScoreMaskSeed,
    SharedVector,
    StillVote,
)
from colonnade.models.trees.estimator import SecureBoostClassifier
from colonnade.roles import Roles
from colonnade.tables.table import Table
from colonnade.testing import HIDING_CHECKS, Setup, check_hiding
from colonnade.testing.hiding import Watched, WatchedRun, hides
from colonnade.wire.message import Ciphertexts, Message, sealed, unsealed

TWO = Roles(label="bank", features=("shop",))
THREE = Roles(label="bank", features=("shop", "telco"))
JUDGED = Roles(label="bank", features=("shop", "telco"), arbiter="judge")
COLUMNS = {"bank": ["age", "income"], "shop": ["orders", "spend"], "telco": ["minutes"]}
logistic = partial(LogisticRegression, max_iter=2, rows_per_column=1, fewest_rows=1)
boost = partial(SecureBoostClassifier, n_estimators=1, max_depth=2, max_bin=3, leak_budget=None)


def customers(n_rows, parties):
    tables = load("bank-shop-telco", rows=n_rows).split()
    return {name: tables[name].select(COLUMNS[name]) for name in parties}


def curves(roles):
    drawn = FunctionalSetting(n=40, p=3, active=(1,), basis=BSplines((0.0, 1.0), 5)).draw(1)[0]
    tables = drawn.tables(len(roles.features))
    return dict(zip((roles.label, *roles.features), tables.values(), strict=True))


def moments():
    return MomentRegression(clip_x=3.0, clip_y=3.0, epsilon=1e6)


MODELS = {
    "regression with an arbiter": lambda: Setup(logistic, customers(80, THREE.parties), JUDGED),
    "regression under Paillier": lambda: Setup(
        partial(logistic, backend="paillier", max_iter=1), customers(24, THREE.parties), JUDGED
    ),
    "regression on shares": lambda: Setup(logistic, customers(80, THREE.parties), THREE),
    "moments with an arbiter": lambda: Setup(moments, curves(THREE), JUDGED),
    "moments on shares": lambda: Setup(moments, curves(TWO), TWO),
    "trees with exact sums": lambda: Setup(boost, customers(60, THREE.parties), THREE),
    "trees with noisy sums": lambda: Setup(partial(boost, sums="noisy", epsilon=5.0), customers(60, TWO.parties), TWO),
    "trees with hidden sums": lambda: Setup(partial(boost, sums="hidden"), customers(60, THREE.parties), THREE),
    "trees under Paillier": lambda: Setup(
        partial(boost, backend="paillier", max_depth=1), customers(20, TWO.parties), TWO
    ),
}
QUICK = ("regression with an arbiter", "regression on shares", "moments with an arbiter", "moments on shares")


@cache
def watched(model):
    return Watched.of(MODELS[model]())


@pytest.mark.parametrize(
    "model", [pytest.param(model, marks=[] if model in QUICK else [pytest.mark.slow]) for model in MODELS]
)
def test_a_model_hides_by_draws_that_serve_once(model):
    for check in HIDING_CHECKS:
        check(watched(model))


@pytest.mark.slow
def test_every_message_that_hides_something_crosses_in_a_checked_model():
    """Nobody adds a hidden message that no model above sends."""
    crossed = {said.message.kind for model in MODELS for said, _ in watched(model).parts}
    hiding = {
        kind
        for kind, message in Message.kinds.items()
        if message.__module__.startswith("colonnade.models.") and hides(message)
    }
    assert hiding == crossed


@pytest.mark.parametrize("model", ["regression with an arbiter", "regression on shares", "moments on shares"])
def test_every_flooded_coefficient_is_counted_before_it_is_sent(model, monkeypatch):
    """A flood hides noise for so many answers over all runs: what is not counted would be free."""
    counted, honest = [], Budget.spend

    def spend(budget, values):
        counted.append(values)
        honest(budget, values)

    monkeypatch.setattr(Budget, "spend", spend)
    flooded = [
        len(ciphertexts.data)
        for said in WatchedRun.of(MODELS[model](), seed=0).said
        for ciphertexts in vars(said.message).values()
        if isinstance(said.message, MaskedSums | MaskedProduct | MaskedProducts)
        and isinstance(ciphertexts, Ciphertexts)
    ]
    assert sum(counted) == sum(flooded) * SHARES.n > 0


class Toy:
    """Two feature parties send numbers to the label party under masks that cancel; `flaw` says what is wrong."""

    def __init__(self, flaw=""):
        self.flaw = flaw

    def fit(self, party):
        if party.name == "bank":
            for line in party.feature_parties:
                line.receive(MaskedScores)
            if self.flaw == "told":
                party.peers["shop"].receive(ScoreMaskSeed)
        else:
            seed = self._seed(party)
            own = np.arange(1, 9, dtype=np.uint64) << np.uint64(40)
            mask = (
                np.zeros(8, np.uint64)
                if self.flaw == "bare"
                else Stream(seed).words(1 if self.flaw == "one mask" else 8)
            )
            party.label_party.send(MaskedScores(own + mask if party.name == "shop" else own * np.uint64(3) - mask))
            if self.flaw == "told" and party.name == "shop":
                party.label_party.send(ScoreMaskSeed(seed))
            if self.flaw == "twice":
                Stream(seed).words(8)
        return self

    def _seed(self, party):
        if party.name == "telco":
            return party.peers["shop"].receive(ScoreMaskSeed).seed
        seed = bytes(32) if self.flaw == "constant" else Stream().raw(32)
        party.peers["telco"].send(ScoreMaskSeed(seed))
        return seed

    def predict(self, party):
        return None


class Claiming(Toy):
    """Says that a vote is masked, which holds numbers as they are."""

    def fit(self, party):
        if party.name == "bank":
            super().fit(party)
            party.peers["shop"].receive(StillVote)
        else:
            super().fit(party)
            if party.name == "shop":
                party.label_party.send(StillVote(0, 1), under=("mask",))
        return self


class Multiplying(Toy):
    """The label party's encrypted numbers are multiplied by the feature party's."""

    def fit(self, party):
        if party.name == "bank":
            key = SecretKey(profile=SHARES).public
            line = party.peers["shop"]
            line.send(PublicKeyBytes(np.frombuffer(key.to_bytes(), np.uint8)))
            stream = Stream(bytes(32)) if self.flaw == "one secret" else Stream()
            zeros = np.zeros((1, len(SHARES.primes), SHARES.n), np.uint32)
            for step in range(2):
                data = key.encrypted(zeros, stream)
                if self.flaw == "one secret":
                    # The stream begins again, so the secret does; the errors are other ones.
                    stream = Stream(bytes(32))
                    data = _with_other_errors(key, data, step)
                line.send(SharedVector(step, sealed(data, key)))
            line.receive(MaskedProduct)
        else:
            line = party.label_party
            key = PublicKey.from_bytes(line.receive(PublicKeyBytes).key.tobytes(), SHARES)
            line.receive(SharedVector)
            data = unsealed(line.receive(SharedVector).ciphertexts, key, 1, "bank")
            product = key.product(key.prepare(np.arange(8)[:, None], SHARES.n), data)
            hidden = key.masked(product, SHARES.n, 1)[0]
            if self.flaw == "no zero":
                hidden[:, 1] = product[:, 1]
            line.send(MaskedProduct(0, sealed(hidden, key)))
        return self


def _with_other_errors(key, data, step):
    errors = np.zeros((1, 2, len(SHARES.primes), SHARES.n), np.uint32)
    errors[..., 0] = step
    return key._ring.add(data, key._ring.forward(errors))


def tables(parties):
    return {name: Table.of({"id": range(4), "x": range(4)}) for name in parties}


def failing(make, roles):
    """The checks that a model fails."""
    seen = Watched.of(Setup(make, tables(roles.parties), roles))
    failed = set()
    for check in HIDING_CHECKS:
        try:
            check(seen)
        except AssertionError:
            failed.add(check.__name__)
    return failed


@pytest.mark.parametrize(
    ("flaw", "checks"),
    [
        ("", set()),
        ("bare", {"no_hidden_word_crosses_twice", "hidden_words_are_far_apart"}),
        ("one mask", {"hidden_words_are_far_apart"}),
        ("constant", {"no_hidden_word_crosses_twice"}),
        ("told", {"a_secret_reaches_one_party"}),
        ("twice", {"a_party_expands_no_key_twice"}),
    ],
)
def test_masks_that_are_missing_known_or_used_again_are_found_out(flaw, checks):
    assert failing(partial(Toy, flaw), THREE) == checks


def test_a_message_that_claims_a_mask_and_holds_numbers_as_they_are_is_found_out():
    assert failing(Claiming, THREE) == {"what_claims_to_hide_is_looked_at"}


@pytest.mark.parametrize("flaw", ["", "no zero", "one secret"])
def test_ciphertexts_from_which_others_follow_are_found_out(flaw):
    assert failing(partial(Multiplying, flaw), TWO) - {"a_party_expands_no_key_twice"} == (
        {"no_ciphertext_follows_from_another"} if flaw else set()
    )


class Open(Toy):
    """Sends nothing."""

    def fit(self, party):
        return self


def test_a_model_that_hides_nothing_is_told_so():
    with pytest.raises(AssertionError, match="should send something hidden"):
        check_hiding(Open, tables(TWO.parties), TWO)
