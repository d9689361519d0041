"""Two organisations that write the same people differently find whom they both know, and keep whom only one knows."""

from colonnade import Roles, Table, simulate
from colonnade.align import Limits, Settings
from colonnade.align.protocol import Align

bank = Table.of(
    {
        "account": [1, 2, 3, 4],
        "mail": ["Ann@Example.com", None, "cyd@example.com", "dee@example.com"],
        "name": ["Ann Lee", "Zoë  Müller", "Cyd Ng", "Dee Fox"],
        "born": [1970, 1981, 1992, 1969],
        "default": [0, 1, 0, 1],
    },
    ids="account",
    labels="default",
)
shop = Table.of(
    {
        "customer": ["s-9", "s-8", "s-7"],
        "e_mail": [" ann@example.com", "zm@example.com", "not an address"],
        "who": ["A. Lee", "ZOE\u0308 MÜLLER", "Eve Oak"],
        "year": ["1970", "1981", "1990"],
        "spend": [12.5, 80.0, 3.2],
    },
    ids="customer",
)

align = Align(
    Settings(keys=("email", "text+integer"), join="left"),
    columns={"bank": ("mail", "name+born"), "shop": ("e_mail", "who+year")},
    limits=Limits(fewest=1),  # a real run refuses sets this small
)
run = simulate(align, {"bank": bank, "shop": shop}, roles=Roles(label="bank", features=("shop",)))

for name, table in {"bank": bank, "shop": shop}.items():
    aligned = run.results[name].take(table)
    print(name, aligned.ids.to_pylist(), "present:", aligned.present)
print(run.results["bank"].summary())
