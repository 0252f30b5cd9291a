"""The form of `calibration/measurements/*.csv` and of `calibration/sources.toml`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Measurement", "Source"]

Count = Annotated[int, Field(ge=1)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Text = Annotated[str, Field(min_length=1)]
YesNo = Literal["yes", "no"]


class Measurement(BaseModel):
    """One cited figure, or the figures of one run: a row of a campaign file. An empty cell is a missing value.

    The source of a row is its own `source` (relative to the `address` of its campaign), or that address itself.
    Units stand in the names; lengths are real mean token counts unless `context_is_label` says otherwise.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Text
    campaign: Text
    measured_on: str | None = Field(default=None, pattern=r"^\d{4}(-\d\d(-\d\d)?)?$")
    source: Text | None = None
    trust: Literal["A", "B", "C", "D"] | None = None
    model: Text
    checkpoint: Text | None = None
    weights: Text | None = None
    weights_bits: Positive | None = None
    kv_cache: Text | None = None
    accelerator: Text | None = None
    accelerator_count: Count | None = None
    nodes: Count | None = None
    host: Text | None = None
    tp: Count | None = None
    pp: Count | None = None
    dp: Count | None = None
    ep: Count | None = None
    dcp: Count | None = None
    engine: Text | None = None
    engine_version: Text | None = None
    backend: Text | None = None
    attention_backend: Text | None = None
    moe_backend: Text | None = None
    cuda_graphs: YesNo | None = None
    speculative: Text
    acceptance_length: Annotated[float, Field(ge=1)] | None = None
    power_limit_w: Positive | None = None
    phase: Literal["serving", "decode", "prefill", "memory"]
    protocol: Text
    scenario: Text | None = None
    concurrency: Positive | None = None
    running_limit: Count | None = None
    request_rate_per_s: Annotated[float, Field(gt=0)] | None = None
    num_requests: Count | None = None
    input_tokens: Amount | None = None
    output_tokens: Amount | None = None
    context_depth: Amount | None = None
    context_is_label: YesNo | None = None
    shared_prompt: YesNo | None = None
    prefix_cached: YesNo | None = None
    uncertainty_pct: Amount | None = None
    ttft_mean_ms: Amount | None = None
    ttft_p50_ms: Amount | None = None
    ttft_p99_ms: Amount | None = None
    tpot_mean_ms: Amount | None = None
    tpot_p50_ms: Amount | None = None
    tpot_p99_ms: Amount | None = None
    tpot_incl_ttft_mean_ms: Amount | None = None
    itl_mean_ms: Amount | None = None
    itl_p50_ms: Amount | None = None
    itl_p99_ms: Amount | None = None
    e2e_mean_ms: Amount | None = None
    e2e_p99_ms: Amount | None = None
    output_tokens_per_s: Amount | None = None
    output_tokens_per_s_per_request: Amount | None = None
    total_tokens_per_s: Amount | None = None
    prefill_tokens_per_s: Amount | None = None
    kv_pool_tokens: Amount | None = None
    weights_gib_per_accelerator: Amount | None = None
    wall_s: Amount | None = None
    gpu_power_total_w: Amount | None = None
    joules_per_output_token: Amount | None = None
    concurrency_effective: Amount | None = None
    withheld: Text | None = None
    unusable: Text | None = None
    notes: Text | None = None


class Source(BaseModel):
    """Where a campaign comes from: an entry of `sources.toml`, named like the campaign in the rows."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    file: Annotated[str, Field(pattern=r"^[a-z0-9.\-]+\.csv$")]
    rows: Count
    address: Text
    measured: Text
    licence: Text
    trust: Literal["A", "B", "C", "D", "A-D", "B-D"]
    how: Text
    traps: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _address_is_one(self) -> Source:
        if not self.address.startswith(("https://", "each row")):
            raise ValueError("address must be a URL, or say 'each row' when every row has its own source")
        return self
