import random
import re
import sys
import textwrap

import pytest
import torch
from torch import nn

from spiritlevel.ground.errors import SpiritlevelError
from spiritlevel.inputs.models import build, mlp, names


@pytest.fixture
def user_module(tmp_path, monkeypatch):
    """A function that writes a module of a unique name into the working directory."""
    monkeypatch.chdir(tmp_path)
    written = []

    def write(source, *, name=None):
        name = (
            name or f"user_module_{random.Random(str(tmp_path)).getrandbits(64):x}_{len(written)}"
        )
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        written.append(name)
        return name

    yield write
    for name in written:
        sys.modules.pop(name, None)


NETWORKS = """
    from torch import nn

    def make(width=3, *, bias=True):
        return nn.Linear(width, 2, bias=bias)

    class Net(nn.Module):
        def __init__(self, depth=1):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(depth))

    def number():
        return 3

    def broken():
        raise RuntimeError("no weights today")

    network = nn.Linear(2, 2)
    size = 5
"""


def weights(model: nn.Module) -> torch.Tensor:
    return nn.utils.parameters_to_vector(model.parameters())


def refused(spec, message, **options):
    with pytest.raises(SpiritlevelError, match=message):
        build(spec, **options)


def test_names_are_sorted_and_complete():
    assert names() == [
        *("densenet121", "digits_cnn", "lenet5", "mlp", "resnet18"),
        *("text_transformer", "vgg16", "vgg_small", "vit_small"),
    ]


def test_options_reach_the_model():
    assert build("mlp", inputs=3, hidden=(), outputs=2).head.weight.shape == (2, 3)


def test_seed_decides_the_weights_and_leaves_the_global_generator():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    a, b, c = (build("mlp", seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(weights(a), weights(b))
    assert not torch.equal(weights(a), weights(c))


def test_without_a_seed_the_global_generator_is_drawn_from():
    torch.manual_seed(5)
    a, b = build("mlp"), build("mlp")
    torch.manual_seed(5)
    assert torch.equal(weights(a), weights(mlp()))
    assert not torch.equal(weights(a), weights(b))


@pytest.mark.parametrize(
    ("spec", "close"),
    [("resnet", "'resnet18'"), ("lenet", "'lenet5'"), ("vgg-small", "'vgg_small'")],
)
def test_unknown_name_suggests_close_ones(spec, close):
    hint = rf"Did you mean {close}( or '\w+')*\?"
    refused(spec, rf"No built-in model is called '{spec}'\. {hint} There are: densenet121, digits")


def test_unknown_name_without_a_close_one_lists_all():
    refused(
        "zzz", r"called 'zzz'\. There are: densenet121, digits_cnn, .* given as 'module:factory'"
    )


def test_function_and_class_of_the_working_directory(user_module):
    name = user_module(NETWORKS)
    assert build(f"{name}:make").weight.shape == (2, 3)
    assert build(f"{name}:make", width=4, bias=False).bias is None
    assert len(build(f"{name}:Net", depth=2).layers) == 2
    assert torch.equal(weights(build(f"{name}:Net", seed=1)), weights(build(f"{name}:Net", seed=1)))


def test_module_inside_a_package(user_module, tmp_path):
    package = f"package_{tmp_path.name.replace('-', '_')}"
    (tmp_path / package).mkdir()
    user_module(NETWORKS, name=f"{package}/nets")
    assert build(f"{package}.nets:make").weight.shape == (2, 3)
    refused(f"{package}.net:make", rf"module '{package}\.net' of the model .* cannot be found")


def test_installed_module_is_found():
    assert build("torch.nn:Linear", in_features=2, out_features=3).weight.shape == (3, 2)


def test_import_path_is_put_back(user_module):
    name = user_module(NETWORKS)
    before = list(sys.path)
    build(f"{name}:make")
    refused(f"{name}:broken", "no weights today")
    assert sys.path == before


def test_a_module_left_on_the_path_would_be_noticed(tmp_path, monkeypatch):
    # Meta-test of the one above: the comparison sees an entry that stays.
    before = list(sys.path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert sys.path != before


@pytest.mark.parametrize("spec", [":make", "module:", "module:a.b", "module:make()", "a:b:c"])
def test_spec_must_have_two_parts(spec):
    refused(spec, rf"must be written 'module:factory'.* Got {re.escape(repr(spec))}\.")


def test_missing_module(user_module, tmp_path):
    here = re.escape(repr(str(tmp_path)))
    refused("nowhere:make", rf"module 'nowhere' of the model 'nowhere:make' .* in {here}")
    refused("nowhere.nets:make", r"module 'nowhere' of the model 'nowhere\.nets:make'")
    name = user_module(NETWORKS)
    refused(f"{name}.py:make", r"without '\.py'")


def test_module_that_misses_another(user_module):
    name = user_module("import package_nobody_has")
    message = rf"'{name}' of the model .* ModuleNotFoundError: No module named 'package_nobody_has'"
    refused(f"{name}:make", message)


@pytest.mark.parametrize(
    ("source", "came"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:", "SyntaxError: "),
        ("import sys; sys.exit(2)", "SystemExit: 2"),
    ],
)
def test_module_that_fails(user_module, source, came):
    name = user_module(source)
    refused(f"{name}:make", rf"'{name}' of the model '{name}:make' cannot be imported: {came}")


def test_missing_attribute_suggests_close_ones(user_module):
    name = user_module(NETWORKS)
    refused(f"{name}:maker", rf"'{name}' .* has no 'maker'\. Did you mean 'make'\? .*{name}\.py")
    refused(f"{name}:zzzzz", r"has no 'zzzzz'\. It was imported")


def test_attribute_that_is_no_factory(user_module):
    name = user_module(NETWORKS)
    refused(f"{name}:size", r"function or class .* Got an object of type int\.")
    refused(f"{name}:network", r"Got an object of type Linear\. Write a function that returns it")


def test_factory_must_return_a_module(user_module):
    name = user_module(NETWORKS)
    refused(f"{name}:number", rf"'{name}:number' must return a torch\.nn\.Module\. Got int\.")


def test_factory_that_fails(user_module):
    name = user_module(NETWORKS)
    refused(f"{name}:broken", rf"'{name}:broken' .* RuntimeError: no weights today\.")


def test_unknown_option_shows_the_signature(user_module):
    name = user_module(NETWORKS)
    refused(
        f"{name}:make", r"\{'wide': 3\}: .*'wide'.* It takes \(width=3, \*, bias=True\)", wide=3
    )
    refused("digits_cnn", r"'digits_cnn' .* got an unexpected keyword argument 'depth'", depth=2)


def test_required_option_is_named(user_module):
    name = user_module("def make(width): ...")
    refused(f"{name}:make", r"missing a required argument: 'width'\. It takes \(width\)")


def test_own_errors_pass_unchanged():
    refused("lenet5", r"^The 'size' argument of lenet5", size=8)
