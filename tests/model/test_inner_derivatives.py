"""Networks whose forward differentiates or transforms, as force models and ensembles do."""

import copy

import pytest
import torch
from torch import nn
from torch.autograd import forward_ad
from torch.nn import functional as F

import spiritlevel as sl


class Base(nn.Module):
    """An energy of four coordinates; the head sees it with a derivative of it."""

    def __init__(self):
        super().__init__()
        self.energy = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))
        self.head = nn.Linear(5, 3)


class Force(Base):
    """As people write it: without enable_grad."""

    def forward(self, x):
        x = x.detach().requires_grad_()
        energy = self.energy(x)
        (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return self.head(torch.cat([energy, force], dim=1))


class FunctionalForce(Base):
    def forward(self, x):
        force = torch.func.vmap(torch.func.grad(lambda a: self.energy(a).squeeze()))(x)
        return self.head(torch.cat([self.energy(x), force], dim=1))


class Tangent(Base):
    def forward(self, x):
        energy, slope = torch.func.jvp(self.energy, (x,), (torch.ones_like(x),))
        return self.head(torch.cat([energy, slope, x[:, :3]], dim=1))


class DualNumbers(Base):
    def forward(self, x):
        with forward_ad.dual_level():
            dual = forward_ad.unpack_dual(self.energy(forward_ad.make_dual(x, torch.ones_like(x))))
            parts = [dual.primal, dual.tangent, x[:, :3]]
        return self.head(torch.cat(parts, dim=1))


class Mapped(Base):
    def forward(self, x):
        return self.head(torch.cat([torch.func.vmap(self.energy)(x), x], dim=1))


def block(model, x, y, name):
    """One block of the Hessian, by differences of gradients in float64."""
    parameter = dict(model.named_parameters())[name]
    step, rows, flat = 1e-5, [], parameter.data.view(-1)
    for i in range(len(flat)):
        ends = []
        for sign in (1, -1):
            flat[i] += sign * step
            (gradient,) = torch.autograd.grad(F.cross_entropy(model(x), y), parameter)
            flat[i] -= sign * step
            ends.append(gradient.flatten())
        rows.append((ends[0] - ends[1]) / (2 * step))
    return torch.stack(rows)


@pytest.mark.parametrize("kind", [Force, FunctionalForce, Tangent, DualNumbers, Mapped])
def test_every_layer_has_the_dense_values(kind):
    torch.manual_seed(0)
    model = kind().double().eval()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.randint(3, (6,))
    names = ["curvature.trace", "relative.kappa", "neuron.rho_sum"]
    report = sl.measure(model, (x, y), measures=names, layers=["energy.0", "energy.2"])
    for layer in ("energy.0", "energy.2"):
        H = block(model, x, y, f"{layer}.weight")
        bias = block(model, x, y, f"{layer}.bias")
        W = model.get_submodule(layer).weight.detach()
        out, into = W.shape
        H4 = H.view(out, into, out, into)
        truth = {
            "curvature.trace": H.trace() + bias.trace(),
            "relative.kappa": torch.einsum("ij,kj,imkm->", W, W, H4),
            "neuron.rho_sum": torch.einsum("ij,kj,ijkj->", W, W, H4),
        }
        for name in names:
            found = report.layers[name][layer]
            assert found.exact
            # the differences have nine digits
            assert found.value == pytest.approx(truth[name].item(), rel=1e-6, abs=1e-8)


def test_a_matrix_of_one_row_that_is_used_both_ways_can_be_pruned():
    """(1, n) turned around is the whole in the same order: only its shape tells the two uses."""

    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Linear(4, 1)

        def forward(self, x):
            return torch.tanh(self.down(x)) @ self.down.weight

    torch.manual_seed(0)
    model = Tied().double()
    x, y = torch.randn(6, 4, dtype=torch.float64), torch.randint(4, (6,))
    w = model.down.weight
    down = torch.tanh(model.down(x))
    p = (down @ w).softmax(dim=1).detach()
    forecast = sl.pruning(model, (x, y))
    for j in range(4):  # the change of the outputs if w_j is scaled, at both uses
        along = ((1 - down**2) * x[:, j : j + 1] * w[0, j] * w).detach()
        along[:, j] += (down[:, 0] * w[0, j]).detach()
        curvature = (p * along**2).sum(dim=1) - (p * along).sum(dim=1) ** 2
        assert float(forecast.second["down.weight"][j]) == pytest.approx(
            curvature.mean().item(), rel=1e-9
        )


class Recast(nn.Module):
    """A layer that forward itself converts, as the router of Switch Transformers."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Bilinear(4, 4, 3), nn.Linear(3, 3)

    def forward(self, x):
        self.head = self.head.to(torch.float32)
        return self.head(self.first(x, x).to(torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_layer_that_forward_converts_survives_vmap(dtype, generator):
    """Under vmap its weights became tensors of the transformation: a crash when it had ended."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, plain = Recast().to(dtype), nn.Bilinear(4, 4, 3)
    plain.load_state_dict(model.first.state_dict())
    x, y = torch.randn(5, 4, generator=generator).to(dtype), torch.tensor([0, 1, 2, 0, 1])
    if dtype == torch.float64:  # its forward rounds the head's weights
        with pytest.raises(sl.SpiritlevelError, match="weights must not change"):
            sl.measure(model, (x, y), measures="curvature.trace")
    else:
        found = sl.measure(model, (x, y), measures="curvature.trace")["curvature.trace"].value
        plain, head = plain.double(), copy.deepcopy(model.head).double()
        weights = [*plain.parameters(), *head.parameters()]
        loss = F.cross_entropy(head(plain(x.double(), x.double())), y)
        gradients = torch.autograd.grad(loss, weights, create_graph=True)
        truth = sum(
            float(torch.autograd.grad(entry, p, retain_graph=True)[0].flatten()[i])
            for gradient, p in zip(gradients, weights, strict=True)
            for i, entry in enumerate(gradient.flatten())
        )
        assert found == pytest.approx(truth, rel=1e-4)  # float32
    for parameter in model.parameters():
        parameter.untyped_storage()  # raises for a tensor of a transformation
