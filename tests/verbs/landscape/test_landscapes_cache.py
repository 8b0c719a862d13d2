"""Slices that go on after an interruption, also over several processes."""

import json
import multiprocessing
import os

import pytest
import torch
import torch.distributed as dist

import spiritlevel as sl
from spiritlevel.model.surface import Surface
from spiritlevel.verbs import reference_problems as problems
from spiritlevel.verbs.landscape import cache as caches
from spiritlevel.verbs.landscape import landscape

pytestmark = pytest.mark.sampled(2)  # the others at night


class Counter:
    """Samples that went through a model, and a stop after some of them."""

    def __init__(self, model, stop_after=None):
        self.samples, self.stop_after = 0, stop_after
        self.handle = model.register_forward_pre_hook(self)

    def __call__(self, module, inputs):
        self.samples += len(inputs[0])
        if self.stop_after is not None and self.samples > self.stop_after:
            raise KeyboardInterrupt

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.handle.remove()


def test_an_interrupted_slice_goes_on_where_it_was(tmp_path):
    problem = problems.relu_mlp()
    options = {"points": 15, "seed": 4, "dimensions": 1}
    with Counter(problem.model) as whole:
        expected = landscape(problem.model, problem.data, **options)
    # what planning takes, without the runs that show that samples do not interact: three samples
    # together, each alone, and again together
    beside = whole.samples - 15 * 8 - 9
    path = tmp_path / "slice.jsonl"
    with Counter(problem.model, stop_after=beside + 50), pytest.raises(KeyboardInterrupt):
        landscape(problem.model, problem.data, cache=path, **options)
    kept = len(path.read_text().splitlines()) - 1
    assert kept == 4  # of 50 samples 32 make up the first pass over the data with four points
    with Counter(problem.model) as rest:
        found = landscape(problem.model, problem.data, cache=path, **options)
    assert rest.samples == beside + (15 - kept) * 8
    assert found.losses == expected.losses  # to the last bit
    assert found.errors == expected.errors
    assert found.settings["points_from_cache"] == kept
    with Counter(problem.model) as nothing:
        again = landscape(problem.model, problem.data, cache=path, **options)
    assert nothing.samples == beside
    assert again.losses == expected.losses


def test_a_finer_grid_takes_over_what_is_there(tmp_path):
    problem = problems.relu_mlp()
    path = tmp_path / "slice.jsonl"
    landscape(problem.model, problem.data, points=5, cache=path)
    found = landscape(problem.model, problem.data, points=9, cache=path)
    assert found.settings["points_from_cache"] == 5
    assert found.losses == landscape(problem.model, problem.data, points=9).losses


def test_a_line_that_was_cut_off_is_done_again(tmp_path):
    problem = problems.relu_mlp()
    path = tmp_path / "slice.jsonl"
    first = landscape(problem.model, problem.data, points=5, cache=path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    found = landscape(problem.model, problem.data, points=5, cache=path)
    assert found.settings["points_from_cache"] == 4
    assert found.losses == first.losses
    assert path.read_bytes() == whole


def test_what_is_not_finite_is_not_done_again(tmp_path):
    problem = problems.relu_mlp(torch.float32)
    path = tmp_path / "slice.jsonl"
    options = {"points": 3, "reach": 1e30, "cache": path}
    first = landscape(problem.model, problem.data, **options)
    found = landscape(problem.model, problem.data, **options)
    assert found.settings["points_from_cache"] == 3
    assert list(map(str, found.losses)) == list(map(str, first.losses))


def test_points_of_another_slice_are_refused(tmp_path):
    problem = problems.relu_mlp()
    path = tmp_path / "slice.jsonl"
    landscape(problem.model, problem.data, points=3, cache=path)
    held = path.read_bytes()

    def refused(text, model=problem.model, data=problem.data, **options):
        with pytest.raises(sl.SpiritlevelError, match=f"another slice .*{text}.*delete the file"):
            landscape(model, data, points=3, cache=path, **options)
        assert path.read_bytes() == held

    refused("seed 0 there, 1 here", seed=1)
    refused("dimensions 1 there, 2 here", dimensions=2)
    refused("directions 'random' there, 'eigen' here", directions="eigen")
    refused("layers", layers="4")
    refused("biases False there, True here", biases=True)
    refused("num_samples 8 there, 5 here.*data", data=problem.data[:2])
    x, y = problem.data[0]
    refused("data '", data=[(x + 1e-9, y), *problem.data[1:]])
    with torch.no_grad():
        problem.model[0].weight[0, 0] += 1e-9
    refused("weights '")


@pytest.mark.parametrize("content", ["notes of mine\n", "notes", '{"format": "x"}\n', "[1]\n"])
def test_another_file_is_not_touched(tmp_path, content):
    problem = problems.relu_mlp()
    path = tmp_path / "notes.txt"
    path.write_text(content)
    with pytest.raises(sl.SpiritlevelError, match="exists and is not such a cache"):
        landscape(problem.model, problem.data, points=3, cache=path)
    assert path.read_text() == content


def test_a_damaged_line_and_a_folder_are_refused(tmp_path):
    problem = problems.relu_mlp()
    path = tmp_path / "slice.jsonl"
    landscape(problem.model, problem.data, points=3, cache=path)
    heading, first, *rest = path.read_text().splitlines(keepends=True)
    path.write_text("".join([heading, first[5:], *rest]))
    with pytest.raises(sl.SpiritlevelError, match="a line in the middle of it is damaged"):
        landscape(problem.model, problem.data, points=3, cache=path)
    with pytest.raises(sl.SpiritlevelError, match="it cannot be read"):
        landscape(problem.model, problem.data, points=3, cache=tmp_path)


def test_data_keeps_its_name_in_any_order_and_batches():
    problem = problems.relu_mlp()
    x, y = problem.inputs(), problem.targets()

    def name(data):
        return caches.of_data(Surface(problem.model, data))

    own = name(problem.data)
    order = torch.tensor([3, 0, 7, 1, 2, 6, 5, 4])
    assert name([(x[order], y[order])]) == own
    assert name([(x, y[order])]) != own
    assert name([(torch.cat([x, x[:1]]), torch.cat([y, y[:1]]))]) != own


def share(folder, rank):
    """One of two processes that take the same slice twice, each with its part of the data."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # sandboxes do not always know the host's name
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    problem = problems.relu_mlp()
    data = problem.data[:1] if rank == 0 else problem.data[1:]
    path = folder / "slice.jsonl"
    found = [landscape(problem.model, data, points=5, cache=path).to_dict() for _ in range(2)]
    (folder / f"{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)  # a thread of gloo's sometimes aborts a process that ends in the usual way


@pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available())
    or "fork" not in multiprocessing.get_all_start_methods(),
    reason="needs torch with gloo, and processes that begin as copies of this one",
)
def test_two_processes_find_what_one_finds(tmp_path):
    context = multiprocessing.get_context("fork")  # a fresh one would import torch again
    running = [context.Process(target=share, args=(tmp_path, rank)) for rank in range(2)]
    for process in running:
        process.start()
    for process in running:
        process.join(timeout=120)
        assert process.exitcode == 0
    problem = problems.relu_mlp()
    expected = landscape(problem.model, problem.data, points=5).losses
    for rank in range(2):
        first, again = json.loads((tmp_path / f"{rank}.json").read_text())
        assert first["losses"] == pytest.approx(expected, rel=1e-13)
        assert again["losses"] == first["losses"]
        assert again["settings"]["points_from_cache"] == 5
        assert first["settings"]["num_samples"] == 8
