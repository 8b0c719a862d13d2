"""Ports: where layers of a known kind keep the units they read and the units they write."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from torch import nn

from .moves import NOBODY, Role, Site


@dataclasses.dataclass(frozen=True)
class Slot:
    """A dimension of one of the module's tensors that runs along its units."""

    tensor: str
    dim: int
    role: Role
    groups: int = 1
    eps: float = 0.0


@dataclasses.dataclass(frozen=True)
class Port:
    """A layer: the units it writes, and how it makes up for a factor on what it reads."""

    path: str
    width: int  # units along its output
    axis: int  # of its input and of its output, along which the units lie
    writes: tuple[Slot, ...]  # multiplied, these multiply the output
    reads: tuple[Slot, ...] = ()  # changed by their roles, these undo a factor on the input
    num_inputs: int = 1
    carries: bool = False  # reordered units come out in the same new order
    values: tuple[Slot, ...] = ()  # attention inside one module: its values and what reads them

    def written(self, width: int, start: int) -> list[Site]:
        """Sites of the output's units start … start + width − 1."""
        units = [k - start if start <= k < start + width else NOBODY for k in range(self.width)]
        return [self.site(slot, units) for slot in self.writes]

    def site(self, slot: Slot, units: Sequence[int]) -> Site:
        """The slot with the unit of each entry."""
        return Site(
            self.path, slot.tensor, slot.dim, tuple(units), slot.role, slot.groups, slot.eps
        )


def ports_of(model: nn.Module) -> dict[str, Port]:
    """The ports of a model by path; a module that is used twice has its first path."""
    ports = {path: port_of(path, module) for path, module in model.named_modules()}
    return {path: port for path, port in ports.items() if port is not None}


def port_of(path: str, module: nn.Module) -> Port | None:
    """How the module reads and writes units; None for an unknown kind."""
    if isinstance(module, nn.MultiheadAttention):
        return _attention(path, module)
    if isinstance(module, nn.modules.batchnorm._NormBase):
        return _channel_norm(path, module)
    if not _owns_weight(module):
        return None
    if isinstance(module, nn.Linear):
        return Port(path, module.out_features, -1, _writes(module, 0), _reads(1))
    if isinstance(module, nn.Embedding):
        if module.max_norm is not None:  # its rows are renormalized while the network runs
            return None
        return Port(path, module.embedding_dim, -1, _writes(module, 1), num_inputs=0)
    if isinstance(module, nn.modules.conv._ConvNd):
        return _convolution(path, module)
    if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
        return Port(path, len(module.weight), -1, _writes(module, 0), carries=True)
    if isinstance(module, nn.GroupNorm):
        channels = module.num_channels
        carries = module.num_groups in (1, channels)
        return Port(path, channels, 1, _writes(module, 0), carries=carries)
    return _by_class_name(path, module)


def _by_class_name(path: str, module: nn.Module) -> Port | None:
    """Layers that several libraries write themselves; whether the guess holds is verified later."""
    kind, weight = type(module).__name__, module._parameters["weight"]
    if weight is None:
        return None
    if kind == "Conv1D" and weight.dim() == 2:  # transformers: a Linear with its weight transposed
        return Port(path, weight.shape[1], -1, _writes(module, 1), _reads(0))
    if kind.endswith("RMSNorm") and weight.dim() == 1:
        return Port(path, len(weight), -1, _writes(module, 0), carries=True)
    return None


def _convolution(path: str, module: nn.modules.conv._ConvNd) -> Port | None:
    axis = -1 - len(module.kernel_size)
    width, groups = module.out_channels, module.groups
    if module.transposed:  # its weight lists inputs first; in groups it is rare and left out
        return Port(path, width, axis, _writes(module, 1), _reads(0)) if groups == 1 else None
    depthwise = groups == module.in_channels == width
    reads = _reads(1, groups)
    return Port(path, width, axis, _writes(module, 0), reads, carries=depthwise and groups > 1)


def _channel_norm(path: str, module: nn.modules.batchnorm._NormBase) -> Port:
    writes = _writes(module, 0) if module.affine else ()
    follow: tuple[Slot, ...] = ()
    if module.running_mean is not None and not module.training:
        mean = Slot("running_mean", 0, Role.MEAN)
        follow = (mean, Slot("running_var", 0, Role.VARIANCE, eps=module.eps))
    return Port(path, module.num_features, 1, writes, follow, carries=True)


def _attention(path: str, module: nn.MultiheadAttention) -> Port:
    width = module.embed_dim
    writes = [Slot("out_proj.weight", 0, Role.TIMES)]
    values = [Slot("out_proj.weight", 1, Role.OVER)]
    if module._qkv_same_embed_dim:
        reads = [Slot("in_proj_weight", 1, Role.OVER)]
        values.append(Slot("in_proj_weight", 0, Role.TIMES))
    else:
        reads = [Slot(f"{which}_proj_weight", 1, Role.OVER) for which in "qkv"]
        values.append(Slot("v_proj_weight", 0, Role.TIMES))
    if module.in_proj_bias is not None:
        writes.append(Slot("out_proj.bias", 0, Role.TIMES))
        values.append(Slot("in_proj_bias", 0, Role.TIMES))
    if module.bias_v is not None:
        values.append(Slot("bias_v", 2, Role.TIMES))
    return Port(path, width, -1, tuple(writes), tuple(reads), num_inputs=3, values=tuple(values))


def _owns_weight(module: nn.Module) -> bool:
    # a parametrized weight is computed from others; one that is quantized has no gradients
    weight = module._parameters.get("weight")
    if weight is None or not weight.numel():
        return False
    return weight.is_floating_point()


def _writes(module: nn.Module, dim: int) -> tuple[Slot, ...]:
    weight = (Slot("weight", dim, Role.TIMES),)
    has_bias = module._parameters.get("bias") is not None
    return (*weight, Slot("bias", 0, Role.TIMES)) if has_bias else weight


def _reads(dim: int, groups: int = 1) -> tuple[Slot, ...]:
    return (Slot("weight", dim, Role.OVER, groups=groups),)
