"""What commands, tutorials and the laboratory start from: data, built-in networks, checkpoints.

    from spiritlevel.inputs import digits, mlp

There are more in `inputs.data`, `inputs.models` and `inputs.checkpoints`.
"""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from ..ground.lazy import lazy as _lazy

if _TYPE_CHECKING:
    from .checkpoints import load_checkpoint as load_checkpoint
    from .checkpoints import save_checkpoint as save_checkpoint
    from .data import digits as digits
    from .data import fetch as fetch
    from .data import load as load
    from .data import read_cifar as read_cifar
    from .data import read_folder as read_folder
    from .data import read_labelled_text as read_labelled_text
    from .data import read_mnist as read_mnist
    from .data import read_npz as read_npz
    from .data import read_text as read_text
    from .models import build as build
    from .models import mlp as mlp

_HOMES = {
    "load_checkpoint": ".checkpoints",
    "save_checkpoint": ".checkpoints",
    "digits": ".data",
    "fetch": ".data",
    "load": ".data",
    "read_cifar": ".data",
    "read_folder": ".data",
    "read_labelled_text": ".data",
    "read_mnist": ".data",
    "read_npz": ".data",
    "read_text": ".data",
    "build": ".models",
    "mlp": ".models",
}
__getattr__, __dir__ = _lazy(__name__, _HOMES, ("checkpoints", "data", "models"))
