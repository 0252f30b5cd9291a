"""A model on accelerators under an engine: everything that decides memory and step time except the load."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import gcd

from glmplan.errors import SpecError
from glmplan.facts.engines.kernels import attention_rule
from glmplan.facts.engines.packing import engine_defaults
from glmplan.facts.formats import kv_format
from glmplan.facts.schema.accelerator import Accelerator
from glmplan.facts.schema.model import Checkpoint, ModelSpec
from glmplan.physics.blocks.cache import CACHE_LAYOUTS
from glmplan.physics.blocks.features import mixers_of
from glmplan.physics.blocks.storage import uniform_checkpoint
from glmplan.physics.network.groups import LayoutLinks
from glmplan.physics.offload.hosted_steps import Offload
from glmplan.physics.points import Layout
from glmplan.physics.step.acceptance import acceptance_prior
from glmplan.physics.step.structure import Part, StepWork

__all__ = ["Deployment", "checkpoint_for", "heads_of", "keeps_indexer", "runs_sparse"]

#: vLLM stores a sparse-attention latent in FP8 as 512 values, four FP32 scales and 64 rotary values in BF16 [B]
#: (vllm `fp8_ds_mla`, vllm/v1/attention/backends/mla; checked against two servers in models.md section 3)
DS_MLA_BYTES = 656.0
#: compute capabilities whose tensor cores run the published sparse MLA kernels (FlashMLA: "requires SM90a or SM100f")
_SPARSE_CAPABILITIES = ("9.0", "10.0", "10.3")


@dataclass(frozen=True)
class Deployment:
    """A model on accelerators under an engine.

    Attributes
    ----------
    model, checkpoint : ModelSpec, Checkpoint
        What is served.
    accelerator : Accelerator
        The part.
    count : int
        Accelerators, [-]
    tp, pp, dp, ep, dcp : int
        Layout, [-]
    kv : str
        Format of the KV cache.
    engine : str
        ``vllm``, ``sglang``, ``trtllm``, ``llama.cpp``, ``ktransformers``, ``mlx`` or another name.
    release : tuple of int or None
        Engine version.
    graphs : bool
        Whether decode steps run from captured graphs.
    draft_tokens : int
        Tokens drafted for each request and step, [-]
    acceptance : float or None
        Tokens a step gains with drafting, [-]; None takes the prior
    sparse : bool
        Whether sparse attention kernels run.
    link : LayoutLinks
        The links that the groups of the layout cross.
    draft_method : str
        ``mtp``, ``eagle3`` or another; empty takes the model's own MTP layer, or its draft head.
    draft_depth : int
        Length of the drafted chain where a tree is verified, [token]; 0 means `draft_tokens`
    text : str
        Kind of text, see `glmplan.physics.step.acceptance.text_kind`; of a measured run its protocol, by which the fit
        knows the campaign; empty when it is not known.
    moe_backend : str
        First word of what a table calls the kernels of the experts; empty where it is not known.
    attention_backend : str
        Attention backend where it is known.
    offload : Offload or None
        What stays in host memory; None where the accelerators hold everything.
    """

    model: ModelSpec
    checkpoint: Checkpoint
    accelerator: Accelerator
    count: int
    tp: int
    pp: int
    dp: int
    ep: int
    dcp: int
    kv: str
    engine: str
    release: tuple[int, ...] | None
    graphs: bool
    draft_tokens: int
    acceptance: float | None
    sparse: bool
    link: LayoutLinks
    draft_method: str = ""
    draft_depth: int = 0
    text: str = ""
    attention_backend: str = ""
    moe_backend: str = ""
    offload: Offload | None = None

    @property
    def layout(self) -> Layout:
        """The parallel degrees."""
        return Layout(tp=self.tp, pp=self.pp, dp=self.dp, ep=self.ep, dcp=self.dcp)

    @property
    def graph_tokens(self) -> int:
        """Tokens up to which the engine replays a pass with prompts from piecewise graphs, [token]"""
        return engine_defaults(self.engine).graph_tokens if self.graphs else 0

    @property
    def tokens_per_step(self) -> float:
        """Tokens that a request gains in a step, [-]"""
        if not self.draft_tokens:
            return 1.0
        return self.acceptance_prior[0] if self.acceptance is None else max(self.acceptance, 1.0)

    @property
    def acceptance_prior(self) -> tuple[float, float]:
        """Tokens a step gains with this drafting by the fit [token], and the deviation of their logarithm [-]"""
        return acceptance_prior(
            self.model.family,
            self.draft_method or ("eagle3" if self.model.draft_head else "mtp" if self.model.mtp else ""),
            self.draft_depth or self.draft_tokens,
            self.text,
            verify_tokens=self.draft_tokens + 1,
        )

    @property
    def acceptance_deviation(self) -> float:
        """Deviation of the logarithm of the tokens a step gains; 0 when they were given, [-]"""
        return self.acceptance_prior[1] if self.draft_tokens and self.acceptance is None else 0.0

    @property
    def weights(self) -> str:
        """Format of the bulk of the weights: of the routed experts, or of the dense layers."""
        if self.checkpoint.file_bits_per_weight is not None:
            return "gguf"
        return self.checkpoint.formats.get("routed_experts") or self.checkpoint.default

    @cached_property
    def structure(self) -> StepWork:
        """What the step-time function needs."""
        silicon = self.accelerator.compute_capability or ""
        part = Part(
            name=self.accelerator.name,
            family="cpu" if self.accelerator.kind == "cpu-socket" else _family(silicon),
            bandwidth=self.accelerator.need("memory_bandwidth"),
            peaks={str(name): rate for name, rate in self.accelerator.peak.items()},
            same_chip=self.accelerator.same_chip or "",
            multiprocessors=self.accelerator.multiprocessors or 0,
        )
        packs = any(one.packed_fp8 for one in mixers_of(self.model))
        latent_fp8 = self.kv == "fp8" and self.engine == "vllm" and packs and self.indexer
        return StepWork(
            model=self.model,
            checkpoint=self.checkpoint,
            part=part,
            link=self.link,
            engine=self.engine,
            kv_bytes=kv_format(self.kv).bytes,
            latent_bytes=DS_MLA_BYTES if latent_fp8 else 0.0,
            sparse=self.sparse,
            draft_tokens=self.draft_tokens,
            verify_only=self.model.draft_layers is None,
            attention=attention_rule(self.engine, self.attention_backend, part.family, self.kv),
        )

    @property
    def indexer(self) -> bool:
        """Whether the indexer of sparse attention is loaded and its keys are cached."""
        return keeps_indexer(self.engine, self.sparse)

    def with_layout(
        self, link: LayoutLinks, *, tp: int, pp: int = 1, dp: int = 1, ep: int = 1, dcp: int = 1
    ) -> Deployment:
        """The same deployment in another layout.

        Parameters
        ----------
        link : LayoutLinks
            The links that the groups of that layout cross.
        tp, pp, dp, ep, dcp : int, optional
            The layout, [-]

        Returns
        -------
        Deployment
            With as many accelerators as the layout takes.
        """
        return replace(self, link=link, tp=tp, pp=pp, dp=dp, ep=ep, dcp=dcp, count=tp * pp * dp)


def _family(silicon: str) -> str:
    return silicon.partition(".")[0] if silicon[:1].isdigit() else ""


def runs_sparse(accelerator: Accelerator, backend: str | None) -> bool:
    """Whether an indexed model attends sparsely on a part.

    Parameters
    ----------
    accelerator : Accelerator
        The part.
    backend : str or None
        Attention backend where it is known; a community sparse kernel names itself ``nsa`` or ``sparse``.

    Returns
    -------
    bool
        False means dense attention: correct, but all keys are read.
    """
    said = (backend or "").lower()
    if "dense" in said or "off" in said:
        return False
    return "nsa" in said or "sparse" in said or accelerator.compute_capability in _SPARSE_CAPABILITIES


def keeps_indexer(engine: str, sparse: bool) -> bool:
    """Whether the indexer of sparse attention takes memory, even if attention is dense for want of kernels.

    Parameters
    ----------
    engine : str
        The engine.
    sparse : bool
        Whether sparse attention runs.

    Returns
    -------
    bool
        False where dense attention comes from a patch that leaves the indexer out, see `glmplan.physics.blocks.cache`.

    Examples
    --------
    >>> keeps_indexer("vllm", True), keeps_indexer("vllm", False), keeps_indexer("sglang", False)
    (True, False, True)
    """
    layout = CACHE_LAYOUTS.get(engine.lower())
    return sparse or layout is None or not layout.dense_drops_indexer


def checkpoint_for(model: ModelSpec, weights: str | None, *, bits: float | None = None) -> Checkpoint:
    """Choose a checkpoint of a model by the format of its weights.

    Parameters
    ----------
    model : ModelSpec
        The model.
    weights : str or None
        Name of a checkpoint or of a format; None takes the default.
    bits : float or None, optional
        Stored bits for each weight where a file says so, [bit]

    Returns
    -------
    Checkpoint
        A published checkpoint when one has that format, else all matrices in that format.

    Raises
    ------
    SpecError
        If there is no such format.
    """
    if bits is not None:
        return Checkpoint(
            name=weights or "file", file_bits_per_weight=bits, includes_mtp=False, source="size of the file"
        )
    if weights is None:
        named = model.checkpoint(model.default_checkpoint) if model.default_checkpoint else None
        return named or (model.checkpoints[0] if model.checkpoints else uniform_checkpoint("bf16"))
    found = model.checkpoint(weights)
    if found is not None:
        return found
    plain = {"f16": "bf16", "int4-g32": "int4", "awq-int4": "int4", "gptq-int4": "int4", "fp8-block": "fp8"}
    same = [one for one in model.checkpoints if one.name.split("-")[0] in (weights, plain.get(weights, weights))]
    if same:
        return same[0]
    if weights in _FILE_BITS:
        return Checkpoint(name=weights, file_bits_per_weight=_FILE_BITS[weights], includes_mtp=False,
                          source="typical size of such files for each weight")  # fmt: skip
    try:
        return uniform_checkpoint("fp8-block" if weights == "fp8" else weights)
    except SpecError as error:
        raise SpecError(
            f"is neither a format nor a checkpoint of {model.name}", field="weights", value=weights,
            choices=[one.name for one in model.checkpoints] + error.choices,
        ) from None  # fmt: skip


#: mean bits for each weight of mixed GGUF files, from the published file sizes of one 8 B model (llama.cpp,
#: tools/quantize/README.md table for Llama-3.1-8B: file bits / parameters) [bit]
_FILE_BITS = {
    "q8_0": 8.5, "q8_k_xl": 9.5, "q6_k": 6.57, "q5_k_m": 5.70, "q5_k_xl": 5.8, "q4_k_m": 4.89, "q4_k_xl": 5.0,
    "q4_k_s": 4.67, "q3_k_m": 4.00, "q3_k_s": 3.64, "q2_k": 3.16, "iq4_xs": 4.46, "iq3_s": 3.66, "iq2_m": 2.94,
    "q4_0": 4.66, "q4_k": 4.89,
}  # fmt: skip


def heads_of(model: ModelSpec) -> int:
    """Attention heads that tensor parallelism must divide.

    Parameters
    ----------
    model : ModelSpec
        The model.

    Returns
    -------
    int
        Greatest common divisor of the heads of its layers; 1 without attention, [-]
    """
    return gcd(*(one.heads for one in mixers_of(model))) or 1
