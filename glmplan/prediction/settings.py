"""What a launch tells its engine: the settings that decide memory, steps and kernels, in one record."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from glmplan.errors import SpecError
from glmplan.facts.engines.defaults import EngineDefaults
from glmplan.physics.memory.settings import MemorySettings

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True, repr=False)
class Settings:
    """What an engine is told at its start; None leaves its default.

    Attributes
    ----------
    memory_fraction : float or None
        Share of the memory that the engine may use (``gpu_memory_utilization``, ``mem_fraction_static``,
        ``free_gpu_memory_fraction``), [-]
    max_num_seqs : int or None
        Requests that one data-parallel rank may run at once (``max_running_requests``, ``max_batch_size``), [-]
    max_num_batched_tokens : int or None
        Tokens that a step of one data-parallel rank may hold (``chunked_prefill_size``, ``max_num_tokens``), [token]
    max_model_len : int or None
        Longest request that the server accepts (``context_length``, ``max_seq_len``), [token]
    attention_backend : str
        Attention kernels; empty for those that the engine takes on its own.
    moe_backend : str
        First word of what a table calls the kernels of the experts; empty where it is not known.
    graphs : bool
        Whether steps run from captured graphs.
    unstated : frozenset of str
        Fields that somebody may have set and nobody tells: memory spans what is usual, see
        `glmplan.prediction.usual_settings.spanned`. Empty for a launch that is told here.
    expert_kernels : str
        Kernels of the experts that were switched on, as `hardware_db/kernels.toml` names them; empty for those that the
        engine takes on its own.
    adapters, adapter_rank : int
        Low-rank adapters (LoRA) that lie on the accelerators at once, and the rank that their buffers have, [-]

    Raises
    ------
    SpecError
        If a number is out of range; names the field.

    Examples
    --------
    >>> Settings(memory_fraction=1.2)
    Traceback (most recent call last):
    glmplan.errors.SpecError: memory_fraction: 1.2 must be above 0 and at most 1
    """

    memory_fraction: float | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    max_model_len: int | None = None
    attention_backend: str = ""
    moe_backend: str = ""
    graphs: bool = True
    unstated: frozenset[str] = frozenset()
    expert_kernels: str = ""
    adapters: int = 0
    adapter_rank: int = 0

    def __post_init__(self) -> None:
        if self.memory_fraction is not None and not 0 < self.memory_fraction <= 1:
            raise SpecError("must be above 0 and at most 1", field="memory_fraction", value=self.memory_fraction)
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SpecError("must be at least 1", field=name, value=value)

    def __repr__(self) -> str:
        told = ((one.name, getattr(self, one.name), one.default) for one in fields(self))
        return f"Settings({', '.join(f'{name}={value!r}' for name, value, usual in told if value != usual)})"

    def packing(self, defaults: EngineDefaults) -> EngineDefaults:
        """How the engine packs steps with these settings.

        Parameters
        ----------
        defaults : EngineDefaults
            How it does when nothing is told.

        Returns
        -------
        EngineDefaults
            The same with what is told.

        Examples
        --------
        >>> found = Settings(max_num_seqs=64).packing(EngineDefaults(8192, False, 1024))
        >>> found.budget, found.places
        (8192, 64)
        """
        told: dict[str, int] = {}
        if self.max_num_batched_tokens is not None:
            told["budget"] = self.max_num_batched_tokens
        if self.max_num_seqs is not None:
            told |= {"max_requests": self.max_num_seqs, "most_requests": 0}
        return replace(defaults, **told) if told else defaults  # type: ignore[arg-type]

    def memory(
        self,
        *,
        engine: str,
        version: str | None = None,
        accelerator: str | None = None,
        indexer: bool = True,
        draft_tokens: int = 0,
    ) -> MemorySettings:
        """The settings that decide memory, as its formulas take them.

        Parameters
        ----------
        engine : str
            The engine.
        version : str, optional
            Its version; the newest by default.
        accelerator : str, optional
            Name of the part, by which some defaults differ.
        indexer : bool, optional
            Whether the indexer of sparse attention is loaded.
        draft_tokens : int, optional
            Tokens drafted for each request and step, [-]

        Returns
        -------
        MemorySettings
            The settings.

        Examples
        --------
        >>> Settings(max_num_seqs=64, graphs=False).memory(engine="vllm").graphs
        0.0
        """
        return MemorySettings(
            engine=engine,
            version=version,
            accelerator=accelerator,
            fraction=self.memory_fraction,
            token_budget=self.max_num_batched_tokens,
            max_requests=self.max_num_seqs,
            graphs=None if self.graphs else 0.0,
            indexer=indexer,
            experts_backend=self.moe_backend or None,
            draft_tokens=draft_tokens or None,
            longest=self.max_model_len,
            adapters=self.adapters,
            adapter_rank=self.adapter_rank,
        )
