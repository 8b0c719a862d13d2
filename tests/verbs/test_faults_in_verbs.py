"""Errors and Ctrl-C at any moment of a verb: the network is left as it was, bit for bit."""

import functools
import warnings

import pytest
import torch
from torch import nn

import spiritlevel as sl
from faults import KINDS, PLACES, Loader, Moments, Planted, assert_same, moment, state_of


def network(seed=0):
    """With modes that differ, a frozen weight, gradients, a buffer, and dropout."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 3)]
        model = nn.Sequential(*layers).double()
        model(torch.randn(16, 4).double())
    model.eval()
    model[2].train()
    model[0].bias.requires_grad_(False)
    model[4].weight.grad = torch.full_like(model[4].weight, 7.0)
    return model


def batches():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(9, 4, generator=generator).double()
    y = torch.randint(3, (9,), generator=generator)
    return [(x[:5], y[:5]), (x[5:], y[5:])]


def product(model, data):
    H = sl.operator(model, data)
    return H @ torch.ones(H.shape[0]).double()


def solution(model, data):
    G = sl.operator(model, data, kind="ggn")
    return G.solve(torch.ones(G.shape[0]).double(), damping=0.5)


def sliced(model, data):
    return sl.landscape(model, data, points=3, dimensions=1).losses


CALLS = {
    "quantization": lambda m, d: sl.quantization(m, d, bits=(2, 4), mean_bits=3).chosen.rise,
    "quantization with traces": lambda m, d: sl.quantization(m, d, bits=(2,), traces=True),
    "pruning": lambda m, d: sl.pruning(m, d, share=0.3).chosen.rise,
    "pruning with fisher": lambda m, d: sl.pruning(m, d, fisher=True, num_probes=4),
    "product": product,
    "solution": solution,
    "diagonal": lambda m, d: sl.diagonal(m, d),
    "landscape": sliced,
    "landscape along eigenvectors": lambda m, d: (
        sl.landscape(m, d, directions="eigen", points=3, measures="head.trace").losses
    ),
    "landscape to another": lambda m, d: sl.landscape(m, d, to=network(1), points=3).losses,
    "eigenvalues": lambda m, d: sl.eigenvalues(m, d, num=2).values,
    "density": lambda m, d: sl.density(m, d, num_vectors=2, steps=5),
    "activation curvature": lambda m, d: sl.activation_curvature(m, d, layer="2"),
    "neurons": lambda m, d: sl.neurons(m, d),
    "measure": lambda m, d: sl.measure(m, d, measures="*.kappa", max_passes=3),
}
HERE = {"loader": None} | PLACES  # a loader is its own place


def call_of(name, place, moments):
    """The network, and the call with its moments counted."""
    model, loader = network(), Loader(batches())

    def call():
        if place == "loader":
            loader.moments = moments
            return CALLS[name](model, loader)
        with PLACES[place](model, moments):
            return CALLS[name](model, loader)

    return model, call


@functools.cache
def num_moments(name, place):
    moments = Moments()
    call_of(name, place, moments)[1]()
    return moments.count


@pytest.mark.sampled(12)
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("place", HERE)
@pytest.mark.parametrize("name", CALLS)
def test_a_fault_leaves_the_network_as_it_was(name, place, kind, number):
    count = num_moments(name, place)
    if not count:
        pytest.skip("no such moment")
    act, error = KINDS[kind]
    moments = Moments(moment(f"{name}/{place}/{kind}/{number}", count), act)
    model, call = call_of(name, place, moments)
    before = state_of(model)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            call()
        except error:
            pass
        else:  # what is only tried, such as another number type, need not succeed
            assert kind == "error"
    assert moments.count >= moments.at
    assert_same(before, state_of(model))
    with PLACES["forward"](model, Moments()):  # and it can be measured again
        assert sl.measure(model, batches(), measures="head.trace")["head.trace"].value > 0


@pytest.mark.nightly
def test_a_swallowed_fault_changes_no_number():
    """Of the places where a fault is only noted: the value is that of a call without one."""
    truth = product(network(), batches()).tolist()
    for at in range(1, num_moments("product", "forward") + 1):
        _, call = call_of("product", "forward", Moments(at))
        try:
            found = call()
        except Planted:
            continue
        assert found.tolist() == truth
