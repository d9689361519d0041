"""Defences of what a feature party sends do what they say, also in predictions."""

import numpy as np
import pytest
import torch

from colonnade.attacks import EpochRidge, PassiveRidge
from colonnade.attacks.base import Grant
from colonnade.auditing.attempt import Attempt, PartyRecord
from colonnade.defences import AdversarialReconstructor, DimensionLimit, EmbeddingNoise, SignHash
from colonnade.errors import PlanError
from colonnade.models import SplitClassifier
from colonnade.models.networks.messages import Embedding
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.secret import Secret
from colonnade.tables.encode import centred
from colonnade.tables.table import Table

ROLES = Roles(label="bank", features=("shop",))
MODEL = SplitClassifier(epochs=6, batch_size=25, embedding=6, n_iter_no_change=None)


@pytest.fixture(scope="module")
def tables():
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 7))
    y = (x @ random.normal(size=7) > 0).astype(np.int64)
    theirs = {f"b{i}": x[:, i] for i in range(2, 7)}
    own = {"id": range(200), "a0": x[:, 0], "a1": x[:, 1], "y": y}
    return {"bank": Table.of(own, labels="y"), "shop": Table.of({"id": range(200), **theirs})}


@pytest.fixture(scope="module")
def run(tables):
    def fit(defence, model=MODEL):
        return simulate(model.fit, tables, roles=ROLES, defences={"shop": [defence] if defence else []}, keep="all")

    return fit


def sent(run, party="shop"):
    return [each.message.values for each in run.transcripts[party].messages(Embedding, sent=True)]


def rebuilt(run, tables, attack):
    """The share of the shop's variance that an attack rebuilds, of the rows it does not know."""
    values, columns = centred(tables["shop"])
    rows = np.arange(60)
    grant = Grant(0, rows, owner="shop", columns=columns, records=values[rows])
    guess = attack.guess(Attempt(attack, "bank", grant, 0).view_on(PartyRecord.of(run, "bank")))
    return 1 - float(((guess.values - values[guess.rows])[60:] ** 2).mean())


def test_only_signs_leave_and_every_bit_is_as_often_one_as_not(run, tables):
    fitted = run(SignHash())
    values = np.concatenate(sent(fitted))
    assert set(np.unique(values)) == {-1.0, 1.0}
    assert np.abs(values.mean(axis=0)).max() < 0.3
    shares = {name: share.predict for name, share in fitted.results.items()}
    predicted = simulate(shares, tables, roles=ROLES, defences={"shop": [SignHash()]}, keep="all")
    assert set(np.unique(np.concatenate(sent(predicted)))) == {-1.0, 1.0}
    labels = np.asarray(tables["bank"].labels)
    assert (predicted.results["bank"].values == labels).mean() > 0.75


def test_only_the_first_numbers_leave(run):
    values = np.concatenate(sent(run(DimensionLimit(width=2))))
    assert (values[:, 2:] == 0).all()
    assert np.ptp(values[:, :2], axis=0).min() > 0


def test_a_record_has_the_same_noise_in_every_epoch_and_in_predictions(tables):
    frozen = MODEL.clone().set_params(learning_rate={"shop": 1e-12, "default": 1e-3})
    noise = EmbeddingNoise(sigma=1.0)
    fitted = simulate(frozen.fit, tables, roles=ROLES, defences={"shop": [noise]}, keep="all")
    seen = {}
    for each in fitted.transcripts["shop"].messages(Embedding, sent=True):
        for row, value in zip(each.rows, each.message.values, strict=True):
            seen.setdefault(int(row), []).append(value)
    drawn = np.array([seen[row] for row in range(200)])
    assert drawn.shape == (200, 6, 6)
    assert np.abs(drawn - drawn[:, :1]).max() < 1e-5
    shares = {name: share.predict for name, share in fitted.results.items()}
    later = {name: table.take(np.arange(100, 200)) for name, table in tables.items()}
    predicted = simulate(shares, later, roles=ROLES, defences={"shop": [EmbeddingNoise(sigma=1.0)]}, keep="all")
    assert np.abs(np.concatenate(sent(predicted)) - drawn[100:, 0]).max() < 1e-5


def test_a_mean_over_epochs_does_not_take_the_noise_away_but_a_difference_does(run, tables):
    wide = MODEL.clone().set_params(embedding=16)
    open_run, noisy = run(None, wide), run(EmbeddingNoise(sigma=2.0), wide)
    assert rebuilt(open_run, tables, PassiveRidge()) > 0.85
    for attack in (PassiveRidge(), EpochRidge()):
        assert rebuilt(noisy, tables, attack) < 0.2
    assert rebuilt(noisy, tables, EpochRidge(read="difference")) > 0.6


def test_the_ledger_says_that_noise_once_per_record_is_not_private(run):
    spent = run(EmbeddingNoise()).ledgers["shop"].spent(Secret.FEATURES, 1e-5)
    assert str(spent) == "not private: embeddings under EmbeddingNoise(sigma=0.3), whose noise cancels between epochs"


def test_the_reconstructor_pushes_the_bottom_away_from_what_it_can_rebuild(run):
    strong = run(AdversarialReconstructor(weight=50.0), MODEL.clone().set_params(epochs=15))
    plain = run(None, MODEL.clone().set_params(epochs=15))
    assert "AdversarialReconstructor(weight=50)" in {u for e in strong.transcripts["shop"].entries for u in e.under}
    weights = [result.results["shop"].bottom_.state_dict() for result in (strong, plain)]
    assert any(not torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_the_reconstructor_is_refused_where_embeddings_are_shares_of_logits(run):
    with pytest.raises(PlanError, match="Use AdversarialReconstructor"):
        run(AdversarialReconstructor(), MODEL.clone().set_params(fusion="sum", top=None))
