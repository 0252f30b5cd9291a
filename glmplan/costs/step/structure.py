"""Describe a step apart from its points.

Model, formats, accelerator, links, and the kernels that run. Kernels of an engine on a processor have no table of
single kernels: their form is read from the engine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from typing import ClassVar, TypeVar

import numpy as np

from glmplan.catalog.engines.kernels import KERNEL_FORMATS, AttentionRule, KernelRule, collective_engine, kernel_rule
from glmplan.catalog.engines.limitations import engine_names, load_engine
from glmplan.catalog.formats import WEIGHT_FORMATS, WeightFormat
from glmplan.catalog.schema.model import Checkpoint, ExpertsFfn, LayerKind, ModelSpec
from glmplan.costs.blocks.kinds import mixer_of, routed_of, streams_of
from glmplan.costs.blocks.stack import Segment, segments, tensor_format, vocabulary_tensors
from glmplan.costs.blocks.tensor import Tensor
from glmplan.costs.kernels.utilisation import CollectiveParams, KernelFit, KernelParams, KernelWork, find_kernel_fit
from glmplan.costs.network.links import LayoutLinks, LinksByPoint
from glmplan.costs.points import Layout
from glmplan.errors import UnknownFact
from glmplan.units import Bytes, BytesPerSecond, FlopPerSecond

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


#: shares of the rates that a probe measures with all cores, from prompts of 1 to 64 tokens, F16 weights, one core: a
#: dense model of 26 M took an EPYC with AVX-512 0.85 ms · (rows + 2.9) and one with AVX2 4.1 ms · (rows + 0.9), one of
#: 105 M a Xeon with AMX 17 ms + 4.0 ms · rows from six rows on. With the tiles of `tile_rows` that is 0.6, 0.7 and 0.35
#: of the copy's bandwidth, added to compute time (sharpness 1), and 0.8, 0.23 and 0.15 of the product's rate, because
#: numpy's BLAS uses wider registers than a build for all processors. The values are geometric means; their spread is in
#: `glmplan.calibrate.step.own_site`. Experts are dot products (`ggml-cpu.c`, `ggml_compute_forward_mul_mat_id`): a row
#: of 26 M took the Xeon 1.2 ms from its caches, a row of full tiles 1.0 to 1.3 ms
_PRODUCT = KernelParams(floor=2e-6, bandwidth=0.55, flop=0.3, sharpness=1.0)
PROCESSOR_KERNELS = {"gemm": _PRODUCT, "experts": _PRODUCT}
#: other kernels: attention, states; a core of the Xeon read F16 from its second-level cache of 2 MB (`lscpu`) three
#: times as fast as from memory
PROCESSOR_ATTENTION = KernelParams(floor=5e-6, bandwidth=0.5, flop=0.2, sharpness=1.0, cache_gain=3.0, cache_bytes=2e6)

#: weights and most rows of a tile of products that stays in 16 registers; 32 registers, only in builds for AVX-512,
#: hold six rows (ggml-org/llama.cpp, ggml/src/ggml-cpu/llamafile/sgemm.cpp: `mnpack<4, 3, 4>`, `mnpack<4, 6, 4>`)
_WEIGHTS, _ROWS = 4.0, 3.0


def tile_rows(rows: np.ndarray) -> np.ndarray:
    """Return the rows of full tiles that cost as much as these rows.

    The weights are F16 or BF16. Rows are assigned to tiles of at most three, of similar size. For each step along the
    inner
    dimension a tile widens its rows and four weights to FP32 and multiplies each with each, on the same ports: ``(4n +
    n + 4·ceil(n/3)) / (4 + 1 + 4/3)`` [1]_; linear between whole numbers.

    Notes
    -----
    Measured on a Xeon from its nearest cache, 1,408 inputs: tiles of one, two and three rows took 1, 1.57 and 2.14 of
    one row's time, by the formula 1, 1.56 and 2.11. Not modelled: tiles of six rows with 32 registers; matrices whose
    outputs are no multiple of four; tiles of quantised weights, which differ by format (Q8_0 in pairs, Q4_0 repacked)
    and are counted by their rows.

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
    at, after = (each * item + _WEIGHTS * np.ceil(item / _ROWS) for item in (below, below + 1.0))
    return np.asarray((at + (rows - below) * (after - at)) / (each + _WEIGHTS / _ROWS))


def product_terms(
    kernel: Callable[[KernelWork], tuple[np.ndarray, ...]],
    of_rows: Callable[[np.ndarray], KernelWork],
    rows: np.ndarray,
    *,
    tiled: bool = True,
) -> tuple[np.ndarray, ...]:
    """Return fixed, byte and FLOP time of a product on a processor [s].

    One row runs a kernel of its own, whose time counts as fixed: llama.cpp's `llamafile_sgemm` takes two rows or more,
    one row is a dot product for each output. The two times are unrelated: one row took 0.4 of the time of two on a core
    with AVX-512 and 0.75 on one with AVX2. `kernel` returns the three times of a work.

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


#: matrices of shared experts; projections around routed ones have their class and run before and after them
_SHARED = "mlp.shared_experts"


@dataclass(frozen=True)
class Product:
    """Matrices of one layer that run as one product.

    Same input, format and sharding.
    """

    tensor: Tensor  # one of them, for its class and its cut
    format: WeightFormat
    rows: float  # outputs on one rank without tensor parallelism
    columns: float  # inputs
    pieces: int  # see `glmplan.catalog.schema.engine.Running.unequal_pieces`


@dataclass(frozen=True, eq=False)
class Products:
    """Products of one format with their number of runs.

    Arrays are (k, 1), one line for each product.
    """

    format: WeightFormat
    each: tuple[tuple[Product, int], ...]

    def _lines(self, values: list[float]) -> np.ndarray:
        return np.array(values, dtype=float)[:, None]

    @cached_property
    def rows(self) -> np.ndarray:
        """Return the outputs without tensor parallelism."""
        return self._lines([one.rows for one, _ in self.each])

    @cached_property
    def columns(self) -> np.ndarray:
        """Return the inputs without tensor parallelism."""
        return self._lines([one.columns for one, _ in self.each])

    @cached_property
    def counts(self) -> np.ndarray:
        """Return the number of runs."""
        return self._lines([count for _, count in self.each])

    @cached_property
    def splits_input(self) -> np.ndarray:
        """Return True where tensor parallelism splits inputs, not outputs."""
        return self._lines([one.tensor.splits_input for one, _ in self.each]) > 0.0

    @cached_property
    def shared(self) -> np.ndarray:
        """Return True for products of shared experts."""
        return self._lines([one.tensor.name.startswith(_SHARED) for one, _ in self.each]) > 0.0

    def share(self, degrees: Layout, *, unequal: bool = False) -> np.ndarray:
        """Return the share of the weights of each product on the fullest rank.

        `unequal`: of a layer, where ranks get whole pieces.

        Examples
        --------
        >>> from glmplan.catalog.formats import weight_format
        >>> bf16 = weight_format("bf16")
        >>> up = Product(Tensor("up", "mlp", 8192, 4096), bf16, 8192.0, 4096.0, 64)
        >>> Products(bf16, ((up, 1),)).share(Layout(tp=np.array([1, 4])))
        array([[1.  , 0.25]])
        """
        result = np.empty((len(self.each), len(degrees.tp)))
        for line, (one, _) in zip(result, self.each, strict=True):
            tp = degrees.dealt(one.pieces).tp if unequal else degrees.tp
            line[:] = one.tensor.share(tp=tp, ep=degrees.ep, expert_ranks=degrees.expert_ranks)
        return result


def in_groups(products: Mapping[Product, int]) -> tuple[Products, ...]:
    """Group products by format; one kernel computes a group.

    Groups keep the order of their first product.
    """
    groups: dict[WeightFormat, list[tuple[Product, int]]] = {}
    for one, count in products.items():
        groups.setdefault(one.format, []).append((one, count))
    return tuple(Products(form, tuple(group)) for form, group in groups.items())


#: kernels without a measurement: a launch, four fifths of the bandwidth, six tenths of the FLOP rate [roofline habit]
_UNKNOWN_KERNEL = KernelParams(floor=4e-6, bandwidth=0.8, flop=0.6, rows_half=32.0)
_UNKNOWN_COLLECTIVE = CollectiveParams(latency=10e-6, hop=1e-6, one_shot=0.4, two_shot=0.6)


Work = TypeVar("Work", bound="StepWork")


@dataclass(frozen=True, slots=True)
class Part:
    """Rates of an accelerator for the cost functions."""

    name: str  # in the catalogue, key of kernel fits
    bandwidth: BytesPerSecond
    peaks: dict[str, FlopPerSecond]  # dense matrix rate of each supported precision
    family: str = ""  # compute capability without the minor number, ``"9"``; ``"cpu"``: processor; empty: none
    same_chip: str = ""  # accelerator with the same chip, whose kernel fits are used where this one was not measured
    multiprocessors: int = 0  # cores that each run a block of threads; 0: unknown

    @property
    def is_processor(self) -> bool:
        """Return True if a CPU computes."""
        return self.family == "cpu"

    def rate(self, compute: str) -> FlopPerSecond:
        """Return the rate of a weight format; BF16 without hardware for it.

        BF16 whose rate is not published runs at half the rate of FP8 or a quarter of that of FP4.

        Examples
        --------
        >>> Part("h100-sxm", bandwidth=3.35e12, peaks={"bf16": 989e12, "fp8": 1978e12}).rate("fp4") / 1e12
        989.0
        >>> Part("new", bandwidth=273e9, peaks={"fp4": 500e12}).rate("bf16") / 1e12
        125.0
        """
        result = self.peaks.get(compute) or self.peaks.get("bf16")
        result = result or self.peaks.get("fp8", 0.0) / 2.0 or self.peaks.get("fp4", 0.0) / 4.0
        if not result:
            raise UnknownFact("no matrix rate of this part is published")
        return result


@dataclass(frozen=True)
class Layers:
    """Layers that see the same tokens, grouped by kernel.

    A kernel of many layers is computed once.
    """

    dense: tuple[Products, ...]  # products of every token, grouped by format
    #: products of routed experts, with their block and number of runs
    routed: tuple[tuple[Product, ExpertsFfn, int], ...]
    mixers: tuple[tuple[LayerKind, int], ...]  # a layer with each kind of mixer, and the number of such layers
    count: float  # number of layers
    moe: float  # layers with experts
    state: float  # latent, sparse and recurrent layers
    streams: float  # residual streams of all layers
    tensor_reduces: float  # all-reduces over the ranks that share a layer
    expert_reduces: float  # all-reduces over the ranks that share its experts
    unmixed: tuple[Products, ...] = ()  # `dense` without products that mix residual streams; empty: there are none
    #: residual streams of layers whose mix has kernels of its own in some engines, number of layers
    mixing: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, parts: tuple[tuple[Segment, tuple[Product, ...]], ...]) -> Layers:
        """Return the layers of segments, counted, with their products."""
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
            # one all-reduce after the mixer and one after the feed-forward block, each over the ranks that share it
            tensor_reduces=float(sum(
                count * ((kind.mixer is not None) + bool(kind.ffn and not experts)) for kind, count, experts in kinds
            )),
            expert_reduces=float(sum(count for _, count, experts in kinds if experts)),
            unmixed=in_groups({
                one: n for one, n in dense.items() if mixing and one.tensor.tensor_class != "streams"
            }),
            mixing=tuple(mixing.items()),
        )  # fmt: skip


#: attributes that follow from model and formats alone, not from links and kernels
_OF_MODEL = ("main", "draft", "joined", "head", "drafting", "stacks", "ends", "entry", "shares")


@dataclass(frozen=True)
class StepWork:
    """Settings that decide the work of a step, without the points."""

    model: ModelSpec
    checkpoint: Checkpoint
    part: Part  # accelerator
    link: LayoutLinks | LinksByPoint  # links of the layout, or of the layout of each point
    engine: str = "vllm"  # key of kernel fits
    kv_bytes: Bytes = 2.0  # of a cached value of ordinary attention
    latent_bytes: Bytes = 0.0  # of a token and layer of a latent cache in the engine's layout; 0: values × `kv_bytes`
    sparse: bool = True  # False: no sparse kernels; an indexed model attends densely
    draft_tokens: int = 0  # speculative tokens of each request and step
    verify_only: bool = False  # True: no draft passes, for engines whose draft is a separate model
    attention: AttentionRule = AttentionRule()  # how attention splits keys among blocks of threads
    #: of the engine whose kernels run (`glmplan.costs.kernels.utilisation.kernel_release`)
    release: tuple[int, ...] | None = None
    expert_kernels: str = ""  # requested expert kernels; empty: the engine's choice
    adapters: int = 0  # LoRA adapters that requests may name
    adapter_rank: int = 0  # rank of their buffers
    #: tokens of a step up to which shared experts run concurrently with routed ones, which hides their fixed time
    shared_beside: float = 0.0
    gathers_latents: bool = False  # True: ranks of a context gather its latents for prompts, not queries and results
    prompt_tail: float = math.inf  # last prompt tokens that decode-only layers compute in a step

    #: False: communication takes no time
    counts_links: ClassVar[bool] = True
    #: sets of kernel parameters evaluated at once, by the last axis but one; empty: one set
    lanes: ClassVar[tuple[int, ...]] = ()

    def with_links(self, link: LayoutLinks | LinksByPoint) -> StepWork:
        """Return the same work over other links."""
        return self.shared_with(replace(self, link=link))

    @classmethod
    def of(cls: type[Work], given: StepWork) -> Work:
        """Return the same work in this class, which may run other kernels."""
        return given.shared_with(cls(**{field.name: getattr(given, field.name) for field in fields(StepWork)}))

    def shared_with(self, other: Work) -> Work:
        """Pass cached results on to another work of equal model and formats."""
        other.__dict__.update({name: getattr(self, name) for name in _OF_MODEL})
        return other

    def remembered(self: Work) -> Work:
        """Reuse cached results of an earlier work on the same records."""
        key = (id(self.model), id(self.checkpoint), bool(self.draft_tokens) and not self.verify_only)
        result = _KNOWN.get(key)
        if result is None:
            while len(_KNOWN) >= _REMEMBERED:
                _KNOWN.pop(next(iter(_KNOWN)), None)
            # the entry holds model and checkpoint, so that their ids are not reused
            _KNOWN[key] = self
        else:
            self.__dict__.update({name: result.__dict__[name] for name in _OF_MODEL if name in result.__dict__})
        return self

    @cached_property
    def cells(self) -> int:
        """Return the cells that the context of every request fills [token].

        All requests together. 0 where a request costs only its own cells. Kernels of accelerators were measured
        without; the difference there is in the fitted effects.
        """
        running = load_engine(self.engine).running if self.part.is_processor and self.engine in engine_names() else None
        return running.cells if running is not None else 0

    @cached_property
    def unequal_pieces(self) -> bool:
        """Return True if tensor parallelism deals whole pieces."""
        running = load_engine(self.engine).running if self.engine in engine_names() else None
        return running is not None and running.unequal_pieces

    @cached_property
    def stacks(self) -> tuple[tuple[bool, Layers], ...]:
        """Return the layers with a cache of their own, or those without (True).

        Drafting layers are not counted.
        """
        kinds = {bool(part.kind.decode_only): None for part, _ in self.main}
        return tuple(
            (kind, Layers.of(tuple(item for item in self.main if bool(item[0].kind.decode_only) == kind)))
            for kind in kinds
        )

    @cached_property
    def drafting(self) -> Layers:
        """Return the draft layers."""
        return Layers.of(self.draft)

    @cached_property
    def shares(self) -> bool:
        """Return True if any layer has shared experts.

        They may run concurrently with routed experts.
        """
        layers = (*(some for _, some in self.stacks), self.drafting)
        return any(bool(group.shared.any()) for some in layers for group in some.dense)

    @cached_property
    def ends(self) -> tuple[Products, ...]:
        """Return the products of the output head, as in `Layers.dense`."""
        return in_groups(dict.fromkeys(self.head, 1))

    @cached_property
    def entry(self) -> tuple[Products, ...]:
        """Return the projections at the start of drafting, as in `Layers.dense`.

        Once a step.
        """
        return in_groups(dict.fromkeys(self.joined, 1))

    @cached_property
    def main(self) -> tuple[tuple[Segment, tuple[Product, ...]], ...]:
        """Return the segments of the main model with their products."""
        return tuple(
            (part, _products(part.tensors, part.formats, mixer_of(part.kind).pieces))
            for part in segments(self.model, self.checkpoint)
        )

    @cached_property
    def draft(self) -> tuple[tuple[Segment, tuple[Product, ...]], ...]:
        """Return the segments of the draft layers; empty without drafting."""
        return tuple((part, _products(*_run(part, once=False), mixer_of(part.kind).pieces)) for part in self._drafting)

    @cached_property
    def drafts_in_blocks(self) -> bool:
        """Return True if one draft pass proposes all tokens of a step."""
        return self.model.draft_block is not None

    @property
    def drafts_with_own_head(self) -> bool:
        """Return True if the drafter's layers carry an output head."""
        return self.model.draft_head is not None and self.model.draft_head.vocabulary is not None

    @cached_property
    def joined(self) -> tuple[Product, ...]:
        """Return the projection that a drafter runs once a step."""
        return tuple(product for part in self._drafting for product in _products(*_run(part, once=True)))

    @cached_property
    def _drafting(self) -> tuple[Segment, ...]:
        if not self.draft_tokens or self.verify_only:
            return ()
        return tuple(segment for segment in segments(self.model, self.checkpoint, mtp=True) if segment.name == "mtp")

    @cached_property
    def head(self) -> tuple[Product, ...]:
        """Return the output head."""
        rows = [tensor for tensor in vocabulary_tensors(self.model) if tensor.matmul]
        return _products(tuple(rows), tuple(tensor_format(self.checkpoint, tensor, None) for tensor in rows))

    def runs_as(self, form: WeightFormat, product: str) -> KernelRule:
        """Return the kernel for weights of a format on this accelerator.

        For plain 4-bit integers or BF16 where the accelerator lacks the precision.
        """
        rule = kernel_rule(self.engine, self.part.family, form, product, self.expert_kernels)
        if self.part.peaks.get(rule.compute) is None:
            plain = WEIGHT_FORMATS["bf16" if form.bits >= 16 else "int4"]
            return kernel_rule(self.engine, self.part.family, plain, product)
        return rule

    def kernel(self, kernel: str, form: str | KernelRule) -> KernelParams:
        """Return kernel parameters: own fit, prior of the family, or a rule.

        A fit of this engine comes first where it was measured.
        """
        rule = form if isinstance(form, KernelRule) else KernelRule(form, 2.0, "bf16", self.engine)
        release = self.release if rule.engine == self.engine else None
        params, measured = _kernel(self.part.same_chip or self.part.name, self.part.family, kernel, rule, release)
        # the empty rows of a borrowed kernel's tiles were timed at the rate of the measured format
        own, other = (
            self.part.peaks.get(name, 1.0)
            for name in (rule.compute, KERNEL_FORMATS.get(measured, (0.0, rule.compute))[1])
        )
        slower = min(own / other, 1.0) ** (measured != rule.form)
        return replace(params, rows_half=params.rows_half * slower)

    def attention_kernel(self, kernel: str) -> KernelParams:
        """Return parameters of a kernel that reads the KV cache.

        The attention backend decides where it is known.
        """
        form = "fp8" if self.kv_bytes <= 1.1 else "bf16"
        return self.kernel(kernel, KernelRule(form, 2.0, "bf16", self.engine, self.attention.backend))

    def mixing_kernels(self) -> tuple[tuple[str, KernelParams], ...]:
        """Return the kernels that mix residual streams, with their fits.

        Measured for this engine and accelerator. The names are those of `glmplan.costs.kernels.counts.mixing_work`.
        Empty without measurement: then the products of the mix are counted, and a pass over every stream.
        """
        return _mixing(self.part.same_chip or self.part.name, self.engine, self.release)

    def collective(self) -> CollectiveParams:
        """Return the parameters of all-reduces here, or a rule of thumb."""
        engine = collective_engine(self.engine, self.part.family)
        release = self.release if engine == self.engine else None
        return _collective(self.part.same_chip or self.part.name, self.part.family, engine, release)


#: works with cached products, latest first out last
_REMEMBERED = 64
_KNOWN: dict[tuple[int, int, bool], StepWork] = {}

#: a kernel fit with a larger median error on single shapes is unusable; the next format is taken [-]
_POOR_FIT = 0.25


@lru_cache(maxsize=4096)
def _kernel(
    part: str, family: str, kernel: str, rule: KernelRule, release: tuple[int, ...] | None
) -> tuple[KernelParams, str]:
    """Return the parameters of a kernel, and the measured format."""
    if family == "cpu":
        return PROCESSOR_KERNELS.get(kernel, PROCESSOR_ATTENTION), rule.form
    for precision in (rule.form, "fp8" if rule.form.startswith("fp8") else "bf16", "bf16"):
        result = find_kernel_fit(
            part, kernel, precision=precision, engine=rule.engine, release=release, family=family or None,
            backend=rule.backend,
        )  # fmt: skip
        if result is not None and isinstance(result.params, KernelParams) and result.median < _POOR_FIT:
            return result.params, precision
    return _UNKNOWN_KERNEL, rule.form


@lru_cache(maxsize=256)
def _mixing(part: str, engine: str, release: tuple[int, ...] | None) -> tuple[tuple[str, KernelParams], ...]:
    def own(which: str) -> KernelFit | None:
        result = find_kernel_fit(part, f"hyper-{which}", precision="bf16", engine=engine, release=release)
        # another engine's mix is another kernel: PyTorch's takes ten times as long
        if result is None or result.pooled or result.engine.split()[0] != engine or result.median >= _POOR_FIT:
            return None
        return result

    read, write, both = own("read"), own("write"), own("both")
    if read is None or write is None:
        return ()
    fits = {"read": read, "write": write}
    if both is not None and both.release == read.release:
        fits = {"both": both}
    return tuple((which, fit.params) for which, fit in fits.items() if isinstance(fit.params, KernelParams))


@lru_cache(maxsize=256)
def _collective(part: str, family: str, engine: str, release: tuple[int, ...] | None) -> CollectiveParams:
    result = find_kernel_fit(
        part, "all-reduce", precision="bf16", engine=engine, release=release, family=family or None
    )
    if result is None or not isinstance(result.params, CollectiveParams):
        return _UNKNOWN_COLLECTIVE
    return result.params


#: projections of the states at the start of drafting
_JOINED = ("fc", "draft.main_proj")


def _run(part: Segment, *, once: bool) -> tuple[tuple[Tensor, ...], tuple[WeightFormat, ...]]:
    """Return the drafting tensors that run once, or in every pass.

    Each has its format.
    """
    kept = [(t, form) for t, form in zip(part.tensors, part.formats, strict=True) if (t.name in _JOINED) == once]
    return tuple(t for t, _ in kept), tuple(form for _, form in kept)


def _products(tensors: tuple[Tensor, ...], formats: tuple[WeightFormat, ...], of_mixer: int = 1) -> tuple[Product, ...]:
    """Return the products of tensors.

    `of_mixer`: pieces of those that are split by heads.
    """
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
        first = before.tensor if before else tensor
        width = first.columns if first.splits_input else first.rows // first.parts
        pieces = of_mixer if first.shard == "heads" else max(width // 128, 1)
        groups[key] = Product(first, form, rows, columns, pieces)
    return tuple(groups.values())
