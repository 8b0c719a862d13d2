"""What the layers of a model are called, which parameters they own, and which rules they follow."""

from __future__ import annotations

import functools

from torch import nn

from .layers import AbstractMatrixRule, AbstractRule, rule_for
from .model_state import ROOT


class Layers:
    """The layers of a model; a layer is a module with parameters of its own, named by its path."""

    def __init__(self, model: nn.Module, parameters: dict[str, nn.Parameter]) -> None:
        """`parameters` are those that are measured, by name."""
        self.model, self.parameters = model, parameters

    def of(self, parameter: str) -> str:
        """The path of the module that owns a parameter."""
        return parameter.rpartition(".")[0] or ROOT

    def row_of(self, parameter: str) -> str:
        """What the values of a matrix are listed under: its layer, or the parameter's own name."""
        return self.of(parameter) if parameter.rpartition(".")[2] == "weight" else parameter

    def weight_of(self, row: str) -> str:
        """The parameter behind such a name: the weight of a layer, or the parameter itself."""
        if row in self.parameters:
            return row
        return "weight" if row == ROOT else f"{row}.weight"

    @functools.cached_property
    def tied(self) -> dict[str, str]:
        """Second names of tied parameters, by the name they are measured under."""
        measured_names = {id(p): name for name, p in self.parameters.items()}
        return {
            measured_names[id(p)]: name
            for name, p in self.model.named_parameters(remove_duplicate=False)
            if id(p) in measured_names and name != measured_names[id(p)]
        }

    def module(self, layer: str) -> nn.Module:
        """The module with this layer name."""
        return self.model if layer == ROOT else self.model.get_submodule(layer)

    @functools.cached_property
    def rules(self) -> dict[str, AbstractRule]:
        """Rules by layer, for every module that has one."""
        rules: dict[str, AbstractRule] = {}
        for name, module in self.model.named_modules():
            rule = rule_for(module)
            if rule is not None:
                rules[name or ROOT] = rule
        return rules

    @functools.cached_property
    def matrix_rules(self) -> dict[str, AbstractMatrixRule]:
        """Rules of the layers whose weight is measured and acts as a matrix, in their order."""
        matrix_rules = {}
        for name in self.parameters:
            layer = self.of(name)
            rule = self.rules.get(layer)
            if name.rpartition(".")[2] == "weight" and isinstance(rule, AbstractMatrixRule):
                matrix_rules[layer] = rule
        return matrix_rules

    def measured_names(self, layer: str) -> dict[str, str]:
        """Short to full name of the measured parameters of a layer, under their first names."""
        of_module = self.module(layer).named_parameters(recurse=False)
        return {key: self._names[id(p)] for key, p in of_module if id(p) in self._names}

    @functools.cached_property
    def _names(self) -> dict[int, str]:
        return {id(p): name for name, p in self.parameters.items()}

    def owned(self) -> dict[str, list[str]]:
        """Parameter names by layer, in the model's order."""
        by_layer: dict[str, list[str]] = {}
        for name in self.parameters:
            by_layer.setdefault(self.of(name), []).append(name)
        return by_layer
