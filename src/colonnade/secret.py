"""Secret: what messages and privacy events are about."""

from __future__ import annotations

from enum import StrEnum


class Secret(StrEnum):
    """Something a party holds and another party might learn; membership is who was among the rows of a run."""

    IDS = "ids"
    FEATURES = "features"
    LABELS = "labels"
    MODEL = "model"
    MEMBERSHIP = "membership"
