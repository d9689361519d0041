import pytest

from colonnade.data import load


@pytest.fixture(scope="session")
def tables():
    """A bank with labels and a shop, each with half of the measurements of one set."""
    return load("breast-cancer").split()
