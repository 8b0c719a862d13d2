"""A copy that cannot be measured does not cost the whole audit."""

import torch
from torch import nn

import spiritlevel as sl
from spiritlevel import api
from spiritlevel.errors import SpiritlevelError


def test_what_was_measured_before_is_kept(monkeypatch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double().eval()
    data = torch.randn(20, 4).double(), torch.arange(20) % 3
    real, calls = api.measured, []

    def measured(setup, subject, *args, **options):
        calls.append(subject)
        if len(calls) == 2:  # the first copy of the first move
            raise SpiritlevelError("it is too steep.")
        return real(setup, subject, *args, **options)

    monkeypatch.setattr(api, "measured", measured)
    audit = sl.audit(model, data, measures="neuron.rho_sum")
    [missed] = [move for move, why in audit.absent.items() if "too steep" in why]
    assert missed not in audit.moved
    assert audit.moved  # the other moves
    verdict = audit.verdict("neuron.rho_sum")
    assert verdict.scale.kind == "untested"  # it was not seen under all moves
    assert f"no copy could be measured after {missed}" in verdict.text
