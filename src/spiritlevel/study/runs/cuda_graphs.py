"""Work on a GPU that is recorded once and then replayed: small kernels need not wait for Python.

A step of a small network is hundreds of kernels that each take microseconds, and Python takes
longer to ask for them. A CUDA graph asks for all of them at once.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

WARM_UP = 3  # calls before the recording: libraries choose their kernels and take their memory
Captured = Callable[..., Sequence[Tensor | None]]
Shapes = tuple[tuple[torch.Size, torch.dtype], ...]


def recordable(model: str, device: torch.device) -> bool:
    """On a GPU, the package's own networks: others may decide in Python what would be recorded."""
    return device.type == "cuda" and is_own(model)


def is_own(model: str) -> bool:
    """Whether a network comes with the package, by its name or as "module:function"."""
    module, colon, _ = model.partition(":")
    return not colon or module.partition(".")[0] == __name__.partition(".")[0]


@dataclasses.dataclass(frozen=True)
class _Recording:
    graph: torch.cuda.CUDAGraph
    inputs: tuple[Tensor, ...]
    outputs: Sequence[Tensor | None]


class Recorded:
    """Calls `work`, from its fourth call with inputs of some shape on as a CUDA graph.

    `work` may change tensors in place (running statistics), must read its other tensors where they
    are at the recording, and must ask for the same kernels each time: no decision in Python may
    depend on a number. What it returns is overwritten by the next call. What cannot be recorded (a
    kernel whose result the CPU waits for) is called as before.
    """

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self._calls: dict[Shapes, int] = {}
        self._recordings: dict[Shapes, _Recording] = {}
        self._possible = True
        self._stream: torch.cuda.Stream | None = None

    def __call__(self, *inputs: Tensor) -> Sequence[Tensor | None]:
        """What `work` returns for these inputs."""
        shapes = tuple((each.shape, each.dtype) for each in inputs)
        recording = self._recordings.get(shapes)
        if recording is None:
            calls = self._calls[shapes] = self._calls.get(shapes, 0) + 1
            if calls <= WARM_UP or not self._possible:
                return self._aside(inputs)
            try:
                recording = self._recordings[shapes] = self._record(inputs)
            except RuntimeError as error:
                self._possible = False
                cause = str(error).strip().partition("\n")[0]
                warnings.warn(f"Steps cannot be recorded and are slower: {cause}", stacklevel=3)
                return self._aside(inputs)
        for kept, given in zip(recording.inputs, inputs, strict=True):
            kept.copy_(given)
        recording.graph.replay()
        return recording.outputs

    def forget(self) -> None:
        """Record again: tensors that `work` reads are others now."""
        self._calls.clear()
        self._recordings.clear()

    def _aside(self, inputs: Sequence[Tensor]) -> Sequence[Tensor | None]:
        """On a stream that is not the default one, as what is recorded later."""
        device = inputs[0].device
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            found = self._captured(*inputs)
        torch.cuda.current_stream(device).wait_stream(self._stream)
        return found

    def _record(self, inputs: Sequence[Tensor]) -> _Recording:
        graph = torch.cuda.CUDAGraph()
        outside = torch.cuda.current_stream(inputs[0].device)
        # While it is recorded, memory kept from earlier work can be neither used nor given back.
        # Before the next line, which may take a part of a block that then cannot be given back.
        torch.cuda.empty_cache()
        kept = tuple(torch.empty_like(each) for each in inputs)
        # Nothing is computed while it is recorded, on the stream of the inputs' GPU; other threads
        # may go on using it. A recording that fails leaves its stream behind, so it is put back.
        try:
            with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                outputs = self._captured(*kept)
        finally:
            torch.cuda.set_stream(outside)
        return _Recording(graph, kept, outputs)
