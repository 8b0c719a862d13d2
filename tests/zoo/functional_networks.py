"""Networks that apply their weights by functional calls, in subclasses, in parts, or tied.

Each says how its matrices are kept: "oi" as (out, in), "io" as (in, out), "gio" or "goi" with one
matrix for each group, "conv2" as a convolution with two groups keeps it.
"""

from __future__ import annotations

from . import functional_groups as groups
from . import functional_products as products
from . import functional_uses as uses
from .functional_base import Network

NETWORKS: dict[str, type[Network]] = {
    kind.__name__: kind
    for kind in Network.__subclasses__()
    if kind.__module__ in (groups.__name__, products.__name__, uses.__name__)
}
