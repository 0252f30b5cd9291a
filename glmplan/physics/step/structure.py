"""What decides the work of a step apart from its points: model, formats, part, link, and the kernels that run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar, TypeVar

from glmplan.errors import UnknownFact
from glmplan.facts.engines.kernels import AttentionRule, KernelRule, collective_engine, kernel_rule
from glmplan.facts.engines.walls import engine_names, load_engine
from glmplan.facts.formats import WEIGHT_FORMATS, WeightFormat
from glmplan.facts.schema.model import Checkpoint, ExpertsFfn, LayerKind, ModelSpec
from glmplan.physics.blocks.kinds import mixer_of, routed_of, streams_of
from glmplan.physics.blocks.stack import vocabulary_tensors
from glmplan.physics.blocks.storage import Segment, segments, tensor_format
from glmplan.physics.blocks.tensor import Tensor
from glmplan.physics.kernels.fits import KernelFit, find_kernel_fit
from glmplan.physics.kernels.utilisation import CollectiveParams, KernelParams
from glmplan.physics.network.groups import LayoutLinks, LinksByPoint
from glmplan.physics.step.on_processor import PROCESSOR_ATTENTION, PROCESSOR_KERNELS
from glmplan.physics.step.products import Product, Products, in_groups

__all__ = ["Layers", "Part", "StepWork"]

#: kernels nobody measured alone: a launch, four fifths of the bandwidth, six tenths of the FLOP rate [roofline habit]
_UNKNOWN_KERNEL = KernelParams(floor=4e-6, bandwidth=0.8, flop=0.6, rows_half=32.0)
_UNKNOWN_COLLECTIVE = CollectiveParams(latency=10e-6, hop=1e-6, one_shot=0.4, two_shot=0.6)


Work = TypeVar("Work", bound="StepWork")


@dataclass(frozen=True, slots=True)
class Part:
    """Rates of an accelerator as the cost functions need them.

    Attributes
    ----------
    name : str
        Name in the catalogue, by which kernel fits are found.
    bandwidth : float
        Memory bandwidth, [B/s]
    peaks : dict
        Dense matrix rate for each precision that the part has, [FLOP/s]
    family : str
        Compute capability without the minor number, ``"9"``; ``"cpu"`` for a processor; empty if it has none.
    same_chip : str
        Part with the same chip, by whose name kernel fits are found where this part was not measured.
    multiprocessors : int
        Cores that each run a block of threads; 0 where it is not known, [-]
    """

    name: str
    bandwidth: float
    peaks: dict[str, float]
    family: str = ""
    same_chip: str = ""
    multiprocessors: int = 0

    @property
    def is_processor(self) -> bool:
        """Whether a CPU computes."""
        return self.family == "cpu"

    def rate(self, compute: str) -> float:
        """Rate at which weights meant for a precision are multiplied; formats without hardware run in BF16.

        Parameters
        ----------
        compute : str
            Precision the format is meant for.

        Returns
        -------
        float
            [FLOP/s]

        Raises
        ------
        UnknownFact
            If no matrix rate of the part is published.

        Examples
        --------
        >>> Part("h100-sxm", bandwidth=3.35e12, peaks={"bf16": 989e12, "fp8": 1978e12}).rate("fp4") / 1e12
        989.0
        """
        found = self.peaks.get(compute) or self.peaks.get("bf16") or self.peaks.get("fp8") or self.peaks.get("fp4")
        if not found:
            raise UnknownFact("no matrix rate of this part is published")
        return found


@dataclass(frozen=True)
class Layers:
    """Layers that see the same tokens, by what they have in common: a kernel that many of them run is computed once.

    Attributes
    ----------
    dense : tuple of Products
        Products that every token takes, in groups of one format.
    routed : tuple of (Product, ExpertsFfn, int)
        Products of routed experts, whose they are, and how often each runs, [-]
    mixers : tuple of (LayerKind, int)
        A layer with each kind of mixer, and how many have it, [-]
    unmixed : tuple of Products
        `dense` without the products that mix residual streams; empty where there are none.
    mixing : tuple of (int, int)
        Residual streams of layers whose mix has kernels of its own in some engines, and how many layers, [-]
    count, moe, state, streams : float
        Layers, those with experts, latent, sparse and recurrent ones, residual streams of all, [-]
    tensor_reduces, expert_reduces : float
        All-reduces over the ranks that share a layer, and over those that share its experts, [-]
    """

    dense: tuple[Products, ...]
    routed: tuple[tuple[Product, ExpertsFfn, int], ...]
    mixers: tuple[tuple[LayerKind, int], ...]
    count: float
    moe: float
    state: float
    streams: float
    tensor_reduces: float
    expert_reduces: float
    unmixed: tuple[Products, ...] = ()
    mixing: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, parts: tuple[tuple[Segment, tuple[Product, ...]], ...]) -> Layers:
        """Count what segments hold.

        Parameters
        ----------
        parts : tuple of (Segment, tuple of Product)
            Segments with the products of one of their layers.

        Returns
        -------
        Layers
            Their layers together.
        """
        dense: dict[Product, int] = {}
        routed: dict[tuple[Product, ExpertsFfn], int] = {}
        mixers: dict[object, tuple[LayerKind, int]] = {}
        for part, products in parts:
            experts = routed_of(part.kind)
            for one in products:
                if experts is not None and one.tensor.tensor_class == "routed_experts":
                    routed[one, experts] = routed.get((one, experts), 0) + part.count
                else:
                    dense[one] = dense.get(one, 0) + part.count
            _, before = mixers.get(part.kind.mixer, (part.kind, 0))
            mixers[part.kind.mixer] = (part.kind, before + part.count)
        kinds = [(part.kind, part.count, routed_of(part.kind) is not None) for part, _ in parts]
        mixing: dict[int, int] = {}
        for kind, count, _ in kinds:
            if kind.streams is not None and kind.streams.form == "manifold":
                mixing[kind.streams.streams] = mixing.get(kind.streams.streams, 0) + count
        return cls(
            dense=in_groups(dense),
            routed=tuple((*one, count) for one, count in routed.items()),
            mixers=tuple(mixers.values()),
            count=float(sum(count for _, count, _ in kinds)),
            moe=float(sum(count for _, count, experts in kinds if experts)),
            state=float(sum(count * mixer_of(kind).extra_launches for kind, count, _ in kinds)),
            streams=float(sum(count * streams_of(kind).streams for kind, count, _ in kinds)),
            # one all-reduce after the mixer and one after the feed-forward part, each over the ranks that share it
            tensor_reduces=float(sum(
                count * ((kind.mixer is not None) + bool(kind.ffn and not experts)) for kind, count, experts in kinds
            )),
            expert_reduces=float(sum(count for _, count, experts in kinds if experts)),
            unmixed=in_groups({
                one: n for one, n in dense.items() if mixing and one.tensor.tensor_class != "streams"
            }),
            mixing=tuple(mixing.items()),
        )  # fmt: skip


#: what follows from model and formats alone, whatever the links are and the kernels reach
_OF_MODEL = ("main", "draft", "joined", "head", "drafting", "stacks", "ends", "entry", "shares")


@dataclass(frozen=True)
class StepWork:
    """Everything that decides the work of a step except the points.

    Attributes
    ----------
    model : ModelSpec
        The model.
    checkpoint : Checkpoint
        How its weights are stored.
    part : Part
        Its rates.
    link : LayoutLinks or LinksByPoint
        Links that the groups of the layout cross, or of each point's layout.
    engine : str
        Engine, by which kernel fits are found.
    kv_bytes : float
        Bytes for each cached value of ordinary attention, [B]
    latent_bytes : float
        Bytes for each token and layer of a latent cache in the engine's layout, [B]; 0 takes values × `kv_bytes`
    sparse : bool
        Whether sparse attention kernels run; without them an indexed model attends densely.
    draft_tokens : int
        Tokens that MTP or a draft head proposes for each request and step, [-]
    verify_only : bool
        Leave the draft passes out (for engines whose draft is a separate model).
    attention : AttentionRule
        How attention shares keys among blocks of threads.
    release : tuple of int or None
        Release of the engine whose kernels run (`glmplan.physics.kernels.fits.kernel_release`), [-]
    expert_kernels : str
        Kernels of the experts that the server was told to take; empty where nothing was said.
    adapters, adapter_rank : int
        Low-rank adapters (LoRA) that requests may name, and the rank of their buffers, [-]
    shared_beside : float
        Tokens of a step up to which shared experts run beside the routed ones, which hides what their products take
        whatever their size, [token]
    """

    model: ModelSpec
    checkpoint: Checkpoint
    part: Part
    link: LayoutLinks | LinksByPoint
    engine: str = "vllm"
    kv_bytes: float = 2.0
    latent_bytes: float = 0.0
    sparse: bool = True
    draft_tokens: int = 0
    verify_only: bool = False
    attention: AttentionRule = AttentionRule()
    release: tuple[int, ...] | None = None
    expert_kernels: str = ""
    adapters: int = 0
    adapter_rank: int = 0
    shared_beside: float = 0.0

    #: whether what ranks send each other takes time
    counts_links: ClassVar[bool] = True
    #: how many sets of kernel parameters are looked at at once, by the last axis but one; none stands for one [-]
    lanes: ClassVar[tuple[int, ...]] = ()

    def with_links(self, link: LayoutLinks | LinksByPoint) -> StepWork:
        """The same work over other links.

        Parameters
        ----------
        link : LayoutLinks or LinksByPoint
            The links.

        Returns
        -------
        StepWork
            With the products of this one.
        """
        return self.shared_with(replace(self, link=link))

    def shared_with(self, other: Work) -> Work:
        """Give what follows from model and formats to another work of the same, so that it is not made again.

        Parameters
        ----------
        other : StepWork
            The other.

        Returns
        -------
        StepWork
            The other.
        """
        other.__dict__.update({name: getattr(self, name) for name in _OF_MODEL})
        return other

    def remembered(self: Work) -> Work:
        """Take what an earlier work of the same records has already made of them.

        Returns
        -------
        StepWork
            This one.
        """
        key = (id(self.model), id(self.checkpoint), bool(self.draft_tokens) and not self.verify_only)
        found = _KNOWN.get(key)
        if found is None:
            while len(_KNOWN) >= _REMEMBERED:
                _KNOWN.pop(next(iter(_KNOWN)), None)
            # it holds model and checkpoint, so that their ids stay their own
            _KNOWN[key] = self
        else:
            self.__dict__.update({name: found.__dict__[name] for name in _OF_MODEL if name in found.__dict__})
        return self

    @cached_property
    def cells(self) -> int:
        """Cells in whose multiples every request attends to those of all [token]; 0 where only its own cost time.

        Kernels of accelerators were measured without; what it costs there is in the fitted effects.
        """
        running = load_engine(self.engine).running if self.part.is_processor and self.engine in engine_names() else None
        return running.cells if running is not None else 0

    @cached_property
    def stacks(self) -> tuple[tuple[bool, Layers], ...]:
        """Layers of the main model, those apart that only read what earlier ones cached of a prompt (True)."""
        kinds = {bool(part.kind.decode_only): None for part, _ in self.main}
        return tuple(
            (kind, Layers.of(tuple(one for one in self.main if bool(one[0].kind.decode_only) == kind)))
            for kind in kinds
        )

    @cached_property
    def drafting(self) -> Layers:
        """Layers that draft."""
        return Layers.of(self.draft)

    @cached_property
    def shares(self) -> bool:
        """Whether any layer has shared experts, which may run beside the routed ones."""
        layers = (*(some for _, some in self.stacks), self.drafting)
        return any(bool(group.shared.any()) for some in layers for group in some.dense)

    @cached_property
    def ends(self) -> tuple[Products, ...]:
        """Products of the output head, as `Layers.dense` has them."""
        return in_groups(dict.fromkeys(self.head, 1))

    @cached_property
    def entry(self) -> tuple[Products, ...]:
        """Projections that drafting starts with once a step, as `Layers.dense` has them."""
        return in_groups(dict.fromkeys(self.joined, 1))

    @cached_property
    def main(self) -> tuple[tuple[Segment, tuple[Product, ...]], ...]:
        """Segments of the main model with their products."""
        return tuple((part, _products(part.tensors, part.formats)) for part in segments(self.model, self.checkpoint))

    @cached_property
    def draft(self) -> tuple[tuple[Segment, tuple[Product, ...]], ...]:
        """Segments of the layers that draft; empty without drafting."""
        return tuple((part, _products(*_run(part, once=False))) for part in self._drafting)

    @cached_property
    def drafts_in_blocks(self) -> bool:
        """Whether one pass through the layers that draft proposes all tokens of a step."""
        return self.model.mtp is not None and self.model.mtp.block is not None

    @cached_property
    def joined(self) -> tuple[Product, ...]:
        """The projection that a draft head or a block drafter runs once a step."""
        return tuple(one for part in self._drafting for one in _products(*_run(part, once=True)))

    @cached_property
    def _drafting(self) -> tuple[Segment, ...]:
        if not self.draft_tokens or self.verify_only:
            return ()
        return tuple(one for one in segments(self.model, self.checkpoint, mtp=True) if one.name == "mtp")

    @cached_property
    def head(self) -> tuple[Product, ...]:
        """The output head."""
        rows = [tensor for tensor in vocabulary_tensors(self.model) if tensor.matmul]
        return _products(tuple(rows), tuple(tensor_format(self.checkpoint, tensor, None) for tensor in rows))

    def runs_as(self, form: WeightFormat, product: str) -> KernelRule:
        """How the engine multiplies weights of a format on this part.

        Parameters
        ----------
        form : WeightFormat
            How they are stored.
        product : str
            ``gemm`` or ``experts``.

        Returns
        -------
        KernelRule
            The kernel; one for whole numbers of 4 bits or BF16 where the part lacks the precision.
        """
        rule = kernel_rule(self.engine, self.part.family, form, product, self.expert_kernels)
        if self.part.peaks.get(rule.compute) is None:
            plain = WEIGHT_FORMATS["bf16" if form.bits >= 16 else "int4"]
            return kernel_rule(self.engine, self.part.family, plain, product)
        return rule

    def kernel(self, kernel: str, form: str | KernelRule) -> KernelParams:
        """Fitted parameters of a kernel on this part, by this engine where it was measured.

        Parameters
        ----------
        kernel : str
            Class of kernel.
        form : str or KernelRule
            KV format, or how weights are multiplied.

        Returns
        -------
        KernelParams
            The part's own fit, a prior of its family, or a rule of thumb.
        """
        rule = form if isinstance(form, KernelRule) else KernelRule(form, 2.0, "bf16", self.engine)
        release = self.release if rule.engine == self.engine else None
        return _kernel(self.part.same_chip or self.part.name, self.part.family, kernel, rule, release)

    def attention_kernel(self, kernel: str) -> KernelParams:
        """Fitted parameters of a kernel that reads the KV cache, by the attention backend where it is known.

        Parameters
        ----------
        kernel : str
            Class of kernel.

        Returns
        -------
        KernelParams
            As `kernel` finds them.
        """
        form = "fp8" if self.kv_bytes <= 1.1 else "bf16"
        return self.kernel(kernel, KernelRule(form, 2.0, "bf16", self.engine, self.attention.backend))

    def mixing_kernels(self) -> tuple[tuple[str, KernelParams], ...]:
        """Kernels that read and write residual streams around a block, where this engine's were measured on this part.

        Returns
        -------
        tuple of (str, KernelParams)
            Part of the work, as `glmplan.physics.kernels.state_counts.mixing_work` names it, and its fit; empty where
            nobody measured them: then the products of the mix are counted, and a pass over every stream.
        """
        return _mixing(self.part.same_chip or self.part.name, self.engine, self.release)

    def collective(self) -> CollectiveParams:
        """Fitted parameters of all-reduces on this part, or a rule of thumb."""
        engine = collective_engine(self.engine, self.part.family)
        release = self.release if engine == self.engine else None
        return _collective(self.part.same_chip or self.part.name, self.part.family, engine, release)


#: works whose products are remembered, the last asked for [-]
_REMEMBERED = 64
_KNOWN: dict[tuple[int, int, bool], StepWork] = {}

#: a kernel fit that misses single shapes by more than this in the median says too little; the next format is taken [-]
_POOR_FIT = 0.25


@lru_cache(maxsize=4096)
def _kernel(part: str, family: str, kernel: str, rule: KernelRule, release: tuple[int, ...] | None) -> KernelParams:
    if family == "cpu":
        return PROCESSOR_KERNELS.get(kernel, PROCESSOR_ATTENTION)
    for precision in (rule.form, "fp8" if rule.form.startswith("fp8") else "bf16", "bf16"):
        found = find_kernel_fit(
            part, kernel, precision=precision, engine=rule.engine, release=release, family=family or None,
            backend=rule.backend,
        )  # fmt: skip
        if found is not None and isinstance(found.params, KernelParams) and found.median < _POOR_FIT:
            return found.params
    return _UNKNOWN_KERNEL


@lru_cache(maxsize=256)
def _mixing(part: str, engine: str, release: tuple[int, ...] | None) -> tuple[tuple[str, KernelParams], ...]:
    def own(which: str) -> KernelFit | None:
        found = find_kernel_fit(part, f"hyper-{which}", precision="bf16", engine=engine, release=release)
        # another engine's mix is another kernel: in PyTorch's own it takes ten times as long
        if found is None or found.pooled or found.engine.split()[0] != engine or found.median >= _POOR_FIT:
            return None
        return found

    read, write, both = own("read"), own("write"), own("both")
    if read is None or write is None:
        return ()
    fits = {"read": read, "write": write}
    if both is not None and both.release == read.release:
        fits = {"both": both}
    return tuple((which, fit.params) for which, fit in fits.items() if isinstance(fit.params, KernelParams))


@lru_cache(maxsize=256)
def _collective(part: str, family: str, engine: str, release: tuple[int, ...] | None) -> CollectiveParams:
    found = find_kernel_fit(part, "all-reduce", precision="bf16", engine=engine, release=release, family=family or None)
    if found is None or not isinstance(found.params, CollectiveParams):
        return _UNKNOWN_COLLECTIVE
    return found.params


#: projections of the states that drafting starts from
_JOINED = ("fc", "draft.main_proj")


def _run(part: Segment, *, once: bool) -> tuple[tuple[Tensor, ...], tuple[WeightFormat, ...]]:
    """Tensors of a drafting layer that run once a step, or in every draft pass, with their formats."""
    kept = [(t, form) for t, form in zip(part.tensors, part.formats, strict=True) if (t.name in _JOINED) == once]
    return tuple(t for t, _ in kept), tuple(form for _, form in kept)


def _products(tensors: tuple[Tensor, ...], formats: tuple[WeightFormat, ...]) -> tuple[Product, ...]:
    groups: dict[tuple[object, ...], Product] = {}
    for tensor, form in zip(tensors, formats, strict=True):
        if not tensor.matmul:
            continue
        module = tensor.name.rsplit(".", 1)[0]
        key: tuple[object, ...] = (module, form.name, tensor.shard, tensor.units, tensor.columns)
        if tensor.tensor_class == "routed_experts":
            key = ("routed", form.name)
        elif tensor.splits_input:
            key = (tensor.name, form.name)
        before = groups.get(key)
        rows = float(tensor.rows * (tensor.copies if tensor.tensor_class != "routed_experts" else 1))
        columns = float(tensor.columns)
        if before is not None:
            rows += before.rows if before.columns == columns else 0.0
            rows = rows if before.columns == columns else before.rows
            columns = before.columns
        groups[key] = Product(before.tensor if before else tensor, form, rows, columns)
    return tuple(groups.values())
