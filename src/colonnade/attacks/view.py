"""View: what one party saw in one run, cut to what one attack declared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from colonnade.attacks.base import Grant, Needs
from colonnade.errors import UndeclaredAccess
from colonnade.models.base import Estimator
from colonnade.roles import PublicPlan
from colonnade.storage import read_tree, write_tree
from colonnade.tables.table import Table
from colonnade.wire.message import Float32Array, Message
from colonnade.wire.recording.transcript import Recorded, Transcript

if TYPE_CHECKING:
    from colonnade.attacks.base import Attack

M = TypeVar("M", bound=Message)


class Own:
    """What the attacker holds itself: its table and its share of the model, as far as declared."""

    def __init__(self, needs: Needs, table: Table | None, model: Estimator | None) -> None:
        self._table = table if needs.own_features else None
        self._model = model if needs.own_model else None

    @property
    def table(self) -> Table:
        """The attacker's own rows."""
        if self._table is None:
            raise _undeclared("the attacker's own table", "own_features=True")
        return self._table

    @property
    def model(self) -> Estimator:
        """The attacker's own share of the model."""
        if self._model is None:
            raise _undeclared("the attacker's own model", "own_model=True")
        return self._model


@dataclass(frozen=True)
class View:
    """What one party saw in one run, cut to what one attack declared.

    Reading anything else raises `UndeclaredAccess`: a view holds nothing that the attack did not ask for.
    """

    party: str
    public: PublicPlan
    needs: Needs
    own: Own
    grant: Grant
    seed: int
    _transcript: Transcript

    @classmethod
    def cut(
        cls,
        needs: Needs,
        transcript: Transcript,
        *,
        public: PublicPlan,
        grant: Grant,
        table: Table | None = None,
        model: Estimator | None = None,
        seed: int = 0,
    ) -> View:
        """Cut a party's recording to what an attack declared."""
        kinds = {message.kind for message in needs.messages}
        seen = replace(
            transcript,
            entries=tuple(entry for entry in transcript.entries if entry.kind in kinds),
            means=tuple(mean for mean in transcript.means if mean.kind in kinds),
        )
        granted = grant if needs.known_labels else Grant(grant.n_classes)
        told = grant.candidates if needs.candidates else {}
        if granted.candidates or told:
            granted = replace(granted, candidates=told)
        return cls(transcript.party, public, needs, Own(needs, table, model), granted, seed, seen)

    @cached_property
    def random(self) -> np.random.Generator:
        """The attack's own randomness."""
        return np.random.default_rng(self.seed)

    def messages(self, kind: type[M], *, peer: str | None = None, sent: bool | None = None) -> Iterator[Recorded[M]]:
        """The kept messages of a declared kind."""
        self._require(kind)
        return self._transcript.messages(kind, peer=peer, sent=sent)

    def row_means(self, kind: type[Message], *, peer: str | None = None, sent: bool | None = None) -> Float32Array:
        """The mean per row over epochs of a declared kind of message."""
        self._require(kind)
        return self._transcript.row_means(kind, peer=peer, sent=sent)

    def save(self, directory: Path) -> None:
        """Write the view into a folder, from which the attack can be repeated elsewhere."""
        self._transcript.save(directory / "transcript")
        tree = {
            "public": self.public.to_json(),
            "grant": dict(vars(self.grant)),
            "seed": self.seed,
            "model": None,
        }
        if self.needs.own_features:
            self.own.table.save(directory / "table.arrow")
        if self.needs.own_model:
            self.own.model.save(directory / "model.safetensors")
            tree["model"] = type(self.own.model).__name__
        write_tree(directory / "view.safetensors", tree)

    @classmethod
    def load(cls, directory: Path, attack: Attack, load_model: Callable[[str, Path], Estimator]) -> View:
        """Read a view back, for the attack that declared it.

        Args:
            directory: Where `save` wrote it.
            attack: The attack about to be repeated.
            load_model: Loads the attacker's share, given the name of its estimator.
        """
        tree = read_tree(directory / "view.safetensors")
        needs = attack.needs
        return cls.cut(
            needs,
            Transcript.load(directory / "transcript"),
            public=PublicPlan.from_json(tree["public"]),
            grant=Grant(**tree["grant"]),
            table=Table.load(directory / "table.arrow") if needs.own_features else None,
            model=load_model(tree["model"], directory / "model.safetensors") if needs.own_model else None,
            seed=tree["seed"],
        )

    def _require(self, kind: type[Message]) -> None:
        if kind not in self.needs.messages:
            raise _undeclared(f"messages of kind {kind.kind}", f"messages=({kind.__name__},)")


def _undeclared(what: str, declaration: str) -> UndeclaredAccess:
    return UndeclaredAccess(
        f"This attack read {what} but had not declared it. Add {declaration} to its Needs, so the report says so."
    )
