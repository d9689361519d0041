"""An airline joins its flights with aircraft by tail number, and with weather by airport and hour, then audits."""

import numpy as np

from colonnade import Roles, Table, audit, simulate
from colonnade.align import Align, Aligned, Limits, Settings
from colonnade.attacks import NormScore
from colonnade.models import SplitClassifier

random = np.random.default_rng(0)
flights, aircraft, places = 400, np.arange(40), np.arange(72)
tail, place = random.choice(aircraft, flights), random.choice(places, flights)
wind, age = random.gamma(2, 5, len(places)), random.uniform(0, 25, len(aircraft))
late = (wind[place] + 0.4 * age[tail] + random.normal(0, 4, flights) > 16).astype(int)

tables = {
    "airline": Table.of(
        {
            "flight": np.arange(flights),
            "tail": [f"N{number}" for number in tail],
            "airport": [f"AP{number // 24}" for number in place],
            "hour": place % 24,
            "late": late,
        },
        ids="flight",
        labels="late",
    ),
    "fleet": Table.of({"tail_number": [f"n{number}" for number in aircraft], "age": age}, ids="tail_number"),
    "weather": Table.of(
        {"reading": places, "at": [f"ap{number // 24}" for number in places], "h": places % 24, "wind": wind},
        ids="reading",
    ),
}
align = Align(
    Settings(keys={"fleet": "text", "weather": "text+integer"}, join="left"),
    columns={"airline": {"fleet": "tail", "weather": "airport+hour"}, "weather": ["at+h"]},
    features={"airline": ["hour"]},  # the hour is a key and a feature; tail and airport are keys only
    limits=Limits(fewest=20),  # a real run refuses sets this small
)
roles = Roles(label="airline", features=("fleet", "weather"))
run = simulate(Aligned(align, SplitClassifier(overlap="partial", epochs=20).fit), tables, roles=roles)

print(run.alignments["airline"].summary())
print(audit(run, [NormScore()], nulls=3, progress=False).attacks[0].verdict)
