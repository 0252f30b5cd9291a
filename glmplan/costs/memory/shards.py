"""Find tensor-parallel shares that split quantisation blocks or columns.

An engine does not start with them. Block sizes are facts of the formats (`glmplan.catalog.formats`); multiples that
some releases require are facts of loading (`Loading.part_multiples`).
"""

from __future__ import annotations

from dataclasses import dataclass

from glmplan.catalog.caching import remembered
from glmplan.catalog.engines.memory import AS_STORED, load_memory_rule, memory_engines
from glmplan.catalog.files import plain_name
from glmplan.catalog.formats import WeightFormat
from glmplan.catalog.schema.accelerator import Accelerator
from glmplan.catalog.schema.model import Checkpoint, ModelSpec
from glmplan.costs.blocks.stack import segments
from glmplan.costs.blocks.tensor import Tensor

__all__ = ["Server", "SplitBlock", "split_block"]

#: feed-forward classes, whose outputs are split at multiples of a block too
_FEED_FORWARD = ("routed_experts", "shared_experts", "dense")


@dataclass(frozen=True, slots=True)
class Server:
    """Engine, version and vendor of the accelerator that load a model.

    Version None: the newest.
    """

    engine: str
    version: str | None
    vendor: str

    @classmethod
    def on(cls, part: Accelerator, engine: str, version: str | None) -> Server:
        """Return the engine on an accelerator."""
        return cls(engine, version, plain_name(part.vendor))


@dataclass(frozen=True, slots=True)
class SplitBlock:
    """Tensor of which one rank would hold a fraction of a quantisation block."""

    tensor: str  # name within the layer
    tensor_class: str
    form: str
    width: int  # split by `ranks`
    ranks: int
    block: int  # values of that width that share one scale
    loads: bool  # the engine loads it all the same
    slower: str  # cost of that; empty: no source names one
    source: str

    @property
    def words(self) -> str:
        """Return width, ranks and block as text."""
        part = self.width / self.ranks
        if self.block == 1:
            return f"{self.tensor}: {self.width:,} / {self.ranks} = {part:,.4g} is no whole number"
        return (
            f"{self.tensor}: {self.width:,} / {self.ranks} = {part:,.4g} is no multiple of the {self.form} block of "
            f"{self.block}"
        )


def split_block(
    model: ModelSpec,
    checkpoint: Checkpoint,
    server: Server,
    degrees: tuple[int, int, int],
    *,
    mtp: bool = False,
) -> SplitBlock | None:
    """Return a tensor with a split quantisation block, or None.

    A tensor that prevents loading comes first. Routed experts are cut by TP × DP / EP ranks, all other matrices by TP.
    Outputs of attention and recurrent layers are not checked: engines accept merged projections that are no multiple of
    a block [1]_ [2]_. Matrices of feed-forward layers without blocks are cut into whole columns [3]_. Not modelled:
    dense layers of SGLang under data-parallel attention, which are split over its ranks.

    References
    ----------
    .. [1] vllm-project/vllm, vllm/model_executor/layers/quantization/utils/fp8_utils.py (validate_fp8_block_shape),
       vllm/model_executor/layers/linear.py (_maybe_allow_fp8_block_shape_mismatch), 0.26.0 and 0.33.0.
    .. [2] sgl-project/sglang, python/sglang/srt/layers/quantization/fp8.py (validate_block_quant_shapes),
       models/mimo_v2.py (skip_block_quant_check), 0.5.23.
    .. [3] vllm/model_executor/layers/fused_moe/layer.py (0.11.0, 0.20.0) and config.py (0.33.0): intermediate_size %
       tp_size; sglang/srt/layers/moe/fused_moe_triton/layer.py (0.5.23): intermediate_size % moe_tp_size.

    Examples
    --------
    MiniMax-M2.7 has experts of 1536 in FP8 blocks of 128: eight ranks of 192 do not load, eight whole experts do.

    >>> from glmplan.catalog.entries.models import load_model
    >>> minimax, sglang = load_model("minimax-m2.7"), Server("sglang", None, "nvidia")
    >>> found = split_block(minimax, minimax.checkpoint("fp8"), sglang, (8, 1, 1))
    >>> found.words, found.loads
    ('mlp.experts.down_proj: 1,536 / 8 = 192 is no multiple of the fp8-block block of 128', False)
    >>> split_block(minimax, minimax.checkpoint("fp8"), sglang, (8, 1, 8)) is None
    True

    Five ranks do not divide experts of 768 columns in BF16 either:

    >>> qwen = load_model("qwen3-30b-a3b")
    >>> split_block(qwen, qwen.checkpoint("bf16"), sglang, (1, 5, 1)).words
    'mlp.experts.down_proj: 768 / 5 = 153.6 is no whole number'
    """
    result = _split_blocks(model, checkpoint, server, degrees, mtp)
    return next((item for item in result if not item.loads), next(iter(result), None))


@remembered(records=2)
def _split_blocks(
    model: ModelSpec, checkpoint: Checkpoint, server: Server, degrees: tuple[int, int, int], mtp: bool
) -> tuple[SplitBlock, ...]:
    held = segments(model, checkpoint, mtp=mtp)
    rule = load_memory_rule(server.engine).loading if server.engine in memory_engines() else AS_STORED
    kinds = {
        (tensor, form)
        for part in held
        for tensor, form in zip(part.tensors, part.formats, strict=True)
        if tensor.matmul and (form.block != (1, 1) or (rule.part_source and tensor.tensor_class in _FEED_FORWARD))
        if tensor.splits_input or tensor.tensor_class in _FEED_FORWARD
    }
    result = [_split(model.name, checkpoint, pair, server, degrees) for pair in kinds]
    return tuple(sorted((one for one in result if one is not None), key=lambda one: (-one.block, one.tensor)))


def _split(
    model: str,
    checkpoint: Checkpoint,
    held: tuple[Tensor, WeightFormat],
    server: Server,
    degrees: tuple[int, int, int],
) -> SplitBlock | None:
    tensor, form = held
    ranks, block = _ranks(tensor, degrees), form.block[1] if tensor.splits_input else form.block[0]
    width = tensor.columns if tensor.splits_input else tensor.rows // tensor.parts
    padded = {str(name): wide for name, wide in checkpoint.padded.items()}
    width = padded.get(tensor.tensor_class, width)
    if form.block[0] == 1 and width % block:
        block = 1  # no file groups such a width: its publisher keeps the matrix wider
    if ranks == 1 or width % (ranks * block) == 0:
        return None
    rule = load_memory_rule(server.engine).loading if server.engine in memory_engines() else AS_STORED
    other = rule.part_multiple(
        form.name, tensor.tensor_class, model=model, vendor=server.vendor, version=server.version
    )
    loads = other is not None and (not other.multiple or width % (ranks * other.multiple) == 0)
    return SplitBlock(
        tensor.name,
        tensor.tensor_class,
        form.name,
        width,
        ranks,
        block,
        loads,
        other.slower if other is not None and loads else "",
        other.source if other is not None else rule.part_source,
    )


def _ranks(tensor: Tensor, degrees: tuple[int, int, int]) -> int:
    """Return the ranks that share one copy of a tensor."""
    tp, dp, ep = degrees
    shared = {"replicated": 1, "heads": min(tp, tensor.units), "experts": max(tp * dp // ep, 1), "split": tp}
    return shared[tensor.shard]
