"""A run that trains a network, while it is at work."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..settings.run import RunSettings
from .networks import build_model, head_path
from .results import History
from .run_data import RunData, load_data


@dataclasses.dataclass
class NetworkRun:
    """What a run is asked to do, what it does it with, and what it has seen so far."""

    settings: RunSettings
    data: RunData
    model: nn.Module
    initial: Mapping[str, Tensor]  # the weights before training, for measures that ask for them
    history: History = dataclasses.field(default_factory=History)

    @classmethod
    def start(cls, settings: RunSettings, device: str | torch.device = "cpu") -> NetworkRun:
        """With its data loaded and its network built, before training."""
        data = load_data(settings, device)
        model = build_model(settings, device)
        return cls(settings, data, model, copy.deepcopy(model.state_dict()))

    @property
    def head(self) -> str:
        """The layer that gives the outputs, as the study names it or as it is found."""
        return head_path(self.model, self.settings.measure_options.head)
