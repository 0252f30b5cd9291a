"""How an engine runs a model and keeps its KV cache: facts of `hardware_db/engines`, each with a source."""

from __future__ import annotations

from typing import Literal

from pydantic import field_validator

from glmplan.errors import SpecError
from glmplan.facts.formats import KV_FORMATS
from glmplan.facts.schema.accelerator import Precision
from glmplan.facts.schema.validation import Frozen

__all__ = ["Adapters", "Apart", "AttentionBackends", "CacheFormat", "CacheLayout", "Running"]


class AttentionBackends(Frozen):
    """Names that an engine's option for its attention backend takes.

    `since`: the first version that was read; the list holds until the next one. None is a build of others, whose names
    hold in any version.
    """

    since: str | None = None
    names: tuple[str, ...]
    note: str | None = None
    source: str


class CacheFormat(Frozen):
    """A format in which an engine can keep the KV cache.

    The first of an engine is what it takes when nobody says. `written` is how the engine's own option names it; None
    needs no option; `named`, since `named_since`, is the name of such a format for where the engine would by itself
    take another. `packed` is its name for sparse latents and compressed entries. `when_short`: a plan that lacks
    room takes it, on a part that multiplies in `silicon`.
    `quantised`: weights that are stored in fewer than 16 bits bring it with them where their checkpoint does not say.
    `indexed_on`: compute capabilities, patterns allowed, on which models with an indexer take it, whatever their
    checkpoint says.
    """

    format: str
    written: str | None = None
    named: str | None = None
    named_since: str | None = None
    packed: str | None = None
    since: str | None = None
    silicon: Precision | None = None
    when_short: bool = False
    quantised: bool = False
    indexed_on: tuple[str, ...] = ()
    note: str | None = None
    source: str

    @field_validator("format")
    @classmethod
    def _is_a_format(cls, name: str) -> str:
        if name not in KV_FORMATS:
            raise SpecError("is not a KV cache format", field="format", value=name, choices=KV_FORMATS)
        return name


class CacheLayout(Frozen):
    """How an engine lays out its cache.

    `packed_latent`: FP8 latents of sparse attention are stored as ``fp8_ds_mla``; `packed_rotary`: rotary values that
    the packed form has room for whether a model has them or not. `index_keys`: the keys of the sparse
    indexer are cached. `dense_drops_indexer`: attending densely for want of kernels leaves the indexer out: its
    weights, its keys and the packed form of the latent. `united_pages`: in models with recurrent layers, blocks of
    attention grow until their page is as large as a recurrent state. `convolution`: bytes of a value of the windows of
    convolutions, which a recurrent state keeps besides. `plain_index_keys`: keys of the indexer of latent attention are
    cached in the format of the cache.
    """

    packed_latent: bool
    packed_rotary: int = 0
    index_keys: bool
    dense_drops_indexer: bool = False
    united_pages: bool = False
    convolution: float = 2.0
    plain_index_keys: bool = False
    source: str

    def without_indexer(self) -> CacheLayout:
        """The layout of a model whose indexer was left out: that of ordinary latent attention."""
        return self.model_copy(update={"packed_latent": False, "index_keys": False, "plain_index_keys": False})


class Apart(Frozen):
    """How an engine computes prompts on servers of their own and hands keys and values over (disaggregation).

    `since`: the first release that a source shows serving so. `prefill`, `decode`: what each kind of server is told
    beside its layout. `router`: what stands before them.
    """

    since: str
    prefill: str
    decode: str
    router: str
    source: str


class Adapters(Frozen):
    """How an engine keeps low-rank adapters (LoRA) beside the weights.

    `told`: its options, with ``{adapters}`` for how many lie on the accelerator at once and ``{rank}``. `ranks`: those
    that it has buffers for, the next larger one is taken; empty where any rank has its own. `experts_since`: the first
    release with adapters of routed experts; None where no source shows it. `deals_experts`: whether such adapters go
    with experts that are dealt over ranks.
    """

    told: str
    ranks: tuple[int, ...] = ()
    experts_since: str | None = None
    deals_experts: bool = False
    source: str


class Running(Frozen):
    """How an engine runs a model.

    `reads`: the form of the weight files it starts from. `whole_layers`: it deals whole layers to its devices and
    splits matrices only when told to. `divided_experts`: the experts may be dealt over a divisor of the ranks, else
    over all of them. `one_process`: HTTP server, tokenizer and scheduler are threads of one compiled process.
    `cells`: requests attend to the cells of all, of which there are multiples of this [token]; 0 where to their own.
    `host_tables`: the option with which tables of n-grams lie in host memory; None keeps them on the devices.
    `host_cache`: the option with which copies of cached blocks lie in host memory; None where it has none;
    `host_cache_latent`: whether also those of latent attention. `apart`: how prompts are computed on servers of their
    own; None where no source shows it. `adapters`: how it keeps low-rank adapters; None where no source was read.
    `host_experts`: the option with which the processors compute routed experts in the format of the files, for each
    format of theirs that they read, as `Checkpoint.bulk` names it.
    """

    reads: Literal["safetensors", "gguf", "mlx"]
    whole_layers: bool = False
    divided_experts: bool = False
    one_process: bool = False
    cells: int = 0
    host_tables: str | None = None
    host_cache: str | None = None
    host_cache_latent: bool = False
    apart: Apart | None = None
    adapters: Adapters | None = None
    host_experts: dict[str, str] = {}
    source: str
