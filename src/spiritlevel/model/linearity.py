"""Is a network's output piecewise linear in a parameter? Answered from its graph alone.

H = GGN + Σ_c ∂ℓ/∂z_c · ∇²z_c, and the second part vanishes for a parameter in which the outputs are
piecewise linear. The graph that autograd recorded says so without any number: walk from the
parameters to the outputs and look at what they pass through. A sum keeps linearity, a maximum keeps
it piece by piece, a product keeps it if only one factor depends on the parameter, and any other
function ends it. So no threshold is needed, no precision is too low, no gate too small, and it
holds for all the samples that went through the graph, not for a few.

A function that is not in the tables below, such as a user's own, counts as bending.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from .autograd_graph import nodes
from .node_results import learn_results, result_of
from .operation_watch import OperationWatch

# Linear in all arguments together: what moves, copies, adds up, averages or interpolates.
_LINEAR = """
Add Sub Rsub Neg Sum Mean Nansum Cumsum Trace
View ReshapeAlias UnsafeView Alias AsStrided T Transpose Permute
Squeeze Unsqueeze Expand Repeat
Select Slice Split SplitWithSizes UnsafeSplit UnsafeSplitWithSizes Unbind Chunk
Cat Stack BlockDiag Diagonal DiagEmbed Tril Triu Flip Roll Rot90 Unfold
Clone Copy ToCopy LiftFresh
Index IndexSelect IndexAdd IndexCopy IndexFill IndexPut IndexPutImpl UnsafeIndex UnsafeIndexPut
Gather Scatter ScatterAdd SelectScatter SliceScatter DiagonalScatter Take Put
MaskedFill MaskedSelect MaskedScatter Where Fill Zero
ConstantPadNd ReflectionPad1D ReflectionPad2D ReflectionPad3D ReplicationPad1D ReplicationPad2D
ReplicationPad3D Im2Col Col2Im PixelShuffle PixelUnshuffle ChannelShuffle
AvgPool2D AvgPool3D AdaptiveAvgPool2D AdaptiveAvgPool3D MkldnnAdaptiveAvgPool2D
UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D UpsampleNearestExact1D UpsampleNearestExact2D
UpsampleNearestExact3D UpsampleLinear1D UpsampleBilinear2D UpsampleBilinear2DAa UpsampleBicubic2D
UpsampleBicubic2DAa UpsampleTrilinear3D
Embedding EmbeddingRenorm
Complex Conj ConjPhysical ViewAsReal ViewAsComplex
FftR2C FftC2R FftC2C
NativeDropout
"""

# Linear within each piece: kinks, steps and choices, but no curve between them.
_PIECEWISE_LINEAR = """
Relu Threshold LeakyRelu Hardtanh Hardsigmoid Hardshrink Softshrink RreluWithNoise Abs
Clamp ClampMin ClampMax Maximum Minimum Fmax Fmin Max Min Amax Amin Aminmax Cummax Cummin
Sort Topk Kthvalue Median Nanmedian Mode
MaxPool2DWithIndices MaxPool3DWithIndices MkldnnMaxPool2D MkldnnMaxPool3D AdaptiveMaxPool2D
AdaptiveMaxPool3D FractionalMaxPool2D FractionalMaxPool3D MaxUnpool2D MaxUnpool3D MaxPool2D
Sign Sgn Floor Ceil Round Trunc Frac NanToNum
"""

# Products: which arguments are multiplied with which, by their places among the inputs.
_PRODUCTS: dict[str, tuple[tuple[int, int], ...]] = {
    "Mul": ((0, 1),),
    "Mm": ((0, 1),),
    "Bmm": ((0, 1),),
    "Mv": ((0, 1),),
    "Dot": ((0, 1),),
    "Vdot": ((0, 1),),
    "Linear": ((0, 1),),
    "Addmm": ((1, 2),),
    "Addmv": ((1, 2),),
    "Addr": ((1, 2),),
    "Addbmm": ((1, 2),),
    "Baddbmm": ((1, 2),),
    "Addcmul": ((1, 2),),
    "Lerp": ((0, 2), (1, 2)),
    "Convolution": ((0, 1),),
    "ConvolutionOverrideable": ((0, 1),),
    "PreluKernel": ((0, 1),),
    "EmbeddingBag": ((0, 1),),
    "Trilinear": ((0, 1), (0, 2), (1, 2)),
}

# Linear in each of the other arguments, and curved in these.
_CURVED_ARGUMENTS: dict[str, tuple[int, ...]] = {
    "Div": (1,),
    "Addcdiv": (2,),
    "Fmod": (1,),
    "Remainder": (1,),
    "GridSampler2D": (1,),
    "GridSampler3D": (1,),
    "NativeLayerNorm": (0,),
    "NativeGroupNorm": (0,),
    "FusedRmsNorm": (0,),
    "ScaledDotProductFlashAttention": (0, 1),
    "ScaledDotProductFlashAttentionForCpu": (0, 1),
    "ScaledDotProductEfficientAttention": (0, 1, 3),
    "ScaledDotProductCudnnAttention": (0, 1, 3),
    "ScaledDotProductFusedAttentionOverrideable": (0, 1, 3),
}

# Linear in the input with fixed statistics, curved with those of the batch; products with weights.
BATCH_NORMS = frozenset(
    ["NativeBatchNorm", "NativeBatchNormLegit", "CudnnBatchNorm", "MiopenBatchNorm"]
)

_KINK_OF_COMPLEX = ("Abs", "Sgn")  # |z| of a complex number is a cone

_HARMLESS = frozenset(_LINEAR.split()) | frozenset(_PIECEWISE_LINEAR.split())
_GENERATED_NAME = re.compile(r"(?:torch::autograd::)?(?P<operation>\w+?)Backwards?\d*")


def operation_of(node: Any) -> str:
    """The name of the torch operation behind a node; '' for a user's own autograd function."""
    if hasattr(node, "_forward_cls"):  # written in Python: its name says nothing
        return ""
    match = _GENERATED_NAME.fullmatch(node.name())
    return match["operation"] if match else ""


SLICE_WRITTEN = "torch::autograd::CopySlices"  # any change in place of a part of a tensor


class InPlaceWatch(OperationWatch):
    """Notes whether something was changed in place other than linearly.

    The graph only says that a part of a tensor was changed, as circular padding does, not how.
    """

    def __init__(self) -> None:
        """Nothing was changed yet."""
        super().__init__()
        self.is_linear = True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func._schema.is_mutable:
            words = func.overloadpacket.__name__.strip("_").split("_")
            operation = "".join(word.capitalize() for word in words)
            self.is_linear = self.is_linear and operation in _HARMLESS
        return func(*args, **(kwargs or {}))


def bends(
    outputs: Tensor, parameters: dict[int, str], *, linear_slices: bool = False
) -> dict[str, str]:
    """Parameters in which `outputs` may bend, each with the function that bends them.

    `parameters` gives the name of every parameter by its id. `linear_slices` says that tensors were
    changed in place only linearly, as `InPlaceWatch` finds out.
    """
    reasons: dict[str, str] = {}
    unexplained = (1 << len(parameters)) - 1
    for node, bent in bending_nodes(outputs, parameters, linear_slices=linear_slices):
        note_reasons(reasons, parameters, bent & unexplained, node.name())
        unexplained &= ~bent
    return reasons


def bending_nodes(
    outputs: Tensor, parameters: dict[int, str], *, linear_slices: bool = False
) -> Iterator[tuple[Any, int]]:
    """Every node behind the outputs, and the parameters that it bends, one bit each."""
    learn_results(outputs)
    bit_of = {key: 1 << i for i, key in enumerate(parameters)}
    depends: dict[Any, int] = {None: 0}  # the parameters behind a node, one bit each
    for node in nodes(outputs):
        variable = getattr(node, "variable", None)
        if variable is not None:
            depends[node] = bit_of.get(id(variable), 0)
            yield node, 0
            continue
        inputs = [depends[following] for following, _ in node.next_functions]
        reached = 0
        for behind in inputs:
            reached |= behind
        depends[node] = reached
        linear = not reached or (linear_slices and node.name() == SLICE_WRITTEN)
        yield node, 0 if linear else _bent(node, inputs, reached)


def note_reasons(
    reasons: dict[str, str], parameters: dict[int, str], bent: int, function: str
) -> None:
    """Name a function as what bends these parameters, unless another one was named before."""
    names = list(parameters.values()) if bent else []
    while bent:
        lowest = bent & -bent
        reasons.setdefault(names[lowest.bit_length() - 1], function)
        bent ^= lowest


def _bent(node: Any, inputs: list[int], reached: int) -> int:
    """The parameters in which the result of this node is not piecewise linear."""
    operation = operation_of(node)
    if operation in _KINK_OF_COMPLEX and _is_complex(*node.next_functions[0]):
        return reached
    if operation in _HARMLESS:
        return 0
    if operation in BATCH_NORMS:
        return inputs[0] if node._saved_training else inputs[0] & inputs[1]
    bent = 0
    if operation in _PRODUCTS:
        for first, second in _PRODUCTS[operation]:
            if second < len(inputs):
                bent |= inputs[first] & inputs[second]
        return bent
    if operation in _CURVED_ARGUMENTS:
        for place in _CURVED_ARGUMENTS[operation]:
            bent |= inputs[place] if place < len(inputs) else 0
        return bent
    return reached


def _is_complex(node: Any, number: int) -> bool:
    """Whether a node's result is complex; a saved tensor would tell, but may be a checkpoint's."""
    return bool(result_of(node, number).dtype.is_complex)
