"""What decides the work of a step apart from its points: model, formats, part, link, and the kernels that run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar, TypeVar

import numpy as np

from glmplan.catalog.engines.kernels import AttentionRule, KernelRule, collective_engine, kernel_rule
from glmplan.catalog.engines.limitations import engine_names, load_engine
from glmplan.catalog.formats import WEIGHT_FORMATS, WeightFormat
from glmplan.catalog.schema.model import Checkpoint, ExpertsFfn, LayerKind, ModelSpec
from glmplan.costs.blocks.kinds import mixer_of, routed_of, streams_of
from glmplan.costs.blocks.stack import Segment, segments, tensor_format, vocabulary_tensors
from glmplan.costs.blocks.tensor import Tensor
from glmplan.costs.kernels.utilisation import CollectiveParams, KernelFit, KernelParams, KernelWork, find_kernel_fit
from glmplan.costs.network.links import LayoutLinks, LinksByPoint
from glmplan.errors import UnknownFact
from glmplan.units import FlopPerSecond

__all__ = [
    "PROCESSOR_ATTENTION",
    "PROCESSOR_KERNELS",
    "Layers",
    "Part",
    "Product",
    "Products",
    "StepWork",
    "in_groups",
    "product_terms",
    "tile_rows",
]


# Kernels of an engine on a processor, which no table of single kernels covers: their form is read from the engine.

#: shares of the rates that a probe measures with all cores, from prompts of 1 to 64 tokens, F16 weights, one core: a
#: dense model of 26 M took an EPYC with AVX-512 0.85 ms · (rows + 2.9) and one with AVX2 4.1 ms · (rows + 0.9), one of
#: 105 M a Xeon with AMX 17 ms + 4.0 ms · rows from six rows on. With the tiles of `tile_rows` that is 0.6, 0.7 and 0.35
#: of the copy's bandwidth, which adds up with computing (sharpness 1), and 0.8, 0.23 and 0.15 of the product's rate,
#: because numpy's BLAS takes wider registers than a build for all processors does. The geometric means; their spread is
#: in `glmplan.calibrate.step.own_site`. Experts are dot products (`ggml-cpu.c`, `ggml_compute_forward_mul_mat_id`): a
#: row of 26 M took the Xeon 1.2 ms from its caches, of full tiles 1.0 to 1.3
_PRODUCT = KernelParams(floor=2e-6, bandwidth=0.55, flop=0.3, sharpness=1.0)
PROCESSOR_KERNELS = {"gemm": _PRODUCT, "experts": _PRODUCT}
#: every other kernel: attention, states; a core of the Xeon read F16 from its second-level cache of 2 MB (`lscpu`)
#: three times as fast as from memory
PROCESSOR_ATTENTION = KernelParams(floor=5e-6, bandwidth=0.5, flop=0.2, sharpness=1.0, cache_gain=3.0, cache_bytes=2e6)

#: weights and most rows of a tile of products that stays in 16 registers; 32 registers, which only builds for AVX-512
#: have, hold six rows (ggml-org/llama.cpp, ggml/src/ggml-cpu/llamafile/sgemm.cpp: `mnpack<4, 3, 4>`, `mnpack<4, 6, 4>`)
_WEIGHTS, _ROWS = 4.0, 3.0


def tile_rows(rows: np.ndarray) -> np.ndarray:
    """Return as how many rows of full tiles some rows of F16 or BF16 weights count.

    Rows are dealt to tiles of at most three, of like size. For each step along the inner dimension a tile widens its
    rows and four weights to FP32 and multiplies each with each, on the same ports:
    ``(4n + n + 4·ceil(n/3)) / (4 + 1 + 4/3)`` [1]_.

    Returns: At least as many; between whole numbers along the line.

    Notes
    -----
    Measured on a Xeon from its nearest cache, 1,408 inputs: tiles of one, two and three rows took 1, 1.57 and 2.14 of
    one row's time, by the formula 1, 1.56 and 2.11. Not modelled: tiles of six rows with 32 registers; matrices whose
    outputs are no multiple of four; tiles of quantised weights, which differ by format (Q8_0 in pairs, Q4_0 packed
    anew) and are counted by their rows.

    References
    ----------
    .. [1] ggml-org/llama.cpp, ggml/src/ggml-cpu/llamafile/sgemm.cpp: `tinyBLAS::matmul`, `BLOCK_SIZE`, `gemm_bloc`.

    Examples
    --------
    >>> tile_rows(np.array([2.0, 3.0, 4.0, 4.5, 6.0])).round(2).tolist()
    [2.21, 3.0, 4.42, 4.82, 6.0]
    """
    below = np.floor(rows)
    each = _WEIGHTS + 1.0
    at, after = (each * one + _WEIGHTS * np.ceil(one / _ROWS) for one in (below, below + 1.0))
    return np.asarray((at + (rows - below) * (after - at)) / (each + _WEIGHTS / _ROWS))


def product_terms(
    kernel: Callable[[KernelWork], tuple[np.ndarray, ...]],
    of_rows: Callable[[np.ndarray], KernelWork],
    rows: np.ndarray,
    *,
    tiled: bool = True,
) -> tuple[np.ndarray, ...]:
    """Return a product's time on a processor: one row runs a kernel of its own, whose time goes with what is fixed.

    llama.cpp's `llamafile_sgemm` takes two rows or more, one is a dot product for each output. Neither tells of the
    other: against two rows one took 0.4 of the time on a core with AVX-512 and 0.75 on one with AVX2.

    - `kernel`: From a work to its time by what is fixed, bytes and FLOP, [s].
    - Returns: What is fixed, what bytes cost and what FLOP cost, [s].

    Examples
    --------
    >>> from functools import partial
    >>> from glmplan.costs.kernels.counts import gemm_work
    >>> from glmplan.costs.kernels.utilisation import kernel_terms
    >>> kernel = partial(kernel_terms, peak_flop=1e11, peak_bandwidth=4e10, params=PROCESSOR_KERNELS["gemm"])
    >>> terms = product_terms(kernel, partial(gemm_work, n=4096, k=4096, weight_bytes=2.0), np.array([1.0, 2.0, 4.0]))
    >>> [(1e3 * slot).round(2).tolist() for slot in terms]
    [[2.65, 0.0, 0.0], [0.0, 1.53, 1.53], [0.0, 2.47, 4.94]]
    """
    more = np.clip(rows - 1.0, 0.0, 1.0)
    alone = sum(kernel(replace(of_rows(np.ones_like(rows)), rows=np.inf)))
    several = np.maximum(rows, 2.0)
    work = of_rows(several)
    count = tile_rows(several) / several if tiled else 1.0
    fixed, of_bytes, of_flop = kernel(replace(work, flop=work.flop * count, rows=np.inf))
    return (1.0 - more) * alone + more * fixed, more * of_bytes, more * of_flop


# Matrices of a layer that run as one product, and those of one format together, which one kernel computes.

#: matrices of shared experts; projections around routed ones are of their class and come before and after them
_SHARED = "mlp.shared_experts"


@dataclass(frozen=True)
class Product:
    """Matrices of one layer that run as one product: they share input, format and sharding.

    Attributes
    ----------
    tensor : Tensor
        One of them, for its class and its cut.
    format : WeightFormat
        How they are stored.
    rows, columns : float
        Outputs and inputs of the product on one rank without tensor parallelism, [-]
    """

    tensor: Tensor
    format: WeightFormat
    rows: float
    columns: float


@dataclass(frozen=True, eq=False)
class Products:
    """Products of one format, with what their kernel sees of each as a line of an array.

    Attributes
    ----------
    format : WeightFormat
        How their weights are stored.
    each : tuple of (Product, int)
        Product, and how often it runs, [-]
    """

    format: WeightFormat
    each: tuple[tuple[Product, int], ...]

    def _lines(self, values: list[float]) -> np.ndarray:
        return np.array(values, dtype=float)[:, None]

    @cached_property
    def rows(self) -> np.ndarray:
        """Outputs without tensor parallelism, (k, 1), [-]"""
        return self._lines([one.rows for one, _ in self.each])

    @cached_property
    def columns(self) -> np.ndarray:
        """Inputs without tensor parallelism, (k, 1), [-]"""
        return self._lines([one.columns for one, _ in self.each])

    @cached_property
    def counts(self) -> np.ndarray:
        """How often each runs, (k, 1), [-]"""
        return self._lines([count for _, count in self.each])

    @cached_property
    def splits_input(self) -> np.ndarray:
        """Whether tensor parallelism splits inputs and not outputs, (k, 1)"""
        return self._lines([one.tensor.splits_input for one, _ in self.each]) > 0.0

    @cached_property
    def shared(self) -> np.ndarray:
        """Whether it is of shared experts, (k, 1)"""
        return self._lines([one.tensor.name.startswith(_SHARED) for one, _ in self.each]) > 0.0

    def share(self, *, tp: np.ndarray, ep: np.ndarray, expert_ranks: np.ndarray) -> np.ndarray:
        """Fraction of each that the fullest rank holds.

        Returns: Share of the weights on the fullest rank.

        Examples
        --------
        >>> from glmplan.catalog.formats import weight_format
        >>> bf16 = weight_format("bf16")
        >>> up = Product(Tensor("up", "mlp", 8192, 4096), bf16, 8192.0, 4096.0)
        >>> Products(bf16, ((up, 1),)).share(tp=np.array([1, 4]), ep=np.ones(2), expert_ranks=np.ones(2))
        array([[1.  , 0.25]])
        """
        found = np.empty((len(self.each), len(tp)))
        for line, (one, _) in zip(found, self.each, strict=True):
            line[:] = one.tensor.share(tp=tp, ep=ep, expert_ranks=expert_ranks)
        return found


def in_groups(products: Mapping[Product, int]) -> tuple[Products, ...]:
    """Put products of one format together, which the same kernel computes.

    Returns: In the order in which formats come first.
    """
    groups: dict[WeightFormat, list[tuple[Product, int]]] = {}
    for one, count in products.items():
        groups.setdefault(one.format, []).append((one, count))
    return tuple(Products(form, tuple(group)) for form, group in groups.items())


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

    def rate(self, compute: str) -> FlopPerSecond:
        """Rate at which weights meant for a precision are multiplied; formats without hardware run in BF16.

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

        `parts`: Segments with the products of one of their layers.
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
        Release of the engine whose kernels run (`glmplan.costs.kernels.utilisation.kernel_release`), [-]
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
        """The same work over other links."""
        return self.shared_with(replace(self, link=link))

    def shared_with(self, other: Work) -> Work:
        """Give what follows from model and formats to another work of the same, so that it is not made again."""
        other.__dict__.update({name: getattr(self, name) for name in _OF_MODEL})
        return other

    def remembered(self: Work) -> Work:
        """Take what an earlier work of the same records has already made of them."""
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

        Returns: The kernel; one for whole numbers of 4 bits or BF16 where the part lacks the precision.
        """
        rule = kernel_rule(self.engine, self.part.family, form, product, self.expert_kernels)
        if self.part.peaks.get(rule.compute) is None:
            plain = WEIGHT_FORMATS["bf16" if form.bits >= 16 else "int4"]
            return kernel_rule(self.engine, self.part.family, plain, product)
        return rule

    def kernel(self, kernel: str, form: str | KernelRule) -> KernelParams:
        """Fitted parameters of a kernel on this part, by this engine where it was measured.

        Returns: The part's own fit, a prior of its family, or a rule of thumb.
        """
        rule = form if isinstance(form, KernelRule) else KernelRule(form, 2.0, "bf16", self.engine)
        release = self.release if rule.engine == self.engine else None
        return _kernel(self.part.same_chip or self.part.name, self.part.family, kernel, rule, release)

    def attention_kernel(self, kernel: str) -> KernelParams:
        """Fitted parameters of a kernel that reads the KV cache, by the attention backend where it is known."""
        form = "fp8" if self.kv_bytes <= 1.1 else "bf16"
        return self.kernel(kernel, KernelRule(form, 2.0, "bf16", self.engine, self.attention.backend))

    def mixing_kernels(self) -> tuple[tuple[str, KernelParams], ...]:
        """Kernels that read and write residual streams around a block, where this engine's were measured on this part.

        Returns: Part of the work, as `glmplan.costs.kernels.counts.mixing_work` names it, and its fit; empty where
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
