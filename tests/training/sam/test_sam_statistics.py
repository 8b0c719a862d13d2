"""Running statistics change once a step."""

import pytest
import torch
from torch import nn

from spiritlevel.training.sam.optimizers import SAM
from training.sam.sam_problem import (
    KINDS,
    RHO,
    batch,
    by_blocks,
    by_closure,
    by_passes,
    loss_of,
    network,
)

ORIGINAL = nn.Module.__call__


def test_statistics_are_updated_once_a_step():
    x, y = torch.randn(16, 2, 6), torch.randint(3, (16,))
    for use in (by_closure, by_passes, by_blocks):
        for kind in ("sam", "noise"):
            net = nn.Sequential(
                nn.Conv1d(2, 4, 3),
                nn.BatchNorm1d(4, momentum=None),
                nn.InstanceNorm1d(4, affine=True, track_running_stats=True),
                nn.BatchNorm1d(4).eval(),
                nn.Flatten(),
                nn.Linear(16, 3),
            )
            optimizer = KINDS[kind][0](torch.optim.SGD(net.parameters(), lr=0.0))
            buffers = dict(net.named_buffers())
            if kind == "sam":
                with torch.no_grad():
                    once = {k: v.clone() for k, v in net.state_dict().items()}
                    net(x)
                    net_once = {k: v.clone() for k, v in net.state_dict().items()}
                    net.load_state_dict(once)
            use(optimizer, net, x, y)
            assert int(net[1].num_batches_tracked) == 1
            assert int(net[3].num_batches_tracked) == 0
            assert net[1].momentum is None
            assert net[2].momentum == 0.1
            assert net[1].track_running_stats
            for name, buffer in net.named_buffers():
                assert buffer is buffers[name]
                if kind == "sam":
                    assert torch.equal(buffer, net_once[name])


class Own(nn.Sequential):
    """With a forward that is not torch's, which torch.compile would skip."""

    def forward(self, x):
        for module in self:
            x = module(x)
        return x


@pytest.mark.sampled(1)
@pytest.mark.parametrize("what", ["module", "in place", "inner module", "function"])
def test_statistics_of_a_compiled_model_are_updated_once_a_step(what):
    torch._dynamo.reset()
    x, y = torch.randn(16, 5), torch.randint(3, (16,))
    net = Own(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    called = net
    if what == "in place":
        net.compile(backend=backend)
    elif what == "inner module":
        called = nn.Sequential(torch.compile(net, backend=backend))
    else:
        called = torch.compile(net if what == "module" else lambda x: net(x), backend=backend)
    # a function hides the modules it calls
    model = net if what == "function" else None
    optimizer = SAM(torch.optim.SGD(net.parameters(), lr=0.1), RHO, model=model)
    for number in range(10):
        by_closure(optimizer, called, x, y)
        assert int(net[1].num_batches_tracked) == number + 1
    assert len(graphs) == 2  # with statistics and without, not one a step


def test_calls_are_watched_only_in_the_pass():
    original = nn.Module.__call__
    net, (x, y) = network(), batch()
    optimizer = SAM(torch.optim.SGD(net.parameters(), lr=0.1), RHO)
    by_closure(optimizer, net, x, y)
    assert nn.Module.__call__ is original
    loss_of(net, x, y).backward()
    with pytest.raises(RuntimeError), optimizer.perturbed():
        net(x[:, 1:])
    assert nn.Module.__call__ is original


def test_models_are_found_once_and_not_kept_alive():
    net, (x, y) = network(), batch()
    optimizer = SAM(torch.optim.SGD(net.parameters(), lr=0.1), RHO)
    watched = []
    for _ in range(3):
        loss_of(net, x, y).backward()
        with optimizer.perturbed():
            watched.append(nn.Module.__call__ is not ORIGINAL)
            loss_of(net, x, y).backward()
        optimizer.step()
    assert watched == [True, False, False]
    assert list(optimizer._phase.models) == [net]
    del net
    assert not optimizer._phase.models
