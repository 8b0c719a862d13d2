"""What a backward shows of the graph is what newer versions of torch say of it."""

import pytest
import torch

from spiritlevel.model import node_results
from spiritlevel.model.autograd_graph import nodes
from zoo.functional_networks import NETWORKS


@pytest.mark.skipif(not node_results._TOLD_BY_TORCH, reason="this torch does not say it")
@pytest.mark.parametrize("name", NETWORKS)
def test_a_backward_shows_what_torch_says(name, monkeypatch, generator):
    model = NETWORKS[name]().double()
    outputs = model(model.batch(3, generator))
    told = {node: node._input_metadata for node in nodes(outputs)}
    monkeypatch.setattr(node_results, "_TOLD_BY_TORCH", False)
    node_results.learn_results(outputs)
    for node, results in told.items():
        for number, result in enumerate(results):
            if number and node.name() == "NativeGroupNormBackward0":
                continue  # its mean and its deviation are used by nothing
            shown = node_results.result_of(node, number)
            assert (shown.shape, shown.dtype) == (torch.Size(result.shape), result.dtype)
