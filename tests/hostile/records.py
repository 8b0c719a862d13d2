"""One small record of each kind that is written to JSON."""

import functools

import torch
from torch import nn

import spiritlevel as sl
from spiritlevel.results import Audit, Comparison, Pruning, Quantization, Report
from spiritlevel.verbs.landscape import Landscape
from spiritlevel.verbs.spectra import Spectrum

MEASURES = ["curvature.trace", "relative.kappa", "softmax.gini"]


def network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double().eval()


@functools.cache
def data():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(12, 3, generator=generator).double()
    return x, torch.arange(12) % 2


@functools.cache
def texts() -> dict[str, str]:
    """The JSON of every kind of record, by the class that reads it."""
    one, other = network(0), network(1)
    line = sl.landscape(one, data(), points=5)
    spectrum = Spectrum(
        sl.eigenvalues(one, data(), num=2), sl.density(one, data(), num_vectors=2, steps=3)
    )
    return {
        "Report": sl.measure(one, data(), measures=MEASURES).to_json(),
        "Audit": sl.audit(one, data(), measures=MEASURES).to_json(),
        "Comparison": sl.compare({"a": one, "b": other}, data(), measures=MEASURES).to_json(),
        "Landscape": line.to_json(),
        "Spectrum": spectrum.to_json(),
        "Quantization": sl.quantization(one, data(), bits=(2, 4), mean_bits=3).to_json(),
        "Pruning": sl.pruning(one, data(), share=0.5).to_json(),
    }


READERS = {
    "Report": Report,
    "Audit": Audit,
    "Comparison": Comparison,
    "Landscape": Landscape,
    "Spectrum": Spectrum,
    "Quantization": Quantization,
    "Pruning": Pruning,
}
# Of what is written beside these, nothing is read back: it follows from them.
READ = {
    "Report": ("settings", "cost", "measures", "layers"),
    "Audit": ("original", "moved", "moves", "absent"),
    "Comparison": ("reports", "matched_pairs", "unmatched", "scales", "audited"),
    "Landscape": ("directions", "axes", "losses", "errors", "marks", "notes", "settings", "cost"),
    "Spectrum": ("eigenvalues", "density"),
    "Quantization": ("widths", "rounding", "sizes", "chosen", "frontier", "loss", "settings"),
    "Pruning": ("first", "second", "magnitude", "exact", "chosen", "curves", "loss", "settings"),
}
