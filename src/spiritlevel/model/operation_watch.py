"""A base for what looks at every operation that torch runs during a block."""

from __future__ import annotations

from torch.utils._python_dispatch import TorchDispatchMode


class OperationWatch(TorchDispatchMode):
    """A dispatch mode that does not import torch's compiler.

    Torch wraps the dispatch function of a mode so that the compiler leaves it alone, which imports
    the compiler: two to five seconds at the first use. Models are measured uncompiled.
    """

    def __init__(self) -> None:
        """A mode without a dispatch key of its own."""
        super().__init__()  # type: ignore[no-untyped-call]

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False
