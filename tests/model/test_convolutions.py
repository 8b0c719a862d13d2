"""Our convolutions are torch's, with all derivatives."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from spiritlevel.model.convolutions import UsualConvolutions

CASES = {
    "one dimension": (lambda: nn.Conv1d(2, 3, 3, padding=1), (2, 2, 6)),
    "stride and padding": (lambda: nn.Conv2d(2, 4, 3, stride=2, padding=1), (2, 2, 6, 5)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, bias=False), (2, 4, 5, 5)),
    "depthwise, dilated": (lambda: nn.Conv2d(3, 3, 2, dilation=2, groups=3), (2, 3, 5, 4)),
    "stride that leaves a rest": (lambda: nn.Conv2d(2, 2, 2, stride=3), (1, 2, 7, 6)),
    "three dimensions": (lambda: nn.Conv3d(1, 2, 2), (2, 1, 3, 3, 3)),
}


@pytest.fixture(params=list(CASES))
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, Tensor]:
    make, shape = CASES[request.param]
    torch.manual_seed(0)
    return make().double(), torch.randn(shape, dtype=torch.float64, requires_grad=True)


def applied(module: nn.Module, x: Tensor) -> Tensor:
    with UsualConvolutions():
        result: Tensor = module(x)
    return result


def names(outputs: Tensor) -> set[str]:
    found, stack = set(), [outputs.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None:
            found.add(node.name())
            stack += [following for following, _ in node.next_functions]
    return found


def test_it_is_torchs_convolution(case: tuple[nn.Module, Tensor]) -> None:
    module, x = case
    ours, truth = applied(module, x), module(x)
    torch.testing.assert_close(ours, truth, rtol=1e-12, atol=1e-12)
    assert "ConvolutionBackward" in names(ours)  # ours, not ConvolutionBackward0
    inputs = [x, *module.parameters()]
    cotangent = torch.randn_like(truth)
    for mine, theirs in zip(
        torch.autograd.grad(ours, inputs, cotangent),
        torch.autograd.grad(truth, inputs, cotangent),
        strict=True,
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


def test_second_derivatives_are_differences_of_first_ones(case: tuple[nn.Module, Tensor]) -> None:
    module, x = case
    parameters = dict(module.named_parameters())

    def value(x: Tensor, *tensors: Tensor) -> Tensor:
        with UsualConvolutions():
            outputs = torch.func.functional_call(
                module, dict(zip(parameters, tensors, strict=True)), (x,)
            )
        return torch.tanh(outputs)

    # in random directions instead of entry by entry: a wrong entry shows in all of them
    torch.autograd.gradgradcheck(value, (x, *parameters.values()), fast_mode=True)


def test_several_products_at_once(case: tuple[nn.Module, Tensor]) -> None:
    module, x = case
    weight = next(module.parameters())
    (gradient,) = torch.autograd.grad(
        torch.tanh(applied(module, x)).sum(), weight, create_graph=True
    )
    rows = torch.randn(3, *weight.shape, dtype=torch.float64)
    options = {"retain_graph": True}
    (together,) = torch.autograd.grad(gradient, weight, rows, is_grads_batched=True, **options)
    one_by_one = [torch.autograd.grad(gradient, weight, row, **options)[0] for row in rows]
    torch.testing.assert_close(together, torch.stack(one_by_one), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_what_is_not_known_is_left_to_torch(padding: str) -> None:
    module = nn.Conv2d(2, 3, 3, padding=padding)
    x = torch.randn(2, 2, 5, 5)
    assert "ConvolutionBackward0" in names(applied(module, x))
    assert "ConvolutionBackward0" in names(applied(nn.Conv2d(2, 3, 3), x[0]))  # one sample alone
    with torch.no_grad():
        assert torch.equal(applied(module, x), F.conv2d(x, module.weight, module.bias, 1, padding))
