"""How one party's side of a protocol is run, and run again."""

from dataclasses import dataclass, replace

import numpy as np

from colonnade import Roles, join
from colonnade.errors import PeerRestarted
from colonnade.privacy.ledger import Ledger
from colonnade.privacy.randomness import Randomness
from colonnade.roles import PublicPlan
from colonnade.runtime.party import Party
from colonnade.wire.codec import encode
from colonnade.wire.message import Float64Array, Message
from colonnade.wire.recording.recording import Recording


@dataclass(frozen=True)
class Figures(Message, kind="test/figures-of-a-join"):
    values: Float64Array


class Attempts:
    """A session whose every attempt records into the same folder."""

    def __init__(self, folder):
        self.folder, self.recordings = folder, []

    def begin(self, party):
        self.recordings.append(Recording("shop", "all", self.folder))
        return replace(party, recording=self.recordings[-1])

    def finish(self, party):
        party.recording.close()

    def fail(self, party, error):
        raise error

    def close(self):
        pass


def test_the_recording_of_an_abandoned_attempt_is_on_the_disk_before_the_next_begins(tmp_path):
    attempts, sizes = Attempts(tmp_path), []
    random = Randomness.seeded(0)
    plan = PublicPlan(Roles(label="bank", features=("shop",)), "example")
    party = Party("shop", plan, None, random, random, {}, Ledger(), Recording("shop", "all"), session=attempts)

    def protocol(party):
        sizes.append(sum(path.stat().st_size for path in tmp_path.glob("*.frames")))
        message = Figures(np.ones(3))
        party.recording.add(message, encode(message), sent=True, peer="bank")
        if len(sizes) == 1:
            raise PeerRestarted("bank started anew")
        return len(attempts.recordings)

    assert join(protocol, party) == 2
    assert sizes[0] == 0 < sizes[1]
