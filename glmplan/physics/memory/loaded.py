"""What a rank holds of a checkpoint once an engine has loaded it: padded, widened, with tables, in allocator blocks.

The facts of each engine stand in `glmplan.facts.engines.loading`; this is the arithmetic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from glmplan.facts.engines.loading import ExpertKernel, Loading
from glmplan.facts.formats import WeightFormat
from glmplan.physics.blocks.tensor import Tensor

__all__ = ["HeldTensor", "allocated_bytes", "expert_padding", "kept_format", "rotary_table_bytes", "rounding_bytes"]

_MIB = 2**20
#: PyTorch's caching allocator: every size is a multiple of 512 B; from 10 MiB on a tensor gets a segment of its own,
#: a multiple of 2 MiB, of which a rest of more than 1 MiB is split off and may be used by others
_SMALLEST, _OWN_SEGMENT, _SEGMENT, _SPLIT = 512, 10 * _MIB, 2 * _MIB, _MIB


@dataclass(frozen=True, slots=True, eq=False)
class HeldTensor:
    """One tensor on a rank.

    Attributes
    ----------
    tensor : Tensor
        What it is.
    form : WeightFormat
        How it is kept.
    size : (n,) array
        Its bytes on the fullest rank, [B]
    """

    tensor: Tensor
    form: WeightFormat
    size: np.ndarray


def allocated_bytes(size: np.ndarray, *, reserved: bool = False) -> np.ndarray:
    """What PyTorch's allocator counts for one tensor.

    Parameters
    ----------
    size : (n,) array
        Bytes asked for, [B]
    reserved : bool, optional
        Whether the segments count that it takes from the driver, and not only the blocks that it gives out.

    Returns
    -------
    (n,) array
        [B]

    Notes
    -----
    Not modelled: rests of segments that later tensors of 1 to 10 MiB fill, and what conversions after loading leave
    behind.

    References
    ----------
    .. [1] pytorch/pytorch, c10/cuda/CUDACachingAllocator.cpp: kMinBlockSize, kMinLargeAlloc, kRoundLarge, should_split.

    Examples
    --------
    A down projection of Qwen3-32B on two cards asks for 125 MiB and gets 126; 12.5 MiB leave 1.5 to others:

    >>> (allocated_bytes(np.array([125.0, 12.5]) * 2**20) / 2**20).tolist()
    [126.0, 12.5]
    >>> (allocated_bytes(np.array([12.5]) * 2**20, reserved=True) / 2**20).tolist()
    [14.0]
    """
    small = np.ceil(size / _SMALLEST) * _SMALLEST
    segment = np.ceil(size / _SEGMENT) * _SEGMENT
    own = segment if reserved else np.where(segment - size > _SPLIT, small, segment)
    return np.where(size >= _OWN_SEGMENT, own, small)


#: parts of one parameter in engines that fuse projections of the same input
_FUSED = (
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    ("self_attn.q_a_proj", "self_attn.kv_a_proj_with_mqa"),
)


def rounding_bytes(held: Sequence[HeldTensor], loading: Loading) -> np.ndarray | float:
    """What the allocator counts for the tensors of a layer beyond their bytes.

    Parameters
    ----------
    held : sequence of HeldTensor
        Tensors of one layer on a rank.
    loading : Loading
        The engine.

    Returns
    -------
    (n,) array
        [B]; 0 for engines whose weights are counted as in the files.

    Notes
    -----
    Projections of the same input are one parameter; quantised values and their scales are two.
    """
    if loading.allocator == "files":
        return 0.0
    sizes: dict[object, tuple[np.ndarray, WeightFormat]] = {}
    for one in held:
        group = next((names for names in _FUSED if one.tensor.name in names), one.tensor.name)
        key = (group, one.form.name)
        before = sizes[key][0] if key in sizes else 0.0
        sizes[key] = (before + one.size, one.form)
    more: np.ndarray | float = 0.0
    for size, form in sizes.values():
        values = size * (2.0 ** np.floor(np.log2(form.bits))) / form.bits
        for piece in (values, size - values):
            more = more + allocated_bytes(piece, reserved=loading.allocator == "reserved") - piece
    return more


def expert_padding(tensor: Tensor, kernel: ExpertKernel | None, ranks: np.ndarray) -> np.ndarray | float:
    """How much larger a tensor of routed experts is for the padding of its kernel.

    Parameters
    ----------
    tensor : Tensor
        The tensor.
    kernel : ExpertKernel or None
        The kernel; None pads nothing.
    ranks : (n,) array
        Ranks that cut one expert, [-]

    Returns
    -------
    (n,) array
        Held over stored bytes, [-]

    Examples
    --------
    An expert of gpt-oss, 2880 wide both ways, on two ranks under Marlin: 1536 of 1440 and 3072 of 2880.

    >>> marlin = ExpertKernel("marlin", ("mxfp4",), 128, 256, "example")
    >>> down = Tensor("mlp.experts.down_proj", "routed_experts", 2880, 2880, 128, "experts", splits_input=True)
    >>> expert_padding(down, marlin, np.array([1.0, 2.0])).round(4).tolist()
    [1.0904, 1.1378]
    """
    if kernel is None or tensor.shard != "experts" or not tensor.matmul:
        return 1.0
    inner, hidden = (tensor.columns, tensor.rows) if tensor.splits_input else (tensor.rows, tensor.columns)
    # gate and up are one tensor of two inner widths
    doubled = 2.0 if not tensor.splits_input and tensor.name.endswith("gate_up_proj") else 1.0
    width = inner / doubled / ranks
    padded = np.ceil(width / kernel.inner) * kernel.inner
    multiple = (kernel.output or kernel.hidden) if tensor.splits_input else kernel.hidden
    wide = np.ceil(hidden / multiple) * multiple
    return padded * wide / (width * hidden)


def rotary_table_bytes(widths: Sequence[int], context: int, loading: Loading, *, multimodal: bool) -> float:
    """Tables of cosines and sines of the rotary positions; layers that are alike share one.

    Parameters
    ----------
    widths : sequence of int
        Values of a head that the positions turn, one for each table, [-]
    context : int
        Longest context of the model, [token]
    loading : Loading
        The engine.
    multimodal : bool
        Whether positions have time, height and width.

    Returns
    -------
    float
        [B]

    Examples
    --------
    Qwen3-30B-A3B-2507 in vLLM: 262,144 positions of 128 values.

    >>> from glmplan.facts.engines.memory import load_memory_rule
    >>> rotary_table_bytes([128], 262144, load_memory_rule("vllm").loading, multimodal=False) / 2**20
    64.0
    """
    positions = context * (loading.multimodal_positions if multimodal else 1)
    return positions * loading.rotary_bytes * sum(widths)


def kept_format(loading: Loading, model: str, tensor: Tensor, stored: WeightFormat) -> WeightFormat:
    """Format in which an engine keeps a tensor.

    Parameters
    ----------
    loading : Loading
        The engine.
    model : str
        Canonical name of the model.
    tensor : Tensor
        The tensor.
    stored : WeightFormat
        As the files hold it.

    Returns
    -------
    WeightFormat
        The wider of the two that the engine and the files name, or the stored one.
    """
    kept = loading.kept(model, tensor.tensor_class)
    return stored if kept is None or not tensor.matmul else max(kept, stored, key=lambda one: one.bits)
