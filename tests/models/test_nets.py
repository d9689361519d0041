import numpy as np
import pytest
import torch

from colonnade.data import load
from colonnade.errors import PlanError
from colonnade.models.inputs import Inputs
from colonnade.models.nets import BOTTOMS, ResNet20, TabularResNet, bottom_named, image_places


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


@pytest.mark.parametrize("names", [("age", "income"), ("pixel_00_00", "pixel_00_01", "pixel_01_00")])
def test_columns_that_make_up_no_image_are_refused(names):
    with pytest.raises(PlanError, match=r"A network for images needs columns that make up a grid"):
        image_places(of_pixels(names))


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
