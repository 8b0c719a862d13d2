"""How much memory tensors take at the most while something runs."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveVectors(TorchDispatchMode):
    """The most bytes of tensors alive at once among those made inside, in vectors.

    Tensors of fewer than `least` bytes are left out, which is faster.
    """

    def __init__(self, vector_bytes, least=0):
        super().__init__()
        self.vector_bytes, self.least, self.most, self.live = vector_bytes, least, 0.0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [t.untyped_storage() for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        made = [storage for storage in made if storage.nbytes() >= self.least]
        if not made:
            return out
        for storage in made:
            self.live[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.live = {k: v for k, v in self.live.items() if not v[0].expired()}
        total = sum(nbytes for _, nbytes in self.live.values())
        self.most = max(self.most, total / self.vector_bytes)
        return out
