"""What a training says of its means: no mean is further off, on a grid or in a run, and a tenth would be too little."""

from dataclasses import asdict, replace
from typing import get_type_hints

import numpy as np
import pytest
from scipy.special import expit, softmax

from colonnade.crypto.shares import fixed, reals
from colonnade.models.glm.approximation import Approximation
from colonnade.models.glm.arbiter import EncryptedSide, Scores
from colonnade.models.glm.estimator import LinearRegression, LogisticRegression, PoissonRegression
from colonnade.models.glm.families import CLASS_MEANS, LINEAR, LOGISTIC, POISSON, SOFTPLUS, of_all_classes
from colonnade.models.glm.means import log_sums_of_others
from colonnade.models.glm.rows import scores_of
from colonnade.models.glm.shares import COEFFICIENT_BITS, COLUMN_BITS, VALUE_BITS, ComputingSide, MatrixSide
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.table import Table

N, BITS = 420, 20
FAMILIES = {
    "linear": (LinearRegression, LINEAR),
    "logistic": (LogisticRegression, LOGISTIC),
    "three classes": (LogisticRegression, LOGISTIC),
    "Poisson": (PoissonRegression, POISSON),
}
PROTOCOLS = {"arbiter": Roles(label="bank", features=("shop", "telco"), arbiter="judge")}
PROTOCOLS["shares"] = replace(PROTOCOLS["arbiter"], arbiter=None)


def exact(family, scores):
    """The means (models, rows) of a family, with those of the last of several classes."""
    return family.mean(scores) if len(scores) == 1 else softmax(of_all_classes(scores), axis=0)


def within(known, taken, true, distance=1.0):
    """Whether means (models, rows) are as close to the true ones as an approximation says."""
    most = distance * (known.absolute + known.relative * true)
    if known.last_class is not None:
        taken = np.concatenate([taken, 1 - taken.sum(axis=0, keepdims=True)])
        most = np.concatenate([most[:-1], np.full_like(most[-1:], known.last_class)])
    if known.largest is None:
        return bool((np.abs(taken - true) <= most).all())
    beyond = true > known.largest
    counted = np.abs(taken[beyond] - known.largest) <= 2.0**-12
    return bool((np.abs(taken - true) <= most)[~beyond].all() and counted.all())


def tenths(known, *names):
    """The same with one bound after the other made ten times smaller."""
    return [replace(known, **{name: getattr(known, name) / 10}) for name in names]


def in_units(values, bits=BITS):
    return reals(fixed(values, bits, "values"), bits)


@pytest.mark.parametrize("bits", [BITS, 14])
@pytest.mark.parametrize("family", [LOGISTIC, POISSON], ids=["logistic", "Poisson"])
def test_no_mean_on_a_fine_grid_is_further_off_than_a_training_says(family, bits):
    known = Approximation.of(family, 1, score_off=2.0**-BITS, mean_bits=bits)
    scores = np.linspace(-14, 9, 460_001)[None]
    # Scores in fixed point are the neighbours of the true ones on either side.
    for rounded in (np.floor, np.ceil):
        table = replace(family.table, values=in_units(family.table.values, bits))
        taken = table(np.ldexp(rounded(np.ldexp(scores, BITS)), -BITS))
        assert within(known, taken, exact(family, scores))
        for less in tenths(known, "absolute", *(["relative"] if family is POISSON else [])):
            assert not within(less, taken, exact(family, scores))


@pytest.mark.parametrize(("n_classes", "bits"), [(3, BITS), (3, 6), (4, BITS), (7, BITS), (10, BITS)])
def test_no_mean_of_several_classes_is_further_off_than_a_training_says(n_classes, bits):
    known = Approximation.of(LOGISTIC, n_classes - 1, score_off=2.0 ** -(bits + 1), mean_bits=BITS)
    random = np.random.default_rng(n_classes)
    # Classes that are alike are next to the edge of softplus's table, where it bends most.
    wide, close = (random.normal(0, width, (n_classes - 1, 200_000)) for width in (4.0, 0.05))
    scores = np.hstack([wide, close, close + random.normal(0, 2, (n_classes - 1, 1))])
    every = of_all_classes(in_units(scores, bits))
    others = log_sums_of_others(every, lambda a, b: b + in_units(SOFTPLUS(a - b), bits))
    taken = in_units(CLASS_MEANS(every - others)[:-1])
    assert within(known, taken, exact(LOGISTIC, scores))
    for less in tenths(known, "absolute", "last_class"):
        assert not within(less, taken, exact(LOGISTIC, scores))


def test_the_exact_functions_are_those_of_scipy():
    scores = np.linspace(-9, 9, 1001)[None]
    np.testing.assert_allclose(exact(LOGISTIC, scores), expit(scores), atol=1e-15)


def tables(name, seed=0):
    random = np.random.default_rng(seed)
    values = random.standard_normal((N, 6))
    scores = values @ random.uniform(-1.0, 1.0, 6) + 0.3
    labels = {
        "linear": 20 * scores + random.standard_normal(N) + 100,
        "logistic": (random.random(N) < expit(scores)).astype(np.int64),
        "three classes": np.digitize(scores + random.logistic(size=N), [-1.0, 1.0]),
        "Poisson": random.poisson(np.exp(scores)),
    }[name]
    held = {
        owner: {"id": np.arange(N)} | {f"{owner} {i}": values[:, 2 * place + i] for i in range(2)}
        for place, owner in enumerate(("bank", "shop", "telco"))
    }
    held["bank"]["y"] = labels
    return labels, {o: Table.of(data, labels="y" if o == "bank" else None, owner=o) for o, data in held.items()}


class Seen:
    """The scores at which parties take means, these means, and how far parts of scores are off at the end."""

    def __init__(self, monkeypatch):
        self.parts, self.scores, self.means, self.off = {}, {}, {}, {}
        own_part, looked_up, finish = EncryptedSide.own_part, Scores.means, EncryptedSide.finish
        mean, in_range = ComputingSide._mean, MatrixSide._require_in_range

        def part(side, batch):
            found = own_part(side, batch)
            self.parts.setdefault(side.party.name, []).append(found.T)
            return found

        def means(scores, step, epoch, share):
            found = looked_up(scores, step, epoch, share)
            self.means.setdefault(scores.line.leading, []).append((found, scores.fraction))
            return found

        def finished(side):
            point = side.descent.coefficients
            exact = np.concatenate(list(side.rows.of_batch(0, lambda part: part @ point)))
            self.note(side, exact - np.concatenate(list(side.columns.of_batch(0, scores_of, point))))
            return finish(side)

        def on_shares(side, step, scores):
            found = mean(side, step, scores)
            self.scores.setdefault(side.leading, []).append(scores)
            self.means.setdefault(side.leading, []).append((found, VALUE_BITS))
            return found

        def ranged(side, found):
            self.note(side, side.basis.columns @ found - np.ldexp(side.columns @ found, -COLUMN_BITS))
            return in_range(side, found)

        monkeypatch.setattr(EncryptedSide, "own_part", part)
        monkeypatch.setattr(EncryptedSide, "finish", finished)
        monkeypatch.setattr(Scores, "means", means)
        monkeypatch.setattr(ComputingSide, "_mean", on_shares)
        monkeypatch.setattr(MatrixSide, "_require_in_range", ranged)

    def note(self, side, off):
        outputs = of_all_classes(off.T[: side.n_outputs])
        self.off[side.party.name] = float(np.abs(outputs).max())

    @property
    def taken(self):
        """Scores and means (models, rows) of all steps."""
        if self.parts:
            scores = [sum(parts) for parts in zip(*self.parts.values(), strict=True)]
        else:
            shared = zip(self.scores[True], self.scores[False], strict=True)
            scores = [reals(a + b, COLUMN_BITS + COEFFICIENT_BITS) for a, b in shared]
        pairs = zip(self.means[True], self.means[False], strict=True)
        means = [reals(a + b, bits).reshape(scores[0].shape) for (a, bits), (b, _) in pairs]
        return np.concatenate(scores, axis=1), np.concatenate(means, axis=1)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", FAMILIES)
def test_no_mean_of_a_training_is_further_off_than_every_party_says(name, protocol, monkeypatch):
    seen, (model, family), (labels, held) = Seen(monkeypatch), FAMILIES[name], tables(name)
    # Long steps, so that scores are large soon.
    run = simulate(model(max_iter=6, tol=0, alpha=1e-3).fit, held, roles=PROTOCOLS[protocol], seed=3)
    said = {party: share.approximation_ for party, share in run.results.items()}
    own = {"own_score": 0.0, "labels_beyond": None}
    (known,) = {replace(each, **own) for each in said.values()}
    scores, means = seen.taken
    assert np.abs(scores).max() > 1
    distance = 1.0
    if name == "linear":
        distance = float(np.abs(labels - labels.mean()).max()) / LINEAR.loss(labels).scale
    true = exact(family, scores)
    assert within(known, means, true, distance)
    bounds = {"Poisson": ["relative"], "three classes": ["absolute", "last_class"]}.get(name, ["absolute"])
    for less in tenths(known, *bounds):
        assert not within(less, means, true, distance)
    unit = 2 if name == "linear" else 1
    for party, off in seen.off.items():
        assert said[party].own_score / 10 < off / unit <= said[party].own_score
    assert set(seen.off) == set(PROTOCOLS[protocol].holders)
    assert said.get("judge", known).own_score == 0.0


def test_a_linear_mean_is_off_by_rounding_alone_and_by_more_the_more_parties_round():
    of = [Approximation.of(LINEAR, 1, score_off=n * 2.0**-20, mean_bits=19).absolute for n in (1, 2)]
    assert of == [2.0**-21, 2.0**-20]


def test_only_the_label_party_says_how_many_labels_no_mean_reaches():
    labels, held = tables("Poisson")
    labels = np.ones(N, np.int64)
    labels[:2] = 200
    held["bank"] = held["bank"].with_labels(labels)
    for roles in PROTOCOLS.values():
        shares = simulate(PoissonRegression(max_iter=1, tol=0).fit, held, roles=roles).results
        found = {name: share.approximation_.labels_beyond for name, share in shares.items()}
        assert found.pop("bank") == 2 / N
        assert set(found.values()) == {None}
        said = "rates above 54.6 mean rates count as 54.6, and 0.48 % of the labels are above"
        assert said in shares["bank"].summary()
        assert "are above" not in shares["shop"].summary()
    assert "54.6, and no label is above." in str(replace(shares["bank"].approximation_, labels_beyond=0.0, own_score=0))


def test_rows_with_weights_are_scored_by_columns_that_are_not_rounded():
    _, held = tables("linear")
    arrow = held["bank"].to_arrow().append_column("w", [np.linspace(0.5, 1.5, N)])
    held["bank"] = Table.of(arrow, ids="id", labels="y", owner="bank")
    model = LinearRegression(max_iter=1, tol=0, sample_weight="w")
    for protocol, roles in PROTOCOLS.items():
        share = simulate(model.fit, held, roles=roles).results["shop"]
        assert (share.approximation_.own_score == 0.0) == (protocol == "arbiter")


def test_every_number_of_an_approximation_is_a_plain_one():
    known = Approximation.of(LOGISTIC, 2, score_off=2.0**-BITS, mean_bits=BITS, own_score=0.1)
    assert set(get_type_hints(Approximation)) == set(asdict(known))
    assert {type(value) for value in asdict(known).values()} <= {str, float, type(None)}
