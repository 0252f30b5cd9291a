"""What is asked of a token mixer, whatever its kind: weights, cache, core, cuts and words.

Each kind answers in one file of its own; `glmplan.costs.blocks.kinds` says which record is answered by which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np

from glmplan.catalog.schema.engine import CacheLayout
from glmplan.costs.blocks.tensor import Tensor
from glmplan.costs.kernels.utilisation import Degrees, KernelWork, Tokens
from glmplan.units import Bytes, Ratio, TokenCount, TokensArray

__all__ = [
    "Core",
    "CoreKernel",
    "CoreStep",
    "IndexScan",
    "LayerCache",
    "Mixer",
    "NoMixer",
    "heads_on_rank",
]

Array = Any  # a float or an array of floats; arrays broadcast


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What one layer caches, all heads together.

    Attributes
    ----------
    per_token : float
        Bytes that every token adds, however long the sequence is, [B]
    in_window : float
        Bytes that a token adds as long as it is one of the last `window`, [B]
    window : int or None
        Tokens of a sequence after which `in_window` stops growing, [token]; None without a window
    state : float
        Bytes for each sequence, whatever its length, [B]
    units : int
        Heads it can be split by; 1 means that every tensor-parallel rank holds all of it, [-]
    """

    per_token: float = 0.0
    in_window: float = 0.0
    window: int | None = None
    state: float = 0.0
    units: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class CoreStep:
    """What the core of a layer computes in one step on one rank, and what the engine decides about it.

    Attributes
    ----------
    tokens : Tokens
        What the step computes.
    degrees : Degrees
        The layout.
    requests : array
        Decoding requests, never 0, [-]
    verify : array
        Tokens that each of them computes, [token]
    prompt : array
        Prompt tokens, never 0, [token]
    kv_bytes : float
        Bytes for each cached value, [B]
    packed_bytes : float
        Bytes of a latent in an engine's packed form; 0 where latents are stored as values, [B]
    sparse : bool
        Whether sparse attention kernels run.
    splits : float
        Blocks that share the keys of one request, [-]
    engine, family : str
        Engine, and compute capability of the part without the minor number.
    """

    tokens: Tokens
    degrees: Degrees
    requests: np.ndarray
    verify: np.ndarray
    prompt: np.ndarray
    kv_bytes: float = 2.0
    packed_bytes: float = 0.0
    sparse: bool = True
    splits: float = np.inf
    engine: str = ""
    family: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class CoreKernel:
    """One kernel of a core.

    Attributes
    ----------
    kernel : str
        Class of kernel, by which its fit is found; one that nobody measured takes the rule of thumb.
    work : KernelWork
        What it does.
    reads : str
        For decode kernels: ``keys`` reads a cache of keys, of which requests may share some; ``heads`` does so with
        blocks of threads for each KV head, ``latent`` with blocks for all heads of a latent; empty reads a state.
    readers : numeric
        Query heads that read the same keys, [-]
    """

    kernel: str
    work: KernelWork
    reads: Literal["", "keys", "heads", "latent"] = ""
    readers: Array = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class IndexScan:
    """The scores of an indexer over all keys, on each rank the same, at the peaks of the part.

    Attributes
    ----------
    decode_bytes : array
        Index keys that decoding requests read, [B]
    decode_flop, prompt_flop : array
        FLOP for decoding requests and for prompts, [FLOP]
    """

    decode_bytes: np.ndarray
    decode_flop: np.ndarray
    prompt_flop: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Core:
    """The core of a mixer in one step: what it does beside the products with its weights.

    Attributes
    ----------
    decode, prompt : tuple of CoreKernel
        Kernels for decoding requests and for prompts.
    exchange : tuple of array or None
        Values of a token's queries and of its result that ranks exchange which share a context, [-]; None where no rank
        holds a part of a context.
    index : IndexScan or None
        Scores of an indexer; None without one.
    """

    decode: tuple[CoreKernel, ...] = ()
    prompt: tuple[CoreKernel, ...] = ()
    exchange: tuple[np.ndarray, np.ndarray] | None = None
    index: IndexScan | None = None


class Mixer(Protocol):
    """What every kind of token mixer answers. A kind that lacks something says 0 or False and why."""

    @property
    def name(self) -> str:
        """Name of the kind, as in the record; empty for a layer without a mixer."""

    @property
    def words(self) -> str:
        """Its shape in a few words for people; empty for a layer without a mixer."""

    @property
    def features(self) -> frozenset[str]:
        """What walls of engines ask for.

        Of ``gqa``, ``window``, ``mla``, ``dsa``, ``nope-dsa``, ``csa``, ``recurrent``, ``gdn`` and ``mamba``.
        """

    @property
    def indexed(self) -> bool:
        """Whether an indexer decides what is read, and engines without its kernels read everything instead."""

    @property
    def packed_fp8(self) -> bool:
        """Whether engines with the layout ``fp8_ds_mla`` store its FP8 cache so."""

    @property
    def heads(self) -> int:
        """Attention heads that tensor parallelism must divide, [-]; 0 where no engine is known to refuse a degree."""

    @property
    def extra_launches(self) -> float:
        """Launches of a layer beyond those of attention with plain keys and values, in layers, [-]"""

    @property
    def rotary_values(self) -> int:
        """Values of a head that rotary positions turn, [-]; 0 without positions"""

    @property
    def expanded_values(self) -> int:
        """Values of a token of context that prompts expand from what is cached, split by heads, [-]; 0 if none"""

    @property
    def absorbed_values(self) -> int:
        """Values of the second copy that some engines keep of up-projections they absorb, split by heads, [-]"""

    @property
    def gathered_bytes(self) -> float:
        """What the indexer gathers of a token of context to score a prompt, [B]; 0 without one or if nobody says"""

    def cut_problem(self, tp: int, model: str) -> str | None:
        """Why engines do not cut it over a tensor-parallel degree, heads aside."""

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """Weights of the block."""

    def activation_values(self, tp: np.ndarray) -> np.ndarray:
        """Values that live at once for each token of a step, hidden states aside."""

    def cache(self, kv: str, layout: CacheLayout) -> LayerCache:
        """What the layer caches in an engine's own layout.

        Returns: Its cache, the state with the default widths of `state_bytes`.
        """

    def state_bytes(self, *, state: Bytes = 4.0, conv: Bytes = 2.0) -> Bytes:
        """State that one sequence keeps, however long it is.

        - `state`, `conv`: Bytes for each value of the state (configs say FP32: `mamba_ssm_dtype`) and of a
          convolution window.
        - Returns: ; 0 for kinds that keep only tokens.
        """

    def state_page(self, *, tp: int, draft_tokens: TokenCount) -> Bytes:
        """Size that a page of the cache must have to hold a state, where an engine keeps states in such pages.

        - `draft_tokens`: Drafted tokens of a step, whose windows are kept too.
        - Returns: ; 0 for kinds whose state no page has to hold.
        """

    def page_token(self, *, tp: int, kv_bytes: Bytes) -> Bytes:
        """Bytes of a token in a page that an engine grows until it holds a state of another layer.

        Returns: ; 0 for kinds whose pages are not known to grow.
        """

    def decode_blocks(self, tp: int) -> Ratio:
        """Blocks of threads of a decode kernel for each request on a rank that does not split the keys.

        Returns: ; 0 for kinds without keys to split.
        """

    def core(self, step: CoreStep) -> Core:
        """Kernels that the core launches in one step.

        `step`: What the step computes, and how the engine runs it.
        """

    def token_core(self, decode: TokensArray, prompt: TokensArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cached values that one token reads where latents are read densely (weights in host memory), and their FLOP.

        - `decode`, `prompt`: Keys that a decoding token and a token of a prompt may attend to.
        - Returns: Values read, decoding and in a prompt, [-]; FLOP decoding, and in a prompt, [FLOP].
        """


@dataclass(frozen=True, slots=True)
class NoMixer:
    """A layer without a token mixer (Nemotron-H has such layers): it holds, keeps and computes nothing here."""

    name: str = ""
    words: str = ""
    features: frozenset[str] = frozenset()
    indexed: bool = False
    packed_fp8: bool = False
    heads: int = 0
    extra_launches: float = 0.0
    expanded_values: int = 0
    absorbed_values: int = 0
    gathered_bytes: float = 0.0
    rotary_values: int = 0

    def cut_problem(self, tp: int, model: str) -> str | None:
        """Nothing is cut."""
        return None

    def tensors(self, hidden: int) -> tuple[Tensor, ...]:
        """No weights."""
        return ()

    def activation_values(self, tp: np.ndarray) -> np.ndarray:
        """No transient."""
        return np.zeros_like(tp)

    def cache(self, kv: str, layout: CacheLayout) -> LayerCache:
        """Nothing is cached."""
        return LayerCache()

    def state_bytes(self, *, state: float = 4.0, conv: float = 2.0) -> float:
        """No state."""
        return 0.0

    def state_page(self, *, tp: int, draft_tokens: int) -> float:
        """No state, so no page for it."""
        return 0.0

    def page_token(self, *, tp: int, kv_bytes: float) -> float:
        """No pages."""
        return 0.0

    def decode_blocks(self, tp: int) -> float:
        """No keys."""
        return 0.0

    def core(self, step: CoreStep) -> Core:
        """No kernels."""
        return Core()

    def token_core(self, decode: np.ndarray, prompt: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Nothing is read."""
        zero = np.zeros_like(decode)
        return np.stack([zero, zero]), zero, zero


def heads_on_rank(heads: int, degrees: Degrees) -> np.ndarray:
    """Heads of each rank; fewer heads than ranks are held several times.

    Examples
    --------
    >>> one = np.ones(2)
    >>> heads_on_rank(8, Degrees(np.array([4.0, 16.0]), one, one, one, one, one))
    array([2., 1.])
    """
    result: np.ndarray = heads / np.minimum(degrees.tp, heads)
    return result
