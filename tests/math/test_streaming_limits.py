"""The streamed head: how it is cut and compiled, and that its memory follows the budget."""

import math
import subprocess
import sys
import warnings

import pytest
import torch

from spiritlevel.math import streaming
from spiritlevel.math.streaming import block_shape, stream_tokens
from zoo.plain import linear_head, random


@pytest.mark.parametrize("budget", [10**5, 10**6, 10**8, 10**10])
@pytest.mark.parametrize("sizes", [(8192, 128256, 4096), (1, 50257, 768), (300, 2, 8)], ids=str)
def test_blocks_fit_the_budget(sizes, budget):
    T, C, d = sizes
    bytes_each = {"logit_bytes": 16, "token_bytes": 28 * d, "class_bytes": 8 * d}
    tokens, classes = block_shape(T, C, budget=budget, limit=2**22, **bytes_each)
    assert 1 <= tokens <= T
    assert min(C, 16) <= classes <= C
    assert tokens * classes <= 2**22
    smallest = (tokens, classes) == (1, min(C, 16))
    used = tokens * classes * 16 + tokens * 28 * d + classes * 8 * d
    assert used <= budget or smallest
    # and not much smaller than need be: halved until it fits, then cut evenly
    whole = (tokens, classes) == (T, C)
    assert used > budget / 8 or tokens * classes > 2**22 / 8 or smallest or whole


def test_the_elementwise_steps_compile_whole_and_once(monkeypatch):
    # A graph break or a compilation a chunk would undo what compiling is for.
    args = linear_head(40, 1000, 8, dtype=torch.bfloat16)
    expected = stream_tokens(*args, kappa=True, budget=60_000)
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    def whole(function):
        return torch.compile(function, backend=backend, dynamic=True, fullgraph=True)

    compiled = {f: whole(f) for f in (streaming._absorb, streaming._join, streaming._against_top)}
    monkeypatch.setattr(
        streaming._StreamedHead,
        "_run",
        lambda self, function, *x: compiled.get(function, function)(*x),
    )
    found = stream_tokens(*args, kappa=True, budget=60_000)
    assert len(graphs) == 3
    # the same operations, with `where` in place of the scatter
    torch.testing.assert_close(found.gini, expected.gini, rtol=1e-12, atol=0)
    torch.testing.assert_close(found.quadratic, expected.quadratic, rtol=1e-12, atol=0)


def fused_by(backend, monkeypatch):
    """What `_fused` makes of one function with another compiler behind it."""
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda f, **options: plain(f, backend=backend, **options))
    return streaming._fused.__wrapped__(streaming._squared_norms)


def test_without_a_compiler_it_runs_plain_and_says_so(monkeypatch):
    def broken(graph, inputs):
        raise RuntimeError("no C compiler")

    run, rows = fused_by(broken, monkeypatch), random(5, 3)
    with pytest.warns(UserWarning, match="(?s)_squared_norms runs uncompiled: .*no C compiler"):
        found = run(rows, rows[0])
    assert torch.equal(found, streaming._squared_norms(rows, rows[0]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # and it is not tried again
        run(rows, rows[0])


def test_a_python_without_a_compiler_runs_plain(monkeypatch):
    def refuse(function, **options):
        raise RuntimeError("Dynamo is not supported on this Python")

    monkeypatch.setattr(torch, "compile", refuse)
    assert streaming._fused.__wrapped__(streaming._join) is streaming._join


def test_an_error_in_a_compiled_step_stays_an_error(monkeypatch):
    run, rows = fused_by("eager", monkeypatch), random(5, 3)
    assert torch.equal(run(rows, rows[0]), streaming._squared_norms(rows, rows[0]))
    with pytest.raises(RuntimeError, match=r"must match the size|not broadcast"):
        run(rows, random(2))


MEMORY = """
import torch
from spiritlevel.math.streaming import stream_tokens
from spiritlevel.math.curvature import SoftmaxCurvature
T, C, d = {tokens}, 50257, 768
generator = torch.Generator().manual_seed(0)
features = torch.randn(T, d, generator=generator)
weight = torch.randn(C, d, generator=generator) * 0.3
(features[:16] @ weight[:16].T).sum()  # the library's own first-time buffers
open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew from what is resident now

def status(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key))

resident = status("VmRSS")
{work}
print((status("VmHWM") - resident) / 2**10)
{check}
"""
CHECK = """
some = slice(0, None, T // 8)
curvature = SoftmaxCurvature(features[some].double() @ weight.double().T)
wide = weight.double()
p = curvature.p
mean = p @ wide
expected = p @ wide.square().sum(dim=1) - mean.square().sum(dim=1)
print(float((sums.gini[some] / curvature.gini() - 1).abs().max()))
print(float((sums.quadratic[some] / expected - 1).abs().max()))
"""


def run_alone(work, check="", *, tokens):
    """Mebibytes above what was resident before, and what `check` prints."""
    script = MEMORY.format(work=work, check=check, tokens=tokens)
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    return [float(line) for line in found.stdout.split()]


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    ("tokens", "budget"), [(1024, 64), pytest.param(4096, 256, marks=pytest.mark.nightly)]
)
def test_memory_follows_the_budget(tokens, budget):
    # The matrix of logits would take three times the budget. 64 more for BLAS's own buffers.
    work = f"sums = stream_tokens(features, weight, None, kappa=True, budget={budget} << 20)"
    mebibytes, gini, quadratic = run_alone(work, CHECK, tokens=tokens)
    assert mebibytes < budget + 64
    # Logits of up to 40, summed in float32 over 768 products, one after another at the worst: exp
    # turns their absolute error into a relative one. Most BLAS libraries stay far below.
    assert max(gini, quadratic) < 2**-24 * 40 * math.sqrt(768)


@pytest.mark.nightly
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_whole_matrix_of_logits_would_be_noticed():
    (mebibytes,) = run_alone("logits = torch.ones(T, C)", tokens=1024)
    assert mebibytes > 64 + 64 + 40
