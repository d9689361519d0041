"""What split networks send over each line, before they send it; see `colonnade.models.traffic`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from colonnade.models.networks.cut import Embedding, Gradient, Outline, Verdict
from colonnade.models.traffic import Sizes, Traffic, Training
from colonnade.roles import Roles
from colonnade.wire.codec import encode

if TYPE_CHECKING:
    from colonnade.models.networks.labels_at_server import Served
    from colonnade.models.networks.split import SplitNetwork
    from colonnade.models.networks.ushape import UShape


def with_label_party(
    model: SplitNetwork, roles: Roles, line: tuple[str, str], n_rows: int, sizes: Sizes
) -> Traffic | None:
    """What a network whose top is at the label party sends."""
    label, feature = _ends(line, roles.label, roles.features)
    if not label or not feature:
        return Traffic()
    width: int | None = model.embedding
    if model.top is None:
        width = 1 if model.task == "regression" else sizes.get(label, {}).get("classes")
    if width is None:
        return None
    training = Training.of(model, n_rows)
    down = len(encode(Outline(width))) + training.in_steps(Gradient, width) + training.verdicts(Verdict)
    sent = {feature: training.in_all(Embedding, width), label: down}
    return Traffic(sent, 1 + training.round_trips, training.sure)


def ushaped(model: UShape, roles: Roles, line: tuple[str, str], n_rows: int, sizes: Sizes) -> Traffic | None:
    """What a network sends whose top is at a server and whose last layer is at the label party."""
    from colonnade.models.networks.ushape import Hidden, HiddenGradient, Rows

    training, width = Training.of(model, n_rows), model.embedding
    label, feature = _ends(line, roles.label, roles.features)
    verdicts = training.verdicts(Verdict)
    if label and feature:
        return Traffic({label: verdicts}, 0, training.sure)
    server, feature = _ends(line, roles.server, roles.features)
    if server and feature:
        sent = {feature: training.in_all(Embedding, width), server: training.in_steps(Gradient, width)}
        return Traffic(sent, len(training.steps), training.sure)
    embeds = sizes.get(str(roles.label), {}).get("embeds")
    if not server or not label or embeds is None:
        return None if server and label else Traffic()
    up = len(encode(Rows(n_rows, embeds))) + training.in_steps(HiddenGradient, width) + verdicts
    down = training.in_all(Hidden, width)
    if embeds:
        up += training.in_all(Embedding, width)
        down += training.in_steps(Gradient, width)
    return Traffic({label: up, server: down}, training.round_trips, training.sure)


def served(model: Served, roles: Roles, line: tuple[str, str], n_rows: int, sizes: Sizes) -> Traffic | None:
    """What a network sends whose top and labels are at a server."""
    from colonnade.models.networks.labels_at_server import Labels, Rows

    training, width = Training.of(model, n_rows), model.embedding
    server, feature = _ends(line, roles.server, roles.features)
    label, _ = _ends(line, roles.label, roles.features)
    if not server:
        return Traffic()
    up, down = training.in_all(Embedding, width), training.in_steps(Gradient, width)
    verdicts = training.verdicts(Verdict)
    if feature:
        return Traffic({feature: up, server: down + verdicts}, training.round_trips, training.sure)
    embeds = sizes.get(label, {}).get("embeds")
    if embeds is None:
        return None
    once = len(encode(Rows(n_rows, embeds))) + len(encode(Labels(2, np.zeros(n_rows, np.float32))))
    sent = {label: once + embeds * up, server: embeds * down + verdicts}
    return Traffic(sent, embeds * training.round_trips, training.sure)


def _ends(line: tuple[str, str], one: str | None, others: tuple[str, ...]) -> tuple[str, str]:
    """Which end of a line is the one party, and which is one of others; empty where none is."""
    return next((name for name in line if name == one), ""), next((name for name in line if name in others), "")
