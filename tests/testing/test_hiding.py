"""Every protocol that hides something keeps the contract of hiding, and each broken one is found out."""

import secrets
from functools import cache, partial

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from colonnade.align import Align, Limits, Settings
from colonnade.crypto.profiles import SHARES, Budget
from colonnade.crypto.rlwe import PublicKey, SecretKey
from colonnade.crypto.sampling import Stream
from colonnade.curves import BSplines
from colonnade.data import load
from colonnade.data.functional.generator import FunctionalSetting
from colonnade.models.functional.messages import MaskedProducts, MaskSeed
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
from colonnade.privacy.randomness import Randomness
from colonnade.roles import Roles
from colonnade.tables.table import Table
from colonnade.testing import HIDING_CHECKS, check_hiding
from colonnade.testing.hiding import Watched, WatchedRun, hides
from colonnade.wire.message import Ciphertexts, Message, sealed, unsealed

TWO = Roles(label="bank", features=("shop",))
THREE = Roles(label="bank", features=("shop", "telco"))
ADVISED = Roles(label="bank", features=("shop",), arbiter="judge")
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


def three_classes(parties):
    held = customers(80, parties)
    return held | {"bank": held["bank"].with_labels(np.arange(len(held["bank"])) % 3)}


def people(parties):
    """Lists of which some people are in two and some in all."""
    return {name: Table.of({"id": range(5 * place, 40 + 5 * place)}) for place, name in enumerate(parties)}


def align(topology):
    return Align(Settings(topology=topology), limits=Limits(fewest=1))


PROTOCOLS = {
    "regression with an arbiter": lambda: (logistic, customers(80, THREE.parties), JUDGED),
    "regression under Paillier": lambda: (
        partial(logistic, backend="paillier", max_iter=1),
        customers(24, THREE.parties),
        JUDGED,
    ),
    "regression on shares": lambda: (logistic, customers(80, THREE.parties), THREE),
    "three classes with an arbiter": lambda: (logistic, three_classes(THREE.parties), JUDGED),
    "three classes on shares": lambda: (logistic, three_classes(THREE.parties), THREE),
    "moments with an arbiter": lambda: (moments, curves(THREE), JUDGED),
    "moments on shares": lambda: (moments, curves(TWO), TWO),
    "trees with exact sums": lambda: (boost, customers(60, THREE.parties), THREE),
    "trees with noisy sums": lambda: (partial(boost, sums="noisy", epsilon=5.0), customers(60, TWO.parties), TWO),
    "trees with hidden sums": lambda: (partial(boost, sums="hidden"), customers(60, THREE.parties), THREE),
    "trees under Paillier": lambda: (partial(boost, backend="paillier", max_depth=1), customers(20, TWO.parties), TWO),
    "an alignment in a star": lambda: (partial(align, "star"), people(THREE.parties), JUDGED),
    "an alignment in a ring": lambda: (partial(align, "ring"), people(THREE.parties), JUDGED),
}
QUICK = (
    "regression with an arbiter",
    "regression on shares",
    "moments with an arbiter",
    "moments on shares",
    "an alignment in a star",
    "an alignment in a ring",
)


@cache
def watched(protocol):
    return Watched.of(*PROTOCOLS[protocol]())


@pytest.mark.parametrize(
    "protocol",
    [pytest.param(protocol, marks=[] if protocol in QUICK else [pytest.mark.slow]) for protocol in PROTOCOLS],
)
def test_a_protocol_hides_by_draws_that_serve_once(protocol):
    for check in HIDING_CHECKS:
        check(watched(protocol))


@pytest.mark.slow
def test_every_message_that_hides_something_crosses_in_a_checked_protocol():
    """Nobody adds a hidden message that no protocol above sends."""
    crossed = {type(said.message) for protocol in PROTOCOLS for said in watched(protocol).run.said}
    ours = [message for message in Message.kinds.values() if message.__module__.startswith("colonnade.")]
    assert {message.kind for message in ours if hides(message)} == {each.kind for each in crossed if hides(each)}


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
        for said in WatchedRun.of(*PROTOCOLS[model](), seed=0, system=0).said
        for ciphertexts in vars(said.message).values()
        if isinstance(said.message, MaskedSums | MaskedProduct | MaskedProducts)
        and isinstance(ciphertexts, Ciphertexts)
    ]
    assert sum(counted) == sum(flooded) * SHARES.n > 0


class Toy:
    """Two feature parties send numbers to the label party under masks that cancel; `flaw` says what is wrong."""

    def __init__(self, flaw=""):
        self.flaw = flaw

    def __call__(self, party):
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

    def _seed(self, party):
        if party.name == "telco":
            return party.peers["shop"].receive(ScoreMaskSeed).seed
        seed = bytes(32) if self.flaw == "constant" else Stream().raw(32)
        party.peers["telco"].send(ScoreMaskSeed(seed))
        return seed


def dealing(source):
    """The arbiter deals the seed of a mask that hides what the label party sends; `source` draws the seed."""

    def deal(party):
        if party.name == "judge":
            party.label_party.send(MaskSeed(source(party)))
        elif party.name == "bank":
            party.arbiter.receive(MaskSeed)

    return lambda: deal


@pytest.mark.parametrize(
    ("source", "checks"),
    [
        (lambda party: party.random.child("mask").key, set()),
        (lambda party: party.shared.generator("mask").bytes(32), {"no_hidden_word_crosses_twice"}),
        (lambda party: Randomness.seeded(party.plan.seed).key, {"no_hidden_word_crosses_twice"}),
        (lambda party: bytes.fromhex(party.plan.hash), {"no_hidden_word_crosses_twice"}),
        (lambda party: np.random.default_rng().bytes(32), {"what_crosses_follows_from_watched_draws"}),
    ],
    ids=["own", "shared", "the plan's seed", "the plan", "elsewhere"],
)
def test_masks_that_follow_from_what_all_parties_know_or_from_elsewhere_are_found_out(source, checks):
    assert failing(dealing(source), ADVISED) == checks


def expanding_twice(party):
    """A party makes two streams from one key, without a class of ours."""
    if party.name == "shop":
        key = secrets.token_bytes(16)
        for _ in range(2):
            words = Cipher(AES(key), CTR(bytes(16))).encryptor().update(bytes(64))
        party.label_party.send(MaskedScores(np.frombuffer(words, np.uint64)))
    else:
        party.peers["shop"].receive(MaskedScores)


def test_two_streams_from_one_key_are_found_out_whatever_the_cipher():
    assert failing(lambda: expanding_twice, TWO) == {"a_party_expands_no_key_twice"}


def telling_the_key(party):
    """A party sends the key of its mask as a number that claims to be no secret, and then what it masks."""
    if party.name == "shop":
        key = secrets.token_bytes(32)
        party.label_party.send(MaskedScores(np.frombuffer(key, np.uint64)))
        party.label_party.send(MaskedScores(Stream(key).words(8)))
    else:
        for _ in range(2):
            party.peers["shop"].receive(MaskedScores)


def test_a_mask_whose_key_crosses_openly_is_found_out():
    assert failing(lambda: telling_the_key, TWO) == {"no_expanded_key_crosses_openly"}


@pytest.mark.parametrize("topology", ["star", "ring"])
@pytest.mark.parametrize(
    ("place", "kind"), [("state.AlignState.masking_key", "align/masked"), ("order._order_key", "align/order-point")]
)
def test_an_alignment_under_a_key_that_everybody_can_guess_is_found_out(topology, place, kind, monkeypatch):
    monkeypatch.setattr(f"colonnade.align.{place}", lambda *of: bytes(range(32)))
    with pytest.raises(AssertionError, match=f"words of .*{kind}.* come again"):
        check_hiding(partial(align, topology), people(THREE.parties), JUDGED)


class Claiming(Toy):
    """Says that a vote is masked, which holds numbers as they are."""

    def __call__(self, party):
        super().__call__(party)
        if party.name == "bank":
            party.peers["shop"].receive(StillVote)
        elif party.name == "shop":
            party.label_party.send(StillVote(0, 1), under=("mask",))


class Multiplying(Toy):
    """The label party's encrypted numbers are multiplied by the feature party's."""

    def __call__(self, party):
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


def _with_other_errors(key, data, step):
    errors = np.zeros((1, 2, len(SHARES.primes), SHARES.n), np.uint32)
    errors[..., 0] = step
    return key._ring.add(data, key._ring.forward(errors))


def tables(roles):
    return {name: Table.of({"id": range(4), "x": range(4)}) for name in roles.holders}


def failing(make, roles):
    """The checks that a protocol fails."""
    seen = Watched.of(make, tables(roles), roles)
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


def test_a_protocol_that_hides_nothing_is_told_so():
    with pytest.raises(AssertionError, match="should send something hidden"):
        check_hiding(lambda: lambda party: None, tables(TWO), TWO)
