"""Interface of token mixers: weights, cache, core kernels, cuts and names.

Each kind has a file of its own; `glmplan.costs.blocks.kinds` maps records to kinds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Any, Literal

import numpy as np

from glmplan.catalog.schema.engine import CacheLayout
from glmplan.costs.blocks.tensor import Tensor
from glmplan.costs.kernels.utilisation import KernelWork, Tokens
from glmplan.costs.points import Layout
from glmplan.units import Bytes, BytesArray, FlopArray, Ratio, TokenCount, TokensArray
from glmplan.units import Tokens as Length

__all__ = [
    "CachePage",
    "Core",
    "CoreKernel",
    "CoreStep",
    "IndexScan",
    "LayerCache",
    "Mixer",
    "heads_on_rank",
]

Array = Any  # a float or an array of floats; arrays broadcast


@dataclass(frozen=True, slots=True)
class LayerCache:
    """Cache of one layer, all heads together."""

    per_token: Bytes = 0.0  # of every token, however long the sequence is
    in_window: Bytes = 0.0  # of a token among the last `window`
    window: TokenCount | None = None  # tokens after which `in_window` stops growing
    state: Bytes = 0.0  # of each sequence, whatever its length
    units: int = 1  # heads by which it can be split; 1: every TP rank holds all of it


#: kind of a cache: it keeps every token, the last tokens, or one block of a request
PageKind = Literal["full", "window", "ring"]


@dataclass(frozen=True, slots=True)
class CachePage:
    """Page of one cache of a layer on a rank."""

    kind: PageKind
    block: TokenCount  # tokens of a page
    size: int  # with padding [B]
    window: TokenCount = 0

    def pages(self, longest: Length, in_flight: Length) -> int:
        """Return the pages of a request of this length.

        `in_flight`: tokens of the request in the steps that are not done yet.

        Examples
        --------
        The window of DeepSeek-V4, and the tokens that its compressor of four has not pooled, in a step of 8,192 tokens:

        >>> [one.pages(1e6, 8192) for one in (CachePage("window", 64, 37440, 128), CachePage("window", 4, 37440, 8))]
        [131, 2051]
        """
        if self.kind == "ring":
            return 1
        if self.kind == "full":
            return ceil(longest / self.block)
        return ceil(min(self.window - 1 + in_flight, longest) / self.block) + 1


@dataclass(frozen=True, slots=True, eq=False)
class CoreStep:
    """Work of a layer's core on one rank in one step.

    The engine's choices are part of it.
    """

    tokens: Tokens
    degrees: Layout
    requests: np.ndarray  # decoding, never 0
    verify: TokensArray  # of each of them
    prompt: TokensArray  # never 0
    kv_bytes: Bytes = 2.0  # of a cached value
    packed_bytes: Bytes = 0.0  # of a latent in an engine's packed form; 0: stored as values
    sparse: bool = True  # sparse attention kernels run
    splits: float = np.inf  # blocks that share the keys of one request
    engine: str = ""
    family: str = ""  # compute capability without the minor number


@dataclass(frozen=True, slots=True, eq=False)
class CoreKernel:
    """One kernel of a core."""

    kernel: str  # class, key of its fit; without a measurement a rule of thumb
    work: KernelWork
    #: of decode kernels: ``keys`` a cache that requests may share, ``heads`` the same with blocks for each KV head,
    #: ``latent`` with blocks for all heads of a latent; empty: a state
    reads: Literal["", "keys", "heads", "latent"] = ""
    readers: Array = 1.0  # query heads that read the same keys


@dataclass(frozen=True, slots=True, eq=False)
class IndexScan:
    """Scores of an indexer over all keys, at the accelerator's peaks.

    The same on each rank.
    """

    decode_bytes: BytesArray  # index keys that decoding requests read
    decode_flop: FlopArray
    prompt_flop: FlopArray


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """Core of a mixer in one step: all but the products with its weights."""

    decode: tuple[CoreKernel, ...] = ()
    prompt: tuple[CoreKernel, ...] = ()
    #: values of a token's queries and result that ranks of a shared context exchange; None: no context is shared
    exchange: tuple[np.ndarray, np.ndarray] | None = None
    prompt_exchanges: bool = False  # True: so do prompt tokens, which run through the kernel of decoding
    index: IndexScan | None = None


class Mixer:
    """Token mixer of a layer; the defaults are those of a layer without one.

    Such a layer holds, keeps and computes nothing. Nemotron-H has such layers. A kind overrides the members in which it
    differs, and says why where that is not plain.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        """Return the name of the kind; empty for a layer without a mixer."""
        return ""

    @property
    def words(self) -> str:
        """Return the shape in a few words, for users."""
        return ""

    @property
    def features(self) -> frozenset[str]:
        """Return features that limitations name.

        gqa, window, mla, dsa, nope-dsa, csa, recurrent, gdn, mamba.
        """
        return frozenset()

    @property
    def indexed(self) -> bool:
        """Return True if an indexer selects tokens to read.

        Engines without its kernels read all.
        """
        return False

    @property
    def packed_fp8(self) -> bool:
        """Return True if an FP8 cache is stored as ``fp8_ds_mla``."""
        return False

    @property
    def heads(self) -> int:
        """Return the heads that tensor parallelism must divide; 0: none."""
        return 0

    @property
    def pieces(self) -> int:
        """Return the pieces that an engine deals to ranks (`unequal_pieces`)."""
        return 1

    @property
    def extra_launches(self) -> float:
        """Return launches beyond plain attention, in layers."""
        return 0.0

    @property
    def rotary_values(self) -> int:
        """Return the rotary values of a head; 0 without positions."""
        return 0

    @property
    def expanded_values(self) -> int:
        """Return the values that prompts expand for a context token.

        Split by heads; 0: cached as they are.
        """
        return 0

    @property
    def absorbed_values(self) -> int:
        """Return the second copy of absorbed up-projections, split by heads.

        Some engines keep it.
        """
        return 0

    @property
    def gathered_bytes(self) -> float:
        """Return the index bytes gathered for a context token of a prompt.

        0 without indexer or source.
        """
        return 0.0

    @property
    def padded_values(self) -> int:
        """Return a head's values in a query and result that kernels may pad.

        0: no kernel pads them.
        """
        return 0

    def cut_problem(self, tp: int, model: str) -> str | None:
        """Return why engines refuse a tensor-parallel degree, or None.

        The number of heads is checked elsewhere.
        """
        return None

    def shared_context_problem(self, tp: int, dcp: int, model: str) -> str | None:
        """Return why ranks do not divide the cached tokens, or None."""
        return None

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Return the weights of the block."""
        return ()

    def activation_values(self, tp: np.ndarray) -> np.ndarray:
        """Return the values alive for each token, without hidden states."""
        return np.zeros_like(tp)

    def cache(self, kv: str, layout: CacheLayout) -> LayerCache:
        """Return the layer's cache in an engine's layout.

        States have the default widths of `state_bytes`.
        """
        return LayerCache()

    def pages(self, kv: str, layout: CacheLayout, *, draft_tokens: TokenCount) -> tuple[CachePage, ...]:
        """Return the pages of a layer whose caches differ in size; else ()."""
        return ()

    def state_bytes(self, *, state: Bytes = 4.0, conv: Bytes = 2.0) -> Bytes:
        """Return the state of a sequence of any length; 0 with tokens only.

        `state`, `conv`: bytes of a value of the state (configs say FP32: `mamba_ssm_dtype`) and of a convolution
        window.
        """
        return 0.0

    def state_page(self, *, tp: int, draft_tokens: TokenCount) -> Bytes:
        """Return the least page size for a state, 0 without state pages.

        The windows of `draft_tokens` speculative tokens are kept too.
        """
        return 0.0

    @property
    def state_is_late(self) -> bool:
        """Return True for the state of a compressor of many tokens."""
        return False

    def page_token(self, *, tp: int, kv_bytes: Bytes) -> Bytes:
        """Return a token's bytes in a page that grows for another layer's state.

        0: no page grows.
        """
        return 0.0

    def decode_blocks(self, tp: int) -> Ratio:
        """Return the decode blocks of a request where keys are not split.

        0 without keys.
        """
        return 0.0

    def core(self, step: CoreStep) -> Core:
        """Return the kernels that the core launches in one step."""
        return Core()

    def token_core(self, decode: TokensArray, prompt: TokensArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return values read and FLOP of a decode token and a prompt token.

        Latents are read densely. For weights in host memory. `decode`, `prompt`: keys that the token may attend to.
        """
        zero = np.zeros_like(decode)
        return np.stack([zero, zero]), zero, zero


def heads_on_rank(heads: int, degrees: Layout) -> np.ndarray:
    """Return the heads of each rank.

    Fewer heads than ranks are held several times.

    Examples
    --------
    >>> heads_on_rank(8, Layout(tp=np.array([4.0, 16.0])))
    array([2., 1.])
    """
    result: np.ndarray = heads / np.minimum(degrees.tp, heads)
    return result
