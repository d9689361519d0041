"""Where a party computes: copies to and from a device; and how it steps along gradients."""

from functools import partial

import numpy as np
import pytest
import torch

from colonnade.models.networks.server import UShapeClassifier
from colonnade.models.networks.split import SplitClassifier
from colonnade.models.networks.training import AdamKernel, Machine, Optimizers, OptimizerSettings, trace_back
from colonnade.roles import Roles
from colonnade.runtime.simulate import simulate

QUICK = {"epochs": 2, "n_iter_no_change": 1, "batch_size": 64}
PROCESSOR = Machine.of("cpu", "float32")


@pytest.fixture
def is_apart(monkeypatch):
    """The processor is treated like a device that has memory of its own."""

    def begin():
        monkeypatch.setattr(Machine, "is_apart", True)

    return begin


@pytest.mark.parametrize(
    ("model", "roles"),
    [
        (SplitClassifier(**QUICK), Roles(label="bank", features=("shop",))),
        (UShapeClassifier(**QUICK), Roles(label="bank", features=("shop",), server="cloud")),
    ],
)
def test_a_device_with_memory_of_its_own_trains_by_the_same_bytes(cancer, is_apart, model, roles):
    alike = simulate(model.fit, cancer, roles=roles)
    is_apart()
    apart = simulate(model.fit, cancer, roles=roles)
    for name in roles.parties:
        assert apart.transcripts[name].digests() == alike.transcripts[name].digests()
    assert apart.history_ == alike.history_


@pytest.mark.parametrize("apart", [False, True])
def test_what_goes_to_a_device_does_not_change_with_the_frame_that_it_came_from(is_apart, apart):
    if apart:
        is_apart()
    values = np.arange(6, dtype=np.float32).reshape(3, 2)
    tensor = PROCESSOR.tensor(values, requires_grad=True)
    values[:] = 0
    assert tensor.requires_grad
    assert tensor.tolist() == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_comes_from_a_device_keeps_its_numbers_and_their_kind(is_apart, dtype):
    is_apart()
    tensor = torch.tensor([[0.1, -2.0]], dtype=dtype, requires_grad=True)
    array = PROCESSOR.host_copy(tensor).array()
    assert array.dtype == tensor.detach().numpy().dtype
    assert array.tolist() == tensor.tolist()
    assert PROCESSOR.host_copy(tensor.sum()).number() == tensor.sum().item()


class Kernelless(torch.nn.Linear):
    """A network for which oneDNN makes no kernel, or for which something else goes wrong."""

    def __init__(self, words):
        super().__init__(2, 1)
        self.words = words

    def forward(self, x):
        if torch.backends.mkldnn.enabled:
            raise RuntimeError(self.words)
        return super().forward(x)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_where_onednn_makes_no_kernel_pytorchs_own_are_taken(monkeypatch, precision):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    network = Kernelless("could not create a primitive")
    found = Machine.of("cpu", precision).forward(network, torch.ones(3, 2), train=True)
    assert found.dtype == torch.float32
    assert found.requires_grad
    torch.testing.assert_close(found, network.weight.sum().expand(3, 1) + network.bias, rtol=0.02, atol=0.02)


def test_other_errors_of_a_network_are_not_taken_for_a_missing_kernel(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    with pytest.raises(RuntimeError, match="sizes do not fit"):
        PROCESSOR.forward(Kernelless("sizes do not fit"), torch.ones(3, 2), train=True)
    assert torch.backends.mkldnn.enabled


@pytest.mark.parametrize("kind", ["adam", "adamw", "sgd"])
def test_optimizers_step_as_pytorch_does_even_where_a_parameter_has_no_gradient(kind):
    def network():
        torch.manual_seed(0)
        return torch.nn.ModuleDict({"first": torch.nn.Linear(3, 4), "second": torch.nn.Linear(4, 2)})

    ours, theirs = network(), network()
    rates = {"first": 0.1, "second": 0.01}
    settings = OptimizerSettings(kind, rates, weight_decay=0.1)
    optimizers = Optimizers(dict(ours.items()), "bank", settings)
    groups = [{"params": theirs[name].parameters(), "lr": rate} for name, rate in rates.items()]
    make = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW, "sgd": partial(torch.optim.SGD, momentum=0.9)}[kind]
    plain = make(groups, weight_decay=0.1, fused=True)
    for step in range(6):
        x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
        for model in (ours, theirs):
            hidden = model["first"](x)
            # In some steps the second network has no gradient.
            trace_back((hidden if step in (0, 3) else model["second"](hidden)).square().mean())
        optimizers.step()
        plain.step()
        for mine, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(mine, wanted, rtol=0, atol=0)
        optimizers.forget_gradients()
        plain.zero_grad()
        if step == 4:  # in the middle of a run that is taken up again
            saved = optimizers.state()
            optimizers = Optimizers(dict(ours.items()), "bank", settings)
            optimizers.restore(saved)


def test_weights_that_decay_beside_steps_are_adamws_and_sgds_do_not_decay():
    def stepped(kind, **more):
        torch.manual_seed(0)
        network = torch.nn.Linear(2, 1)
        optimizers = Optimizers({"bottom": network}, "bank", OptimizerSettings(kind, 0.1, **more))
        for _ in range(3):
            optimizers.forget_gradients()
            trace_back(network(torch.ones(4, 2)).square().mean())
            optimizers.step()
        return network.weight.tolist()

    decayed = stepped("adamw", weight_decay=2.0)
    assert stepped("adam", weight_decay=2.0, decoupled=True) == decayed != stepped("adam", weight_decay=2.0)
    assert stepped("sgd", weight_decay=2.0, decoupled=True) == stepped("sgd") != stepped("sgd", weight_decay=2.0)


def test_a_gradient_is_traced_back_as_pytorch_does():
    one, other = (torch.arange(3.0, requires_grad=True) for _ in range(2))
    gradient = torch.tensor([1.0, -2.0, 0.5])
    trace_back(one.square(), gradient)
    other.square().backward(gradient)
    assert one.grad.tolist() == other.grad.tolist()
    trace_back(one.sum())
    assert one.grad.tolist() == (other.grad + 1).tolist()
    with pytest.raises(RuntimeError, match="invalid gradient"):
        trace_back(one.square(), torch.ones(7))


def test_a_loss_of_several_numbers_is_refused_as_pytorch_does():
    one = torch.arange(3.0, requires_grad=True)
    with pytest.raises(RuntimeError, match="only for scalar outputs"):
        trace_back(one.square())
    assert one.grad is None
    with pytest.raises(RuntimeError, match="does not require grad"):
        trace_back(torch.ones(()))


def parameters_of(kinds):
    return [torch.nn.Parameter(torch.linspace(-1, 1, 6, dtype=kind)) for kind in kinds]


def gradients_of(parameters, step):
    for place, parameter in enumerate(parameters):
        parameter.grad = torch.sin(torch.arange(6) * (place + 1) + step).to(parameter.dtype)


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
def test_the_kernel_of_adam_follows_a_schedule_of_its_rate_and_every_other_setting(kind):
    ours, theirs = (parameters_of([torch.float32] * 2) for _ in range(2))
    mine, plain = (kind(each, 0.1, fused=True) for each in (ours, theirs))
    halving = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5) for optimizer in (mine, plain)]
    kernel = None
    for step in range(6):
        for each in (ours, theirs):
            gradients_of(each, step)
        plain.step()
        if kernel is None:
            mine.step()
            kernel = AdamKernel.of(mine)
        else:
            assert kernel.step()
        for optimizer, schedule in zip((mine, plain), halving, strict=True):
            schedule.step()
            optimizer.param_groups[0] |= {"weight_decay": 0.1 * step, "betas": (0.8, 0.99), "maximize": step > 3}
        assert all(map(torch.equal, ours, theirs))
        # The optimizer knows what the kernel did, and a checkpoint holds it.
        assert str(mine.state_dict()) == str(plain.state_dict())


def test_the_kernel_of_adam_takes_groups_that_do_not_name_the_kind_of_weight_decay():
    """As those of PyTorch 2.4 and 2.5 do not."""
    ours, theirs = (parameters_of([torch.float32]) for _ in range(2))
    mine, plain = (torch.optim.Adam(each, 0.1, weight_decay=0.1, fused=True) for each in (ours, theirs))
    for each, optimizer in ((ours, mine), (theirs, plain)):
        gradients_of(each, 0)
        optimizer.step()
    del mine.param_groups[0]["decoupled_weight_decay"]
    assert AdamKernel.of(mine).step()
    plain.step()
    assert torch.equal(ours[0], theirs[0])


@pytest.mark.parametrize(
    ("kinds", "settings"),
    [
        ([torch.float32, torch.float64], {"fused": True}),
        ([torch.float32], {"fused": True, "amsgrad": True}),
        ([torch.float32], {"fused": False}),
    ],
)
def test_what_the_kernel_of_adam_cannot_do_is_left_to_the_optimizer(kinds, settings):
    parameters = parameters_of(kinds)
    optimizer = torch.optim.Adam(parameters, 0.1, **settings)
    assert AdamKernel.of(optimizer) is None
    gradients_of(parameters, 0)
    optimizer.step()
    assert AdamKernel.of(optimizer) is None


def test_a_network_of_several_kinds_of_numbers_is_trained_as_pytorch_does():
    ours, theirs = (torch.nn.ParameterList(parameters_of([torch.float32, torch.float64])) for _ in range(2))
    optimizers = Optimizers({"bottom": ours}, "bank", OptimizerSettings("adam", 0.1))
    plain = torch.optim.Adam(theirs.parameters(), 0.1, fused=True)
    for step in range(4):
        for each in (ours, theirs):
            gradients_of(each, step)
        optimizers.step()
        plain.step()
        assert all(map(torch.equal, ours, theirs))
