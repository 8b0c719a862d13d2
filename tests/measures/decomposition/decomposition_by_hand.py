"""The decomposition of paper 001 from dense Jacobians, sample by sample."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import jacrev

import spiritlevel as sl


def decomposed(model, x, layers, patches):
    """The three quantities of each layer by the paper's formulas, sample by sample.

    `layers` are modules in the order of their calls; a shift is added to the output of one of them
    and the outputs are differentiated in it. `patches(module, a)` lists the vectors that the layer
    multiplies by its matrix.
    """
    found = {}
    for name in layers:
        module = model.get_submodule(name)
        rows = []
        for sample in x:
            seen = {}

            def shifted(shift, module=module, sample=sample, seen=seen):
                def hook(_, args, out):
                    seen["input"], seen["shape"] = args[0], out.shape
                    return out + shift

                handle = module.register_forward_hook(hook)
                try:
                    return model(sample[None])[0]
                finally:
                    handle.remove()

            shifted(0.0)
            zero = torch.zeros(seen["shape"], dtype=torch.float64)
            J = jacrev(shifted)(zero).flatten(1).detach()
            M = J @ J.T
            s = sum(float(u.square().sum()) for u in patches(module, seen["input"].detach()))
            p = model(sample[None])[0].detach().softmax(dim=0)
            V = torch.eye(len(p), dtype=torch.float64)
            mean = sum(p[i] * V[i] for i in range(len(p)))
            spread = sum(p[i] * (V[i] - mean) @ M @ (V[i] - mean) for i in range(len(p)))
            top = torch.linalg.eigvalsh(M)[-1]
            last = sum(p[i] * V[i].square().sum() for i in range(len(p)))
            rows.append((s * float(spread), 2 * s * float(top) * float(last), float(top)))
        found[name] = [sum(column) / len(x) for column in zip(*rows, strict=True)]
    return found


def features(module, a):
    return [a.flatten()]


def windows(module, a):
    if isinstance(module, nn.Linear):
        return [a.flatten()]
    unfolded = F.unfold(a, module.kernel_size, module.dilation, module.padding, module.stride)
    return list(unfolded[0].T)


NAMES = ("decomposition.centered", "decomposition.upper_bound", "decomposition.path_lambda_max")


def measured(model, data, **options):
    return sl.measure(model, data, measures=["decomposition.*"], **options)


def check(report, expected, rel=1e-12):
    for column, name in enumerate(NAMES):
        rows = report.layers[name]
        assert rows.keys() == expected.keys()
        values = {layer: row[column] for layer, row in expected.items()}
        for layer, value in values.items():
            assert rows[layer].value == pytest.approx(value, rel=rel), (name, layer)
        whole = max(values.values()) if name.endswith("path_lambda_max") else sum(values.values())
        assert report[name].value == pytest.approx(whole, rel=rel), name
