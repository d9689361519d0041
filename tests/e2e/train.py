"""One party's process: trains a model of the catalogue with the others, and leaves the digests of its frames behind."""

import json
import sys
from pathlib import Path

import torch

from colonnade import Roles, join
from colonnade.catalogue import MODELS
from colonnade.data import load
from colonnade.runtime.protocol import private_randomness, public_plan
from colonnade.runtime.session import connect
from colonnade.wire.grpc.link import Patience
from colonnade.wire.grpc.transport import GrpcTransport
from colonnade.wire.recording.recording import Transcript


def main(name: str, model: str, folder: str, settings: str, addresses: str) -> None:
    torch.set_num_threads(1)
    where = json.loads(addresses)
    estimator = MODELS[model](**json.loads(settings))
    roles = Roles(label="bank", features=("shop",), server="cloud" if "cloud" in where else None)
    plan = public_plan(estimator.fit, roles, seed=0)
    party = connect(
        plan,
        name,
        load("breast-cancer").split().get(name),
        transport=GrpcTransport(where, credentials=None, patience=Patience(start=120, rejoin=60, message=120)),
        directory=Path(folder, name),
        random=private_randomness(0, name, plan),
    )
    join(estimator.fit, party)
    digests = Transcript.load(Path(folder, name, "transcript")).digests()
    Path(folder, f"{name}.digests").write_text(repr(digests))


if __name__ == "__main__":
    main(*sys.argv[1:])
