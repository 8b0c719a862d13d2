"""A head of 50,257 classes: what measuring it takes, and that it is right."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from torch import nn

import spiritlevel as sl

HERE = pathlib.Path(__file__).parents[1]
V, WIDTH = 50257, 768
GIB = 1 << 30
MEASURES = ["head.trace", "head.kappa", "softmax.gini"]
reads_proc = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

# Its own process: the peak of this one is whatever the other tests have left.
SCRIPT = """
import importlib, json, torch, spiritlevel as sl
from engine.test_lm_memory import language_model, tokens

def status(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(key))

torch.set_num_threads(1)
head = importlib.import_module("spiritlevel.measures.head")
assert head.MIN_PRODUCTS
head.MIN_PRODUCTS = 1  # max_passes decides: a few products fill the memory
model, loader = language_model(), tokens({sequences}, {length})
model[:3](loader[0][0])  # what the first call of a library leaves behind is no part of it
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")  # the peak starts anew from what is resident now
before = status("VmRSS")
report = sl.measure(model, loader, **{options})
extra = status("VmHWM") - before
products = sum(m.cost.products for m in report.values())
print(json.dumps(dict(extra=extra, products=products)))
"""


def language_model(width=WIDTH):
    """Embedding, one GELU layer, and the head, whose weights are large enough to be sure."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Embedding(V, width), nn.Linear(width, width), nn.GELU(), nn.Linear(width, V)
    )
    with torch.no_grad():
        model[3].weight.mul_(24.0)
    return model.eval()


def tokens(sequences, length, a_batch=8):
    """Batches of token numbers with the next ones, a sixteenth of them not to be counted."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randint(V, (sequences, length + 1), generator=generator)
    y = x[:, 1:].clone()
    y[:, ::16] = -100
    return list(zip(x[:, :-1].split(a_batch), y.split(a_batch), strict=True))


def unchunked(model, loader):
    """The three numbers from one matrix of logits in float64."""
    with torch.no_grad():
        phi = torch.cat([model[:3](x)[y != -100] for x, y in loader]).double()
        W, b = model[3].weight.double(), model[3].bias.double()
        p = (phi @ W.T + b).softmax(dim=1)
        gini, squares = 1 - p.square().sum(dim=1), phi.square().sum(dim=1)
        spread = p @ W.square().sum(dim=1) - (p @ W).square().sum(dim=1)
    values = ((gini * squares).mean(), (squares * spread).mean(), gini.mean())
    return dict(zip(MEASURES, map(float, values), strict=True))


def measured_alone(sequences, length, **options):
    """Bytes at the peak beyond model and data, and products with the Hessian; in a new process."""
    code = SCRIPT.format(sequences=sequences, length=length, options=options)
    paths = [str(HERE), str(HERE.parent / "src"), os.environ.get("PYTHONPATH", "")]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.nightly
@reads_proc
@pytest.mark.parametrize(
    ("sequences", "length"),
    [
        # 1024 tokens, in the shape of the 4096 that the project promises
        pytest.param(8, 128, marks=pytest.mark.nightly),
        (1, 1024),  # one long sequence is one sample: the plan must not try five of it
    ],
)
def test_memory_is_bounded_while_the_head_is_measured(sequences, length):
    # The logits of 1024 tokens are 0.2 GiB in float32 and each of the few copies in float64 that
    # the formula needs 0.4 GiB; the head's weight is 0.14 GiB. The bound does not grow with tokens.
    found = measured_alone(sequences, length, measures=MEASURES)
    assert found["extra"] < GIB, f"{found['extra'] / 2**20:.0f} MiB"


@reads_proc
@pytest.mark.nightly  # test_lanczos_limits.py counts the vectors of a small matrix
def test_memory_of_the_largest_eigenvalue():
    # Its vectors are as large as the weight, and five must be there: a basis of three, its rest and
    # a product. Two batches make the product a sum, and the basis is full after three products.
    found = measured_alone(16, 4, measures=["head.lambda_max"], max_passes=4)
    assert found["products"] == 4
    assert found["extra"] < GIB, f"{found['extra'] / 2**20:.0f} MiB"
    assert found["extra"] < 6.75 * V * WIDTH * 4  # and a sixth vector would be noticed


def test_values_are_those_of_the_unchunked_formula_in_float64():
    # few features: it is the classes that 64 MiB do not hold at once
    model, loader = language_model(width=32), tokens(3, 16)
    expected = unchunked(model, loader)
    report = sl.measure(model, loader, measures=MEASURES, memory=64 << 20)
    for name, value in expected.items():
        # 1e-5: logits in float32 are off by 1e-6, and their exponentials by as much
        assert report[name].value == pytest.approx(value, rel=1e-5), name
    assert expected["softmax.gini"] < 0.95  # not the same for any network
