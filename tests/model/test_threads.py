"""Threads take turns: flags and random states stay, and one model has one measurement at a time."""

import asyncio
import contextlib
import copy
import os
import signal
import threading
import time

import pytest
import torch
from torch import nn

import spiritlevel as sl
from forked import run_script
from spiritlevel.model.exclusive import process_state
from spiritlevel.training import thrice_differentiable

X = torch.randn(24, 6, generator=torch.Generator().manual_seed(0))
Y = torch.randint(3, (24,), generator=torch.Generator().manual_seed(1))
BOTH = ["curvature.lambda_max", "relative.kappa_std", "activity.frequency"]


def network(seed=0, inner=None):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        inner = inner or nn.Linear(8, 8)
        return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), inner, nn.ReLU(), nn.Linear(8, 3)).eval()


def values(model, **arguments):
    report = sl.measure(model, (X, Y), measures=BOTH, **arguments)
    return {name: report[name].value for name in BOTH}


def process_wide_state():
    return {
        "cudnn tf32": torch.backends.cudnn.allow_tf32,
        "matmul tf32": torch.backends.cuda.matmul.allow_tf32,
        "flash": torch.backends.cuda.flash_sdp_enabled(),
        "efficient": torch.backends.cuda.mem_efficient_sdp_enabled(),
        "math": torch.backends.cuda.math_sdp_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "cudnn": torch.backends.cudnn.enabled,
        "stance": str(getattr(torch._dynamo.eval_frame, "_stance", None)),
        "random": torch.random.get_rng_state().tolist(),
    }


@pytest.fixture
def other_flags():
    """Flags that a measurement has to change, so that a wrong restoration shows."""
    backends = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [backend.allow_tf32 for backend in backends]
    for backend in backends:
        backend.allow_tf32 = True
    yield
    for backend, allowed in zip(backends, before, strict=True):
        backend.allow_tf32 = allowed


def in_threads(*functions):
    """The results of functions that start at the same time, or what they raised."""
    results = [None] * len(functions)
    start = threading.Barrier(len(functions))

    def run(index, function):
        start.wait()
        try:
            results[index] = function()
        except Exception as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(functions)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    return results


def test_threads_leave_flags_and_random_state(other_flags):
    models = [network(seed) for seed in range(3)]
    expected = [values(copy.deepcopy(model)) for model in models]
    before = process_wide_state()
    for _ in range(2):
        found = in_threads(*[lambda model=model: values(model) for model in models])
        assert process_wide_state() == before
        assert found == expected


def test_penalties_and_monitors_take_turns(other_flags):
    # Built beforehand: initializing a network under a seed of its own is not for threads.
    watched, penalized, measured = network(1).train(), network(2), network(3)

    def monitor():
        return sl.FlatnessMonitor(watched, (X, Y), every=1).step()["status"]

    def penalize():
        return bool(sl.FlatnessPenalty(penalized, 0.1)(X, Y).detach() > 0)

    def differentiate():
        for _ in range(20):
            with thrice_differentiable():
                time.sleep(0.001)
        return True

    before = process_wide_state()
    found = in_threads(monitor, penalize, differentiate, lambda: bool(values(measured)))
    assert found == ["ok", True, True, True]
    assert process_wide_state() == before


@pytest.mark.parametrize("shared", ["model", "module", "weight"])
def test_a_model_that_another_thread_measures_is_refused(shared):
    inner = nn.Linear(8, 8)
    first, second = network(0, inner), network(1, inner)
    if shared == "model":
        second = first
    if shared == "weight":
        second[2] = nn.Linear(8, 8)
        second[2].weight = inner.weight
    expected = values(copy.deepcopy(first))
    inside, refused = threading.Event(), threading.Event()

    def wait(*_):
        inside.set()
        assert refused.wait(60)

    def measure_second():
        assert inside.wait(60)
        try:
            values(second)
        finally:
            refused.set()

    found, error = in_threads(lambda: values(first, progress=wait), measure_second)
    assert found == expected
    assert isinstance(error, sl.SpiritlevelError)
    assert "must be measured by one thread at a time" in str(error)
    assert "copy.deepcopy(model)" in str(error)
    assert shared != "weight" or "'2.weight'" in str(error)
    assert values(second)  # free again


VERBS = {
    "preflight": sl.preflight,
    "eigenvalues": sl.eigenvalues,
    "density": sl.density,
    "neurons": sl.neurons,
    "audit": sl.audit,
    "landscape": sl.landscape,
    "compare": lambda model, data: sl.compare({"a": model}, data),
    "monitor": sl.FlatnessMonitor,
}


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_every_verb_refuses_it(verb):
    model, refusals = network(), []

    def progress(*_):
        if not refusals:
            refusals.extend(in_threads(lambda: verb(model, (X, Y))))

    values(model, progress=progress)
    assert "one thread at a time" in str(refusals[0])


def test_a_thread_may_measure_inside_of_a_measurement():
    model, other = network(0), network(1)
    expected = values(copy.deepcopy(model))
    inner = []

    def progress(*_):
        inner.append(values(other))
        inner.append(values(model))
        with torch.no_grad():
            model(X + 1)  # hooks that were left in place would see it

    found = values(model, progress=progress)
    assert found == expected
    assert inner[1] == expected


def test_another_thread_that_uses_the_model_does_not_disturb():
    model = network()
    expected, stop = values(copy.deepcopy(model)), threading.Event()

    def use():
        while not stop.is_set():
            # it may meet weights that are replaced for a moment, by float64 for example
            with torch.no_grad(), contextlib.suppress(RuntimeError):
                model(X[:5])

    def measure():
        try:
            return [values(model) for _ in range(2)]
        finally:
            stop.set()

    found, _ = in_threads(measure, use)
    assert found == [expected] * 2


def test_tasks_of_asyncio_take_turns():
    models = [network(seed) for seed in range(3)]
    expected = [values(copy.deepcopy(model)) for model in models]

    async def measure_all():
        return await asyncio.gather(*(asyncio.to_thread(values, model) for model in models))

    before = process_wide_state()
    assert asyncio.run(measure_all()) == expected
    assert process_wide_state() == before


def test_waiting_can_be_interrupted():
    taken, release = threading.Event(), threading.Event()

    def hold():
        with process_state():
            taken.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert taken.wait(60)
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        with pytest.raises(KeyboardInterrupt):
            values(network())
    finally:
        release.set()
        thread.join()
    assert values(network())  # neither the lock nor the model is taken


FORKING = """
import os, threading, torch
from torch import nn
import spiritlevel as sl
data = torch.ones(4, 3), torch.zeros(4, dtype=torch.long)
shared = nn.Linear(3, 2)

def fork(*_):
    child = os.fork()
    if child == 0:  # the thread that measures does not exist here
        sl.measure(shared, data, measures="head.trace")
        os._exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

def child_of_the_measuring_thread(*_):
    child = os.fork()
    if child == 0:
        sl.measure(shared, data, measures="head.trace")
        os._exit(8)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))

inside, done = threading.Event(), threading.Event()
def wait(*_):
    inside.set()
    done.wait(60)
thread = threading.Thread(
    target=lambda: sl.measure(shared, data, measures="head.trace", progress=wait)
)
thread.start()
inside.wait(60)
fork()
done.set()
thread.join()
sl.measure(shared, data, measures="head.trace", progress=child_of_the_measuring_thread)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_fork_in_the_middle_can_measure(tmp_path):
    script = tmp_path / "forking.py"
    script.write_text(FORKING)
    # the child of the measuring thread once for the plan, once for the samples
    assert run_script(script).split() == ["7", "8", "8"]
