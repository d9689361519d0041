import numpy as np
import pytest
from sklearn.base import clone, is_classifier
from sklearn.datasets import make_classification
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from colonnade.errors import DataError
from colonnade.models.networks.split import SplitClassifier
from colonnade.models.vertical import Vertical
from colonnade.roles import Roles

X, Y = make_classification(240, 8, n_informative=6, class_sep=1.5, random_state=0)
BOTH = Roles(label="bank", features=("shop",))
COLUMNS = {"bank": range(4), "shop": range(4, 8)}


def vertical(**settings):
    settings = {"epochs": 6, "n_iter_no_change": None, "batch_size": 32, "learning_rate": 0.02, **settings}
    return Vertical(SplitClassifier(**settings), columns=COLUMNS, roles=BOTH, seed=0)


def test_scikit_learn_can_cross_validate_it():
    assert cross_val_score(vertical(), X, Y, cv=3).mean() > 0.75


def test_scikit_learn_can_search_over_it():
    search = GridSearchCV(vertical(), {"estimator__learning_rate": [1e-6, 0.02]}, cv=2).fit(X, Y)
    assert search.best_params_ == {"estimator__learning_rate": 0.02}


def test_it_stands_at_the_end_of_a_pipeline():
    pipeline = make_pipeline(StandardScaler(), vertical()).fit(X, Y)
    assert pipeline.score(X, Y) > 0.75
    assert pipeline.predict_proba(X).shape == (240, 2)


def test_a_clone_is_unfitted_and_equal():
    fitted = vertical().fit(X, Y)
    cloned = clone(fitted)
    assert not hasattr(cloned, "shares_")
    np.testing.assert_array_equal(cloned.fit(X, Y).predict_proba(X), fitted.predict_proba(X))


def test_scikit_learn_takes_it_for_a_classifier():
    assert is_classifier(vertical())


def test_frames_are_cut_by_the_names_of_their_columns():
    import pandas as pd

    frame = pd.DataFrame(X, columns=[f"c{i}" for i in range(8)])
    frame["city"] = np.where(Y == 1, "Bern", "Köln")
    columns = {"bank": ["c0", "c1"], "shop": ["c5", "city"]}
    model = Vertical(SplitClassifier(epochs=8, n_iter_no_change=None, batch_size=32), columns=columns, roles=BOTH)
    assert model.fit(frame, Y).score(frame, Y) > 0.95


def test_a_prediction_before_training_is_refused():
    with pytest.raises(NotFittedError):
        vertical().predict(X)


def test_roles_without_a_label_party_are_refused():
    with pytest.raises(DataError, match="The label party should be one of shop, but is None"):
        Vertical(SplitClassifier(), columns=COLUMNS, roles=Roles(features=("shop",))).fit(X, Y)
