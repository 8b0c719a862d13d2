"""What commands, tutorials and the laboratory start from: data, built-in networks, checkpoints.

    from spiritlevel.inputs import digits, mlp

There are more in `inputs.data`, `inputs.models` and `inputs.checkpoints`.
"""

from .checkpoints import load_checkpoint, save_checkpoint
from .data import digits, fetch, load, read_cifar, read_folder, read_mnist, read_npz
from .models import build, mlp

__all__ = [
    "build",
    "digits",
    "fetch",
    "load",
    "load_checkpoint",
    "mlp",
    "read_cifar",
    "read_folder",
    "read_mnist",
    "read_npz",
    "save_checkpoint",
]
