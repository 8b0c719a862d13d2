"""What others call the things that are here: papers, and libraries that people come from.

The page docs/glossary.md has the same table with a note on each; a test holds both together.
"""

from __future__ import annotations

# In small letters with _ for blanks; what stands on the right is a measure or a call.
OTHER_NAMES: dict[str, tuple[str, ...]] = {
    "asam": ("sharpness.adaptive", "sl.ASAM"),
    "average_sharpness": ("sharpness.average",),
    "adaptive_sharpness": ("sharpness.adaptive", "sl.ASAM"),
    "edge_of_stability": ("curvature.lambda_max",),
    "esd": ("sl.density",),
    "ewc": ("sl.diagonal",),
    "fam": ("relative.kappa", "sl.KappaPenalty"),
    "fisher": ("curvature.ggn_trace", "sl.operator", "sl.diagonal"),
    "fisher_diagonal": ("sl.diagonal",),
    "fisher_information": ("curvature.ggn_trace", "sl.operator", "sl.diagonal"),
    "fisher_rao_norm": ("norms.fisher_rao",),
    "fisher_trace": ("curvature.ggn_trace",),
    "flatness": ("relative.kappa",),
    "gauss_newton_trace": ("curvature.ggn_trace",),
    "get_esd_plot": ("sl.density",),
    "hawq": ("sl.quantization", "curvature.trace"),
    "hessian_density": ("sl.density",),
    "hessian_diagonal": ("sl.diagonal",),
    "hessian_frobenius_norm": ("curvature.trace_squared",),
    "hessian_spectrum": ("sl.density", "sl.eigenvalues"),
    "hessian_trace": ("curvature.trace",),
    "hessian_vector_product": ("sl.operator",),
    "hvp": ("sl.operator",),
    "influence_functions": ("sl.operator",),
    "input_jacobian": ("sensitivity.jacobian",),
    "jacobian_norm": ("sensitivity.jacobian",),
    "linear_mode_connectivity": ("sl.landscape",),
    "lora": ("sl.merged",),
    "loss_barrier": ("sl.landscape",),
    "loss_landscape": ("sl.landscape",),
    "max_eigenvalue": ("curvature.lambda_max",),
    "natural_gradient": ("sl.operator",),
    "obd": ("sl.pruning", "sl.diagonal"),
    "obs": ("sl.pruning", "sl.operator"),
    "optimal_brain_damage": ("sl.pruning", "sl.diagonal"),
    "optimal_brain_surgeon": ("sl.pruning", "sl.operator"),
    "peft": ("sl.merged",),
    "pyhessian": ("curvature.trace", "sl.eigenvalues", "sl.density"),
    "relative_flatness": ("relative.kappa",),
    "sam": ("sharpness.worst", "sl.SAM"),
    "sharpness_aware_minimization": ("sharpness.worst", "sl.SAM"),
    "spectral_density": ("sl.density",),
    "spectral_norm_of_hessian": ("curvature.lambda_max",),
    "top_eigenvalue": ("curvature.lambda_max",),
    "weight_norm": ("norms.weight",),
}


def known_here_as(name: str) -> tuple[str, ...]:
    """What a name from elsewhere is here; nothing if it is not known.

    >>> known_here_as("Fisher trace"), known_here_as("kapa")
    (('curvature.ggn_trace',), ())
    """
    return OTHER_NAMES.get("_".join(name.lower().replace("-", " ").split()), ())
