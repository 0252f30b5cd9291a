# Written by `make docs` from glmplan.request; do not edit.
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

class Question(TypedDict, total=False):
    """Options of a plan beside model and machine, as `glmplan fit --help`."""

    part: str | None
    host_memory: float | str | None
    host_memory_bandwidth: float | str | None
    host_cores: int | str | None
    weights: str | None
    kv: str | None
    engine: str | None
    engine_version: str | None
    tp: int | str | None
    pp: int | str | None
    dp: int | str | None
    ep: int | str | None
    dcp: int | str | None
    replicas: int | str | None
    disaggregated: str | None
    context: int | str | None
    input: int | str | None
    output: int | str | None
    use_case: str | None
    users: int | str | Sequence[int] | None
    mtp: int | str | None
    drafter: str | None
    acceptance: float | str | None
    eager: bool
    memory_fraction: float | str | None
    max_num_seqs: int | str | None
    max_num_batched_tokens: int | str | None
    max_model_len: int | str | None
    attention_backend: str | None
    gpu_layers: int | str | None
    no_kv_offload: bool
    lora: int | str | None
    lora_rank: int | str | None
    power_limit: float | str | None
    host_tokens: int | str | None
    host_bandwidth: float | str | None
    calibration: str | Path | None
    probability: float | str | None
    tpot_limit: float | str | None
    ttft_limit: float | str | None
    recipe: str | None

class Arrivals(TypedDict, total=False):
    """Options of traffic beside its kind."""

    input: int | str | None
    output: int | str | None
    jitter: float | str | None
    input_cv: float | str | None
    output_cv: float | str | None
    lengths: str | None
    think: float | str | None
    ramp: float | str | None
    shared_prefix: int | str | None
    turns: int | str | None
    tool_wait: float | str | None
    start: int | str | None
    urgent: float | str | None
    images: float | str | None
    patience: float | str | None

SUBJECT: tuple[str, ...]
