from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from colonnade.data import load
from colonnade.errors import PlanError
from colonnade.models.networks.modules import BOTTOMS, ResNet20, TabularResNet, bottom_named, image_places
from colonnade.models.networks.split import SplitClassifier
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate
from colonnade.tables.encode import Inputs

BOTH = Roles(label="bank", features=("shop",))


def of_pixels(names):
    return Inputs(tuple(names), np.zeros(len(names)), np.ones(len(names)), (), {})


def test_pixels_are_put_where_their_names_say():
    names = [
        f"{colour}_{row:02d}_{column:02d}" for column in range(3) for row in range(2) for colour in ("red", "blue")
    ]
    shape, places = image_places(of_pixels(names))
    assert shape == (2, 2, 3)
    order = [names[place] for place in places]
    assert order[:3] == ["blue_00_00", "blue_00_01", "blue_00_02"]
    assert order[-1] == "red_01_02"


def test_the_shop_of_digits_has_images_of_half_the_width():
    table = load("digits").tables["shop"]
    assert image_places(Inputs.learned(table, np.arange(len(table))))[0] == (1, 8, 4)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("age", "income"), r"named like pixel_03_11, but only 0 of 2 are\. Use .*, or leave out or rename the others"),
        (("pixel_00_00", "age"), r"named like pixel_03_11, but only 1 of 2 are"),
        (
            ("pixel_00_00", "pixel_00_01", "pixel_01_00"),
            r"make up a grid, but of 1 x 2 x 2 pixels there are 3\. Use .* name whole rows of pixels with columns=",
        ),
        (("a_0_0", "a_00_00", "a_0_1", "b_0_1"), "make up a grid, but of 2 x 1 x 2 pixels there are 4"),
    ],
)
def test_columns_that_make_up_no_image_are_refused(names, words):
    with pytest.raises(PlanError, match=words):
        image_places(of_pixels(names))


def test_pixels_that_are_missing_are_refused_as_such():
    inputs = replace(of_pixels(["pixel_00_00", "pixel_00_01"]), flagged=("pixel_00_01",))
    words = (
        "missing in some rows of 1 of 2 columns, such as 'pixel_00_01'. Fill them in, or use the bottom network 'mlp'"
    )
    with pytest.raises(PlanError, match=words):
        image_places(inputs)


def test_a_ranking_that_takes_single_pixels_away_is_named_as_the_cause():
    tables = load("digits", rows=100).split()
    model = SplitClassifier(bottom="cnn", tracks="shadow-top", epochs=1)
    with pytest.raises(PlanError, match=r"but of 1 x 8 x 4 pixels there are 26\. .* where tracks keep columns private"):
        simulate(model.fit, tables, roles=BOTH)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"bottom": nn.Linear(15, 16)}, "bottom network should be given by name, or as a callable that makes one from"),
        ({"top": nn.Linear(32, 2)}, r"from two widths, but is an object of the class Linear\. Give what makes it"),
        ({"top": 3}, "callable that makes one from two widths, but is an object of the class int"),
        ({"top": lambda n_in, n_out: 3}, r"top network should make a torch\.nn\.Module, but made .* the class int"),
        (
            {"top": lambda n_in, n_out: nn.Linear(n_in, 1)},
            r"A top network should put out 2 numbers for each row, so \(64, 2\) for 64 rows, but Linear puts out "
            r"\(64, 1\)\. Make its last layer",
        ),
        (
            {"bottom": {"shop": lambda inputs, width: nn.Linear(inputs.width, 8), "default": "mlp"}},
            r"A bottom network should put out 16 numbers for each row, .* but Linear puts out \(64, 8\)",
        ),
        ({"bottom": lambda inputs, width: nn.LSTM(inputs.width, width)}, "but LSTM puts out tuple"),
    ],
)
def test_a_network_of_ones_own_that_does_not_fit_is_refused_where_it_is(settings, words):
    tables = load("breast-cancer", rows=100).split()
    with pytest.raises(PlanError, match=words) as refused:
        simulate(SplitClassifier(epochs=1, batch_size=64, **settings).fit, tables, roles=BOTH)
    party = "shop" if isinstance(settings.get("bottom"), dict) else "bank"
    assert refused.value.__notes__ == [f"This happened at {party}."]


def test_a_network_of_ones_own_is_looked_at_once():
    network = bottom_named(lambda inputs, width: nn.Linear(2, width))(of_pixels(["a", "b"]), 3)
    assert network._forward_hooks
    network(torch.zeros(4, 2))
    assert not network._forward_hooks


def test_resnet_20_has_twenty_layers():
    net = ResNet20(of_pixels([f"pixel_{r:02d}_{c:02d}" for r in range(8) for c in range(8)]), 10)
    weighted = [m for m in net.modules() if isinstance(m, torch.nn.Conv2d | torch.nn.Linear)]
    assert len(weighted) == 20
    assert sum(p.numel() for p in net.parameters()) == 269_434


def test_a_batch_of_one_row_can_be_trained_on():
    net = TabularResNet(of_pixels(["a", "b"]), 3).train()
    assert torch.isfinite(net(torch.zeros(1, 2))).all()


def test_an_unknown_network_is_refused():
    with pytest.raises(PlanError, match=f"There is no bottom network 'vgg'; there are {', '.join(BOTTOMS)}"):
        bottom_named("vgg")
