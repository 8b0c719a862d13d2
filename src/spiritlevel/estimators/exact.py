"""One pass over the data that gives everything exact: trace, κ and ρ of every layer, and the head.

For each factor column s_k of the output Hessian one backward pass of ⟨s_k, z⟩ reaches every layer,
and each layer contracts its per-sample gradient G as the signal arrives (`layers/`). Columns are
scaled to size 1 a sample before the backward and the result is scaled back in float64, so that a
confident network, whose columns are 1e-13 and less, loses no digits on the way.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import torch
from torch import Tensor

from .._core import Cost
from ..layers import (
    AbstractMatrixRule,
    AbstractRule,
    Contracted,
    EmbeddingCall,
    MatrixCall,
    Wants,
    contract_gradient,
)
from ..math.contractions import squared_norm
from ..math.curvature import OutputCurvature, SoftmaxCurvature
from ..math.head import head_kappa, head_trace
from ..surface import Surface
from ..taps import Use, deepest, tapped
from .heads import Head
from .moments import Moments
from .per_sample import per_sample_gradients
from .plan import Plan, rules_of


@dataclasses.dataclass(frozen=True)
class Needs:
    """What a pass over the data should bring back."""

    sweep: bool = False
    kappa: bool = False
    rho: bool = False
    head: bool = False
    features: bool = False  # keep φ, outputs and targets of all samples for λ_max and Tr H²
    softmax: bool = False

    def __or__(self, other: Needs) -> Needs:
        return Needs(
            **{
                field.name: getattr(self, field.name) or getattr(other, field.name)
                for field in dataclasses.fields(self)
            }
        )

    def covers(self, other: Needs) -> bool:
        """Whether a pass for these needs also serves `other`."""
        return (self | other) == self


@dataclasses.dataclass
class Pass:
    """What a pass over the data brought back."""

    needs: Needs
    num_samples: int
    cost: Cost
    trace: Moments  # a row a parameter
    kappa: Moments  # a row a layer whose weight acts as a matrix
    rho: Moments  # the same
    neurons: dict[str, Tensor]  # ρ(j) of each such layer
    head: Moments  # rows "trace" and "kappa"
    softmax: Moments  # row "gini"
    features: list[tuple[Tensor, Tensor, Tensor]]  # φ, outputs, targets a chunk


def matrix_layers(surface: Surface) -> dict[str, AbstractMatrixRule]:
    """Layers whose weight is measured and acts as a matrix, in the model's order."""
    rules = rules_of(surface)
    found = {}
    for name in surface.parameters:
        layer = surface.layer_of(name)
        rule = rules.get(layer)
        if name.endswith("weight") and isinstance(rule, AbstractMatrixRule):
            found[layer] = rule
    return found


def run_pass(
    surface: Surface, plan: Plan, needs: Needs, *, head: Head | None, chunk: int
) -> Pass:
    """Go over the data once."""
    before = surface.cost
    sweep = _Sweep(surface, plan, needs) if needs.sweep else None
    matrices = list(matrix_layers(surface))
    result = Pass(
        needs=needs,
        num_samples=0,
        cost=Cost(),
        trace=Moments(surface.parameters, surface.device),
        kappa=Moments(matrices, surface.device),
        rho=Moments(matrices, surface.device),
        neurons=sweep.neurons if sweep is not None else {},
        head=Moments(["trace", "kappa"], surface.device),
        softmax=Moments(["gini"], surface.device),
        features=[],
    )
    for where, batch in surface.chunks(chunk):
        with contextlib.ExitStack() as stack:
            taken = stack.enter_context(_input_of(head if needs.head else None))
            if sweep is not None:
                outputs, targets, curvature = sweep.run(batch, where, result)
            else:
                with torch.no_grad():
                    outputs, targets = surface.outputs(batch, where=where)
                    curvature = surface.loss.curvature(outputs.double(), targets)
        result.num_samples += len(outputs)
        with torch.no_grad():
            weights = surface.loss.weights(outputs, targets).double()
            if needs.head and head is not None:
                _add_head(result, head, taken[-1], outputs, targets, curvature, weights)
            if needs.softmax:
                assert isinstance(curvature, SoftmaxCurvature)
                result.softmax.add((curvature.gini() * weights)[None], weights)
    result.cost = Cost(
        surface.cost.forwards - before.forwards,
        surface.cost.backwards - before.backwards,
        surface.cost.products - before.products,
    )
    return result


def _add_head(
    result: Pass,
    head: Head,
    a: Tensor,
    outputs: Tensor,
    targets: Tensor,
    curvature: OutputCurvature,
    weights: Tensor,
) -> None:
    features = head.features(a.detach()).double()
    rows = [
        head_trace(curvature, features),
        head_kappa(curvature, features, head.weight().double()),
    ]
    result.head.add(torch.stack(rows), weights)
    if result.needs.features:
        result.features.append((features.cpu(), outputs.detach().cpu(), targets.cpu()))


@contextlib.contextmanager
def _input_of(head: Head | None) -> Any:
    """Collects what goes into the head during the block."""
    taken: list[Tensor] = []
    if head is None:
        yield taken
        return
    handle = head.module.register_forward_pre_hook(lambda _, args: taken.append(args[0].detach()))
    try:
        yield taken
    finally:
        handle.remove()


class _Sweep:
    """The backward part of a pass: a row of values for every parameter and layer of a chunk."""

    def __init__(self, surface: Surface, plan: Plan, needs: Needs) -> None:
        self.surface, self.plan, self.needs = surface, plan, needs
        self.rules = {
            layer: rule for layer, rule in rules_of(surface).items() if layer in plan.layouts
        }
        self.names = {id(p): name for name, p in surface.parameters.items()}
        self.wants = Wants(kappa=needs.kappa, rho=needs.rho, num_columns=plan.num_columns)
        self.weights: dict[str, Tensor] = {}
        self.grams: dict[str, Tensor | None] = {}
        self.neurons: dict[str, Tensor] = {}
        for layer, rule in matrix_layers(surface).items():
            module = surface.module(layer)
            weight = rule.matrix(module, module.weight.detach())  # type: ignore[union-attr,operator,arg-type]
            weight = _at_least_float(weight)
            self.weights[layer] = weight
            self.grams[layer] = weight @ weight.mT if needs.kappa else None
            count = weight.shape[0] * rule.neurons(module)
            self.neurons[layer] = torch.zeros(count, dtype=torch.float64, device=weight.device)
        self.modules = {
            layer: surface.module(layer) for layer in self.rules if self._ruled_names(layer)
        }

    def _ruled_names(self, layer: str) -> dict[str, str]:
        """Short to full name of the parameters of a layer that its rule handles."""
        own = self.surface.module(layer).named_parameters(recurse=False)
        named = {key: self.names[id(p)] for key, p in own if id(p) in self.names}
        return {k: n for k, n in named.items() if self.plan.routes[n] in ("single", "sum")}

    def run(
        self, batch: Any, where: str, result: Pass
    ) -> tuple[Tensor, Tensor, OutputCurvature]:
        """Forward, all factor columns, and the sums over this chunk."""
        surface = self.surface
        inputs = frozenset(self.modules) if self.needs.rho else frozenset()
        with torch.enable_grad(), tapped(self.modules, inputs=inputs) as taps:
            outputs, targets = surface.outputs(batch, where=where)
        try:
            with torch.no_grad():
                curvature = surface.loss.curvature(outputs.detach().double(), targets)
                rows = _Rows(result, len(outputs), surface.device)
                edges = self._listen(taps.uses, rows)
                deep = deepest(outputs, edges) if edges else []
                self._columns(outputs, curvature, deep, rows, batch)
                weights = surface.loss.weights(outputs.detach(), targets).double()
                rows.finish(weights)
        finally:
            taps.close()
        return outputs.detach(), targets, curvature

    def _columns(
        self,
        outputs: Tensor,
        curvature: OutputCurvature,
        deep: list[Any],
        rows: _Rows,
        batch: Any,
    ) -> None:
        generic = [name for name, route in self.plan.routes.items() if route == "generic"]
        kept: list[tuple[Tensor, Tensor]] = []
        for column, sign in curvature.columns():
            size = column.abs().amax(dim=1, keepdim=True)
            unit = (column / torch.where(size > 0, size, torch.ones_like(size))).to(outputs.dtype)
            unit = unit.reshape(outputs.shape)
            rows.factor = sign * size.squeeze(1).square()
            if deep:
                self.surface.pull(outputs, unit, deep)
                self._contract_sums(rows)
            if generic:
                kept.append((unit, rows.factor))
        if generic:
            self._contract_generic(generic, batch, kept, rows)

    def _listen(self, uses: list[Use], rows: _Rows) -> list[Any]:
        """Attach each use's contraction to the gradients it will receive."""
        edges = []
        for use in uses:
            named = self._ruled_names(use.layer)
            if use.edge is None:
                continue
            rule = self.rules[use.layer]
            summed = any(self.plan.routes[name] == "sum" for name in named.values())
            wants = dataclasses.replace(self.wants, form="direct") if summed else self.wants
            a = _at_least_float(use.input)
            layout = self.plan.layouts[use.layer]
            call = rule.begin(use.module, a, use.output.shape, layout, wants)
            use.on_output = _Listener(self, rows, use, rule, call, named)
            edges.append(use.edge)
            if self._rho_from_input(call, named, use.layer):
                use.on_input = _InputListener(rows, use.layer, call)
                assert use.input_edge is not None
                edges.append(use.input_edge)
        return edges

    def _rho_from_input(self, call: Any, named: dict[str, str], layer: str) -> bool:
        return (
            self.needs.rho
            and isinstance(call, MatrixCall)
            and call.needs_input_gradient
            and "weight" in named
            and self.plan.routes[named["weight"]] == "single"
            and layer in self.weights
        )

    def _contract_sums(self, rows: _Rows) -> None:
        """Weights used several times: G was added up over the uses of this column."""
        for name, G in rows.pending.items():
            self._contract_formed(name, G, rows, rows.factor)
        rows.pending.clear()

    def _contract_generic(
        self, names: list[str], batch: Any, kept: list[tuple[Tensor, Tensor]], rows: _Rows
    ) -> None:
        columns = torch.stack([unit for unit, _ in kept], dim=1)
        gradients = per_sample_gradients(
            self.surface, names, batch, columns, vectorize=self.plan.vectorize
        )
        for name, G in gradients.items():
            for k, (_, factor) in enumerate(kept):
                self._contract_formed(name, _at_least_float(G[:, k]), rows, factor)

    def _contract_formed(self, name: str, G: Tensor, rows: _Rows, factor: Tensor) -> None:
        layer = self.surface.layer_of(name)
        if layer not in self.weights or not name.endswith("weight"):
            rows.add_trace(name, squared_norm(G), factor)
            return
        rule, module = rules_of(self.surface)[layer], self.surface.module(layer)
        assert isinstance(rule, AbstractMatrixRule)
        contracted = contract_gradient(
            rule.matrix(module, G),
            self.weights[layer],
            self.grams[layer],
            rule.neurons(module),
            rho=self.needs.rho,
        )
        rows.add(name, layer, contracted, factor)


class _Rows:
    """Values of one chunk, a row a parameter or layer and a column a sample, in float64."""

    def __init__(self, result: Pass, num_samples: int, device: torch.device) -> None:
        self.result = result
        self.factor = torch.empty(0)
        self.pending: dict[str, Tensor] = {}
        zeros = {"dtype": torch.float64, "device": device}
        self.trace = torch.zeros(len(result.trace.index), num_samples, **zeros)  # type: ignore[call-overload]
        self.kappa = torch.zeros(len(result.kappa.index), num_samples, **zeros)  # type: ignore[call-overload]
        self.rho = torch.zeros(len(result.rho.index), num_samples, **zeros)  # type: ignore[call-overload]

    def add_trace(self, name: str, values: Tensor, factor: Tensor) -> None:
        self.trace[self.result.trace.index[name]] += factor * values.double()

    def add(self, name: str, layer: str, contracted: Contracted, factor: Tensor) -> None:
        self.add_trace(name, contracted.trace, factor)
        if contracted.kappa is not None:
            self.kappa[self.result.kappa.index[layer]] += factor * contracted.kappa.double()
        if contracted.neurons is not None:
            self.add_neurons(layer, contracted.neurons, factor)

    def add_neurons(self, layer: str, terms: Tensor, factor: Tensor) -> None:
        squares = terms.double().square()
        self.result.neurons[layer] += factor @ squares
        self.rho[self.result.rho.index[layer]] += factor * squares.sum(dim=1)

    def finish(self, weights: Tensor) -> None:
        self.result.trace.add(self.trace, weights)
        self.result.kappa.add(self.kappa, weights)
        self.result.rho.add(self.rho, weights)


@dataclasses.dataclass
class _Listener:
    """Contracts the gradient at one layer's output when it arrives."""

    sweep: _Sweep
    rows: _Rows
    use: Use
    rule: AbstractRule
    call: Any
    named: dict[str, str]

    def __call__(self, delta: Tensor) -> None:
        delta = _at_least_float(delta.detach())
        routes, rows, sweep = self.sweep.plan.routes, self.rows, self.sweep
        rest = dict(self.named)
        weight = rest.get("weight")
        layer = self.use.layer
        if isinstance(self.call, MatrixCall | EmbeddingCall):
            if weight is not None and routes[weight] == "single" and layer in sweep.weights:
                del rest["weight"]
                contracted = self.call.contract(
                    delta, sweep.weights[layer], sweep.grams[layer], sweep.needs.rho
                )
                rows.add(weight, layer, contracted, rows.factor)
            bias = rest.get("bias")
            if bias is not None and routes[bias] == "single" and isinstance(self.call, MatrixCall):
                del rest["bias"]
                rows.add_trace(bias, squared_norm(self.call.bias_gradient(delta)), rows.factor)
        if not rest:
            return
        gradients = self.call.gradients(delta)
        for key, name in rest.items():
            if routes[name] == "sum":
                before = rows.pending.get(name)
                rows.pending[name] = gradients[key] if before is None else before + gradients[key]
            else:
                rows.add_trace(name, squared_norm(gradients[key]), rows.factor)


@dataclasses.dataclass
class _InputListener:
    """Adds ρ from the gradient at one layer's input when it arrives."""

    rows: _Rows
    layer: str
    call: MatrixCall

    def __call__(self, gradient: Tensor) -> None:
        terms = self.call.contract_input(_at_least_float(gradient.detach()))
        self.rows.add_neurons(self.layer, terms, self.rows.factor)


def _at_least_float(x: Tensor) -> Tensor:
    """Half precision is only good enough to travel through the network."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
