"""Is what the library says about a case true?

- `exact`: within round-off of the dense truth.
- an estimate: the truth lies in the interval. One interval in twenty misses it; then the same is
  measured with other seeds, and if too few of those intervals hold the truth, that is a failure.
- an eigenvalue called converged: within its tolerance; another one: some eigenvalue is that close.
- a refusal, `SpiritlevelError`: counted. Any other exception is a failure.
- afterwards the model, its gradients, hooks and modes, and the random states are as they were.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch

import spiritlevel as sl
from fuzz import expected as by_definition
from fuzz.case import Case
from fuzz.expected import Expected, Quantity
from fuzz.namespace import names_for_setup
from fuzz.oracle import Truth
from fuzz.state import changes, snapshot
from spiritlevel.records.measurements import Measurement, Status

# Round-off of an exact value, relative to the sum of its terms. Five layers and a square lose a
# few digits: in float64 no more than eight of sixteen, in float32 three of seven. In half precision
# the outputs themselves are only known to the first percents.
TOLERANCE = {
    torch.float64: 1e-8,
    torch.float32: 1e-4,
    torch.float16: 0.03,
    torch.bfloat16: 0.15,
}
# Finite differences know the truth itself only this well.
TRUTH_TOLERANCE = {"differences of gradients": 1e-5, "differences of the loss": 1e-3}
LARGE_OUTPUT = 100.0  # float32 rounds such outputs by 1e-5, and probabilities with them
RETRIES, ENOUGH = 12, 7  # fewer than 7 of 12 intervals at 95 %: once in 100,000 times
LARGEST = ("relative.kappa_max", "neuron.rho_max", "scaled.trace_max")
INTERVALS = (
    "curvature.trace",
    "curvature.ggn_trace",
    "relative.kappa",
    "neuron.rho_sum",
    "scaled.trace",
    "curvature.trace_squared",
)
EIGENVALUES = ("curvature.lambda_max", "curvature.lambda_min", "head.lambda_max")


@dataclasses.dataclass
class Verdict:
    """What came of a case."""

    outcome: str  # "right", "refused", "failed" or "not runnable"
    failures: list[str] = dataclasses.field(default_factory=list)
    refusal: str = ""
    exact: int = 0
    unconfirmed: int = 0  # values from which a second look took the word exact
    inside: int = 0  # intervals with the truth in them
    outside: int = 0
    source: str = ""


def judge(case: Case) -> Verdict:
    """Measure a case and compare."""
    names = names_for_setup()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(case.setup(), "<case>", "exec"), names)
        problem = not_runnable(names)
        if problem:
            return Verdict("not runnable", refusal=problem)
        return _judge(case, names)


def not_runnable(names: dict[str, Any]) -> str:
    """Why plain torch cannot run this network in this precision; empty if it can."""
    model = names["model"]
    if not any(p.requires_grad for p in model.parameters()):
        return "no trainable parameter"
    if sum(p.numel() for p in model.parameters()) > 250:
        return "too many parameters for a quick truth"
    try:
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        for batch in names["data"]:
            outputs, _ = names["run"](model, batch)
            if not outputs.requires_grad:
                return "no trainable parameter has an effect"
            if not bool(torch.isfinite(outputs).all()):
                return "the outputs are not finite"
            outputs.sum().backward()
        model.load_state_dict(weights)
        model.zero_grad(set_to_none=True)
    except (RuntimeError, NotImplementedError, ValueError, IndexError, TypeError) as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return ""


def _judge(case: Case, names: dict[str, Any]) -> Verdict:
    model, data = names["model"], names["data"]
    for number, parameter in enumerate(model.parameters()):
        if number % 2:
            parameter.grad = torch.full_like(parameter, 0.5)
    truth = Truth(model, data, names["run"], names["truth"])
    before = snapshot(model)
    verdict = Verdict("right")
    try:
        report, pairs = call(case, names, case.call_seed)
    except sl.SpiritlevelError as error:
        verdict.outcome, verdict.refusal = "refused", str(error)
    except Exception as error:
        verdict.failures.append(f"raised {type(error).__name__}: {error}")
    else:
        _compare(case, names, truth, report, pairs, verdict)
        verdict.source = truth.source
    verdict.failures += [f"changed: {what}" for what in changes(before, snapshot(model))]
    if verdict.failures:
        verdict.outcome = "failed"
    return verdict


def call(case: Case, names: dict[str, Any], seed: int) -> tuple[Any, Any]:
    """The report and the eigenvalues that the case asks for; None for what it does not."""
    common = {key: names[key] for key in ("loss", "forward")}
    common |= {"seed": seed, "memory": case.memory}
    measures = [name for name in case.measures if name != "eigenvalues"]
    report = pairs = None
    if measures:
        report = sl.measure(
            names["model"],
            names["data"],
            measures=measures,
            method=case.method,
            max_passes=case.max_passes,
            **common,
        )
    if "eigenvalues" in case.measures:
        pairs = sl.eigenvalues(
            names["model"], names["data"], num=2, max_passes=300, rtol=1e-4, **common
        )
    return report, pairs


# -- values ----------------------------------------------------------------------------------


def _compare(
    case: Case, names: dict[str, Any], truth: Truth, report: Any, pairs: Any, verdict: Verdict
) -> None:
    blocks = {"kappa", "rho", "lambda", "squared"}
    H = truth.hessian(blocks=any(word in name for name in case.measures for word in blocks))
    J = truth.jacobian()
    A = truth.output_hessian()
    GGN = J.T @ A @ J
    spectrum = by_definition.eigenvalues(H)
    matrices = {"Hessian": H, "GGN": GGN}
    values = {
        kind: by_definition.of_matrix(truth, m, case.measures) for kind, m in matrices.items()
    }
    tolerance = max(TOLERANCE[names["dtype"]], TRUTH_TOLERANCE.get(truth.source, 0.0))
    # The truth is a difference of terms of this size: no digit of it lies below.
    floor = 1e-13 * float(J.square().sum()) / len(J) + 1e-300
    z, _ = truth.outputs_and_targets()
    if case.lead and float(z.detach().abs().max()) < LARGE_OUTPUT:
        # These terms are multiplied by what is small itself. What is 0 by a symmetry, as behind a
        # normalization, is left with the products of two round-offs.
        floor *= min(1.0, float(A.abs().max()) * len(J)) * max(1.0, tolerance**2 / 1e-13)
    if truth.source == "differences of the loss":  # second differences with steps of 2e-3
        floor += 1e-9 * truth.size * (1 + abs(float(truth.loss())))
    judged = _Judged(case, names, verdict, tolerance, floor)
    if report is not None:
        for name, measurement in report.items():
            head = str(measurement.settings.get("head", ""))
            if name.startswith("head."):
                quantities, head_spectrum = by_definition.of_head(truth, head)
                if name == "head.lambda_max":
                    judged.eigenvalue(name, measurement, head_spectrum, -1)
                else:
                    judged.value(name, "", measurement, quantities[name])
            elif name in EIGENVALUES:
                if truth.source == "double backward at a kink":
                    continue  # there is no Hessian
                if truth.source != "differences of the loss":
                    judged.eigenvalue(name, measurement, spectrum, -name.endswith("max"))
            elif name == "scaled.lambda_max":
                judged.eigenvalue_sum(
                    name, measurement, by_definition.scaled_lambda_max(truth, H).whole
                )
            elif name == "curvature.trace_squared" and truth.source == "differences of the loss":
                continue  # it has only the blocks of single parameters
            elif name in values["Hessian"]:
                kind = "GGN" if name == "curvature.ggn_trace" else measurement.quantity
                judged.measure(name, report, values[kind][name], values)
    if pairs is not None and truth.source != "differences of the loss":
        judged.pairs(pairs, spectrum)


@dataclasses.dataclass
class _Judged:
    """Collects what is wrong with the numbers of one case."""

    case: Case
    names: dict[str, Any]
    verdict: Verdict
    tolerance: float
    floor: float
    repeated: list[Any] = dataclasses.field(default_factory=list)  # reports with other seeds

    def fail(self, text: str) -> None:
        self.verdict.failures.append(text)

    def measure(
        self, name: str, report: Any, truth: Expected, values: dict[str, dict[str, Expected]]
    ) -> None:
        """The whole and every layer."""
        self.value(name, "", report[name], truth.whole)
        rows = report.layers.get(name, {})
        if rows.keys() != truth.layers.keys() and truth.layers:
            self.fail(f"{name}: layers {sorted(rows)}, expected {sorted(truth.layers)}")
        for layer, measurement in rows.items():
            kind = "GGN" if name == "curvature.ggn_trace" else measurement.quantity
            if layer in values[kind][name].layers:
                size = values[kind][name].whole.size
                self.value(name, layer, measurement, values[kind][name].layers[layer], size)

    def value(
        self, name: str, layer: str, m: Measurement, truth: Quantity, whole: float = 0.0
    ) -> None:
        """A number that is exact, or has an interval; `whole` is the size of all layers' terms."""
        label = f"{name} of {layer!r}" if layer else name
        allowed = self.tolerance * truth.size + self.floor
        gap = abs(m.value - truth.value)
        if not m.exact:  # a layer whose curvature cancels is the round-off of the others
            allowed = max(allowed, 1e-8 * whole)
        if m.exact:
            self.verdict.exact += 1
            if not gap <= allowed:
                self.fail(
                    f"{label}: 'exact' {m.value:.10g}, truth {truth.value:.10g} "
                    f"(off by {gap / max(truth.size, 1e-300):.2g} of its terms)"
                )
        elif m.status is Status.NONFINITE:
            self.fail(f"{label}: not finite, truth {truth.value:.6g}")
        elif m.status is Status.UNCONFIRMED:
            self.verdict.unconfirmed += 1
        elif m.interval is None:
            if m.status is Status.GGN and not gap <= allowed:
                self.fail(f"{label}: GGN {m.value:.10g}, truth {truth.value:.10g}")
        elif name not in LARGEST:  # the largest of noisy values is biased, and says so
            self.interval(name, layer, label, m, truth, allowed)

    def interval(
        self, name: str, layer: str, label: str, m: Measurement, truth: Quantity, allowed: float
    ) -> None:
        """An estimate; one that misses is repeated with other seeds."""
        assert m.interval is not None
        low, high = m.interval
        if low - allowed <= truth.value <= high + allowed:
            self.verdict.inside += 1
            return
        self.verdict.outside += 1
        inside, values = 0, []
        for number in range(RETRIES):
            report = self._repetition(number)
            if report is None:
                continue
            again = report.layers[name][layer] if layer else report[name]
            values.append(again.value)
            low, high = again.interval or (again.value, again.value)
            inside += low - allowed <= truth.value <= high + allowed
            if inside >= ENOUGH:
                return
        mean = math.fsum(values) / max(len(values), 1)
        self.fail(
            f"{label}: {inside} of {RETRIES} intervals hold the truth {truth.value:.8g}; "
            f"the estimates have the mean {mean:.8g} (first: {m.value:.8g} ± {m.stderr:.2g})"
        )

    def _repetition(self, number: int) -> Any:
        """The report with another seed, which all misses of a case share; None if refused."""
        while len(self.repeated) <= number:
            measures = tuple(name for name in self.case.measures if name in INTERVALS)
            case = dataclasses.replace(self.case, measures=measures)
            try:
                self.repeated.append(call(case, self.names, 1000 + len(self.repeated))[0])
            except sl.SpiritlevelError:
                self.repeated.append(None)
        return self.repeated[number]

    def eigenvalue(self, name: str, m: Measurement, spectrum: Any, index: int) -> None:
        """One end of the spectrum."""
        self._eigenvalue(
            name, m.value, m.residual or 0.0, m.exact or m.status is Status.OK, spectrum, index
        )
        self.verdict.exact += m.exact

    def _eigenvalue(
        self, label: str, value: float, error: float, converged: bool, spectrum: Any, index: int
    ) -> None:
        norm, end = float(spectrum.abs().max()), float(spectrum[index])
        allowed = max(100 * self.tolerance, 1e-6) * norm + self.floor
        if converged:
            # the error holds with 95 % confidence; of thousands of cases some lie beyond it
            if not abs(value - end) <= allowed + 3 * error:
                self.fail(f"{label}: converged at {value:.10g}, truth {end:.10g}")
        elif not float((spectrum - value).abs().min()) <= error + allowed:
            self.fail(f"{label}: no eigenvalue within {error:.2g} of {value:.10g}")

    def eigenvalue_sum(self, name: str, m: Measurement, truth: Quantity) -> None:
        """A sum of scaled eigenvalues, where all converged."""
        allowed = max(100 * self.tolerance, 1e-6) * truth.size + self.floor
        allowed += 3 * (m.residual or 0.0)
        if m.status is Status.OK and not abs(m.value - truth.value) <= allowed:
            self.fail(f"{name}: converged at {m.value:.10g}, truth {truth.value:.10g}")

    def pairs(self, pairs: Any, spectrum: Any) -> None:
        """What `sl.eigenvalues` found."""
        for i, (value, error, converged) in enumerate(
            zip(pairs.values, pairs.errors, pairs.converged, strict=True)
        ):
            self._eigenvalue(f"eigenvalue {i}", value, error, converged, spectrum, -1 - i)


Judge = Callable[[Case], Verdict]
