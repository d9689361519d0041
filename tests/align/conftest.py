from collections.abc import Iterator

import pytest

from colonnade.align import settings


@pytest.fixture(scope="module", autouse=True)
def few_ids_make_a_bucket() -> Iterator[None]:
    """Let a few ids have several buckets also where numbers are told of each; who tests that sets it back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(settings, "FEWEST_COUNTED", 1)
        yield
