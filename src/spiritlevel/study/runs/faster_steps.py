"""Steps recorded once as a CUDA graph and replayed, and forward passes fused by torch.compile.

A step of a small network is hundreds of kernels that each take microseconds, and Python takes
longer to launch them. A CUDA graph launches all of them at once.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...errors import is_out_of_memory
from ..models.registry import is_own

WARM_UP = 3  # calls before the recording, in which libraries choose kernels and allocate memory
Captured = Callable[..., Sequence[Tensor | None]]
Shapes = tuple[tuple[torch.Size, torch.dtype], ...]


def recordable(model: str, device: torch.device) -> bool:
    """On a GPU, the package's own networks: others may decide in Python what would be recorded."""
    return device.type == "cuda" and is_own(model)


@dataclasses.dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: Sequence[Tensor | None]


class Recorded:
    """Calls a function, as a CUDA graph from its fourth call with inputs of one shape.

    The function may change tensors in place (running statistics). It must find its other tensors
    where they were when it was recorded, and launch the same kernels each time: no decision in
    Python may depend on a number. What it returns is overwritten by the next call. A function that
    cannot be recorded (the CPU waits for one of its kernels) is called as usual.
    """

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self._calls: dict[Shapes, int] = {}
        self._recordings: dict[Shapes, _Recording] = {}
        self._possible = True
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor | None]:
        """What the function returns for these inputs."""
        shapes = tuple((each.shape, each.dtype) for each in inputs)
        recording = self._recordings.get(shapes)
        if recording is None:
            calls = self._calls[shapes] = self._calls.get(shapes, 0) + 1
            if calls <= WARM_UP or not self._possible:
                return self._on_a_stream(inputs)
            try:
                recording = self._recordings[shapes] = self._record(inputs)
            except RuntimeError as error:
                if is_out_of_memory(error):
                    raise
                self._possible = False
                cause = str(error).strip().partition("\n")[0]
                warnings.warn(f"Steps cannot be recorded and are slower: {cause}", stacklevel=3)
                return self._on_a_stream(inputs)
        for recorded, given in zip(recording.inputs, inputs, strict=True):
            recorded.copy_(given)
        recording.graph.replay()
        return recording.outputs

    def forget(self) -> None:
        """Record again: the function reads other tensors now."""
        self._calls.clear()
        self._recordings.clear()

    def _on_a_stream(self, inputs: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """Call it on a stream that is not the default one, as a recording needs."""
        device = inputs[0].device
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            outputs = self._captured(*inputs)
        torch.cuda.current_stream(device).wait_stream(self._stream)
        return outputs

    def _record(self, inputs: Sequence[Tensor]) -> _Recording:
        graph = torch.cuda.CUDAGraph()
        outside = torch.cuda.current_stream(inputs[0].device)
        # While it is recorded, torch can neither use nor free the memory it has in reserve. So it
        # is freed now, before the next line takes a part of a block that then cannot be freed.
        torch.cuda.empty_cache()
        recorded = tuple(torch.empty_like(each) for each in inputs)
        # Nothing is computed while it is recorded, and other threads may go on using the GPU. A
        # recording that fails leaves its stream as the current one, so the old one is set again.
        try:
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                outputs = self._captured(*recorded)
        finally:
            torch.cuda.set_stream(outside)
        return _Recording(graph, recorded, outputs)


BatchForward = Callable[..., Tensor]
# Networks that a process may compile one after another. At torch's own limit, 8, it would give up
# and go the usual way, and the last digits of a run would depend on the runs before it.
MOST = 1 << 20


class Fused:
    """Calls a function of which the last argument is a batch.

    The smaller batch at the end of an epoch goes the usual way: to compile for it would take longer
    than it ever saves.

    Args:
        forward: the function.
        size: samples of a whole batch.
        dim: where the batch has its samples.
    """

    def __init__(self, forward: BatchForward, size: int, *, dim: int = 0) -> None:
        # Not for any size, which torch would try for the second one that it meets: see above.
        self._forward, self._fused = forward, torch.compile(forward, dynamic=False)
        self._size, self._dim = size, dim

    def __call__(self, *given: Any) -> Tensor:
        """What the function returns, up to round-off."""
        if given[-1].shape[self._dim] != self._size:
            return self._forward(*given)
        with torch._dynamo.config.patch(cache_size_limit=MOST, accumulated_cache_size_limit=MOST):
            return self._fused(*given)
