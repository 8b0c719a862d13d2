"""The network of a run before training: built, initialized or loaded, and changed on purpose."""

from __future__ import annotations

import copy
import dataclasses
import math
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn

from spiritlevel.ground.errors import SpiritlevelError, brief
from spiritlevel.ground.files import check_name
from spiritlevel.inputs.checkpoints import load_weights
from spiritlevel.inputs.models import build
from spiritlevel.training.norm_control import NORMS, constrain_weights_, replace_norms

from ..interventions import bias_shift, mask_feature_maps
from ..run_results import History
from ..settings.run import RunSettings
from ..storage.database import DATABASE
from ..storage.integrity import intact_checkpoint
from ..storage.store import Store
from .outcomes import Ending, EpochSteps
from .run_data import DTYPES, RunData, derived_generator, load_data

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
LAYERS = (nn.Linear, *CONVOLUTIONS)
Draw = Callable[[Tensor, torch.Generator], object]
SCHEMES: dict[str, Draw] = {  # the four of paper 003, section 4, and one of our own
    "xavier_normal": lambda w, g: nn.init.xavier_normal_(w, generator=g),
    "kaiming_uniform": lambda w, g: nn.init.kaiming_uniform_(w, generator=g),
    "uniform": lambda w, g: nn.init.uniform_(w, -0.1, 0.1, generator=g),
    "normal": lambda w, g: nn.init.normal_(w, 0.0, math.sqrt(0.1), generator=g),
    "narrow_normal": lambda w, g: nn.init.normal_(w, 0.0, 0.1, generator=g),
}


def build_model(settings: RunSettings, device: str | torch.device) -> nn.Module:
    """The untrained network; its weights depend on the seed, and on the file it starts from."""
    model = build(settings.model.name, seed=settings.seed, **settings.model.arguments)
    is_shape_only = torch.device(device).type == "meta"
    if settings.training.norm_control and any(isinstance(m, NORMS) for m in model.modules()):
        replace_norms(model)
    if not is_shape_only:
        _set_weights(model, settings)
    model = _changed(model, settings)
    if settings.training.norm_control and not is_shape_only:
        constrain_weights_(model)
    return model.to(device, DTYPES[settings.training.dtype])


def first_layer(model: nn.Module) -> str:
    """The first linear or convolution layer."""
    for path, module in model.named_modules():
        if isinstance(module, LAYERS):
            return path
    raise SpiritlevelError(
        "The study's interventions.bias_shift needs a linear or convolution layer, and "
        f"{type(model).__name__} has none. Name the layer with bias_layer."
    )


def head_path(model: nn.Module, name: str | None = None) -> str:
    """The layer that gives the outputs: as named, else the one called `head`, else the last one."""
    modules = dict(model.named_modules())
    if name is not None:
        if name not in modules:
            raise SpiritlevelError(
                "The study's measure_options.head must name a layer of the model. Got "
                f"{brief(name)}. There are: {', '.join(path for path in modules if path)}."
            )
        return name
    if "head" in modules:
        return "head"
    paths = [path for path, module in modules.items() if isinstance(module, LAYERS)]
    if not paths:
        raise SpiritlevelError(
            f"The network {type(model).__name__} must have a head: a linear or convolution layer. "
            "It has none; name the layer with measure_options.head."
        )
    return paths[-1]


@torch.no_grad()
def _set_weights(model: nn.Module, settings: RunSettings) -> None:
    if scheme := settings.model.init:
        generator = derived_generator(settings.seed, "initialization")
        for _, param in model.named_parameters():
            if param.dim() > 1:  # biases and the scales of norm layers keep their own start
                SCHEMES[scheme](param, generator)
    if settings.model.init_bias == "zero":
        for module in model.modules():
            if isinstance(module, LAYERS) and module.bias is not None:
                module.bias.zero_()
    if start := settings.model.init_from:
        head = settings.measure_options.head
        kept = head_path(model, head) if settings.model.init_head == "fresh" else None
        load_weights(model, str(find_start(start, settings.seed)), keep=kept)


def _changed(model: nn.Module, settings: RunSettings) -> nn.Module:
    given = settings.interventions
    if amount := given.bias_shift:
        model = bias_shift(model, given.bias_layer or first_layer(model), amount)
    if ratio := given.mask:
        layers = given.mask_layers or _inner_convolutions(model, settings.measure_options.head)
        if given.mask_place == "norm":
            layers = norms_after(model, layers or [])
        generator = derived_generator(settings.seed, "masks")
        model = mask_feature_maps(model, layers, ratio, generator)
    return model


def _inner_convolutions(model: nn.Module, head: str | None) -> list[str] | None:
    """All convolutions but the head, whose maps are the classes; None without any."""
    output = head_path(model, head)
    modules = model.named_modules()
    paths = [path for path, module in modules if isinstance(module, CONVOLUTIONS)]
    return [path for path in paths if path != output] or None


def norms_after(model: nn.Module, convolutions: Sequence[str]) -> list[str]:
    """The norm layer that follows each convolution, which adds a bias to maps that are zero.

    A convolution without one stands for itself.
    """
    modules = {path: m for path, m in model.named_modules() if not any(m.children())}
    following = dict(zip(modules, [*modules][1:], strict=False))
    places = []
    for path in convolutions:
        after = following.get(path)
        features = getattr(modules.get(after or ""), "num_features", None)
        is_its_norm = features == getattr(modules[path], "out_channels", None)
        places.append(after if after is not None and is_its_norm else path)
    return places


# -- weights that were trained before --------------------------------------------------------------


def find_start(start: str, seed: int) -> pathlib.Path:
    """The checkpoint that `start` stands for.

    Args:
        start: a checkpoint's path; a study's folder, for its only run or that with this seed; or
            "folder#run" for a run by its id.
        seed: of the run that starts there.
    """
    path = pathlib.Path(os.path.expanduser(start))
    folder, _, run = start.partition("#")
    if path.is_file() or not (run or path.is_dir()):
        return path  # if it is not there, loading it fails with a clear error
    folder_path = pathlib.Path(os.path.expanduser(folder))
    if not (folder_path / DATABASE).is_file():
        raise SpiritlevelError(
            f"The study's model.init_from must be a checkpoint, or the folder of a study. "
            f"{folder!r} holds no {DATABASE}. Check the path."
        )
    run = run or _run_of(folder_path, seed)
    advice = "Write 'folder#ID' with the id of a run, as `spiritlevel study export` lists them."
    check_name(run, what="run of the study's model.init_from", advice=advice)
    return intact_checkpoint(folder_path, run)


def _run_of(folder: pathlib.Path, seed: int) -> str:
    """The id of the only run of a study, or of its only finished run with this seed."""
    with Store.open(folder) as store:
        rows = store.rows("runs")
    done = [row for row in rows if row["status"] == "done"]
    found = [row["id"] for row in done if row["seed"] == seed or len(rows) == 1]
    if len(found) != 1:
        raise SpiritlevelError(
            f"The study in {str(folder)!r} must have one finished run with seed {seed} to start "
            f"from. It has {len(found)}. Run it first, or name the run: '{folder}#ID'. (Any seed "
            "will do where the study has a single run.)"
        )
    return str(found[0])


@dataclasses.dataclass
class NetworkRun:
    """What a run is asked to do, what it does it with, and what it has seen so far."""

    settings: RunSettings
    data: RunData
    model: nn.Module
    initial: Mapping[str, Tensor]  # the weights before training, for measures that ask for them
    history: History = dataclasses.field(default_factory=History)
    ending: Ending = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.ending = Ending(self.settings.stop, self.settings.training.epochs)

    @classmethod
    def start(cls, settings: RunSettings, device: str | torch.device = "cpu") -> NetworkRun:
        """With its data loaded and its network built, before training."""
        data = load_data(settings, device)
        model = build_model(settings, device)
        return cls(settings, data, model, copy.deepcopy(model.state_dict()))

    def is_due(self, epoch: int, steps: EpochSteps) -> bool:
        """Whether loss and accuracy are taken after this epoch."""
        return self.settings.evaluated_at(epoch) or bool(self.ending.reached_by(steps))

    @property
    def head(self) -> str:
        """The layer that gives the outputs, as the study names it or as it is found."""
        return head_path(self.model, self.settings.measure_options.head)
