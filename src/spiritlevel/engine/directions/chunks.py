"""The data of all processes, chunk by chunk, with the uses of the weights that are changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from ...model.arithmetic import full_precision
from ...model.layer_hooks import LayerUse
from ..recorded_runs import RecordedRun, RecordedRuns
from ..sweep.probed_rows import SampleNumbers
from ..workspace import Workspace


def add_chunks(
    workspace: Workspace,
    names: Sequence[str],
    chunk: int,
    add: Callable[[RecordedRun, Tensor], None],
) -> None:
    """Run the model on all data; `add` gets each run, and the numbers of its samples.

    The places of a run are those of the weights in `names` alone.
    """
    surface = workspace.surface
    numbers = SampleNumbers(workspace)
    runs = RecordedRuns(workspace, names)
    with surface.processes.together(), full_precision():
        for where, batch in surface.chunks(chunk):
            with runs.run(batch, where) as run, surface.numbers.fast():
                places = [place for place in run.places if weight_of(place[0]) in names]
                add(run._replace(places=places), numbers.of(where, len(run.outputs)))


def weight_of(use: LayerUse) -> str:
    """The name of the weight that is used; empty where none is."""
    return use.names.get("weight", "")
