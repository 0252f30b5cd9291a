"""Options that `simulate` and `safe` have in common, declared once."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["ENGINE_FIELDS", "PLAN_FIELDS", "TRAFFIC_FIELDS", "chosen"]

#: option → field of `Traffic`
TRAFFIC_FIELDS = {
    "input_tokens": "input",
    "output_tokens": "output",
    "jitter": "jitter",
    "input_cv": "input_cv",
    "output_cv": "output_cv",
    "lengths": "lengths",
    "think": "think",
    "ramp": "ramp",
    "shared_prefix": "shared_prefix",
    "turns": "turns",
    "tool_wait": "tool_wait",
}

#: option → field of `EngineSettings`
ENGINE_FIELDS = {
    "max_num_seqs": "max_num_seqs",
    "max_batched_tokens": "max_num_batched_tokens",
    "max_model_len": "max_model_len",
    "chunked_prefill": "chunked_prefill",
    "prefix_caching": "prefix_caching",
    "admission": "admission",
    "replicas": "replicas",
    "routing": "routing",
    "prefill_replicas": "prefill_replicas",
}

#: option → field of `glmplan.plan.question.Words`
PLAN_FIELDS = (
    "engine",
    "engine_version",
    "weights",
    "kv",
    "tp",
    "pp",
    "dp",
    "ep",
    "dcp",
    "mtp",
    "acceptance",
    "memory_fraction",
)

Model = Annotated[str | None, typer.Argument(help="Model: a catalogue name, or name-format.")]
On = Annotated[str | None, typer.Option(help="Machine: NxACCELERATOR, a host name or a TOML file.")]
TrafficSpec = Annotated[
    str,
    typer.Option(
        help="closed:USERS, poisson:RATE/s, gamma:RATE/s,cv=3, onoff:RATE/s,on=10,off=30, daily:RATE/s, trace:FILE, "
        "sessions:USERS, sessions:RATE/s, or a TOML file."
    ),
]
Input = Annotated[int | None, typer.Option("--input", min=1, help="Nominal prompt length, in tokens.")]
Output = Annotated[int | None, typer.Option("--output", min=1, help="Nominal answer length, in tokens.")]
Jitter = Annotated[float | None, typer.Option(help="Lengths are uniform in 1 - jitter to 1 times nominal.")]
InputCv = Annotated[float | None, typer.Option(help="Log-normal prompts with this coefficient of variation.")]
OutputCv = Annotated[float | None, typer.Option(help="Log-normal answers with this coefficient of variation.")]
Lengths = Annotated[str | None, typer.Option(help="CSV with input_tokens and output_tokens to draw from.")]
Think = Annotated[str | None, typer.Option(help="Mean pause of a user, such as '2 s'.")]
Ramp = Annotated[str | None, typer.Option(help="Time over which users start; all at once by default.")]
SharedPrefix = Annotated[int | None, typer.Option(min=0, help="Tokens at the head of each prompt that are the same.")]
Turns = Annotated[int | None, typer.Option(min=1, help="Mean turns of a session.")]
ToolWait = Annotated[str | None, typer.Option(help="Mean pause between the turns of a session.")]

EngineName = Annotated[str | None, typer.Option(help="vllm, sglang, trtllm or llama.cpp.")]
EngineVersion = Annotated[str | None, typer.Option(help="Version of the engine.")]
Weights = Annotated[str | None, typer.Option(help="Format of the weights.")]
Kv = Annotated[str | None, typer.Option(help="Format of the KV cache.")]
Tp = Annotated[int | None, typer.Option(min=1, help="Tensor parallel degree.")]
Pp = Annotated[int | None, typer.Option(min=1, help="Pipeline stages.")]
Dp = Annotated[int | None, typer.Option(min=1, help="Attention data parallel degree.")]
Ep = Annotated[int | None, typer.Option(min=1, help="Expert parallel degree.")]
Dcp = Annotated[int | None, typer.Option(min=1, help="Decode context parallel degree.")]
Mtp = Annotated[int | None, typer.Option(min=0, help="Drafted tokens for each step; 0 for none.")]
AcceptanceLength = Annotated[
    float | None, typer.Option(help="Chance of a drafted token (up to 1), or tokens gained in a step (above 1).")
]
MemoryFraction = Annotated[float | None, typer.Option(help="Share of memory for weights and KV cache.")]
KvTokens = Annotated[int | None, typer.Option(min=1, help="Room of the KV pool instead of the predicted one.")]
BlockSize = Annotated[int | None, typer.Option(min=1, help="Tokens of a KV block.")]
KvBytes = Annotated[
    str | None, typer.Option("--kv-bytes-per-token", help="Bytes of a token in the KV cache, for the hand-over.")
]
StepTimeOption = Annotated[
    str | None,
    typer.Option(
        help="Step time of your own instead of a model's: 'base=12 ms,request=0.1 ms,context=13 ns,prompt=17 us'."
    ),
]

MaxNumSeqs = Annotated[int | None, typer.Option(min=1, help="Requests that run at once; slots in llama.cpp.")]
MaxBatchedTokens = Annotated[
    int | None, typer.Option(min=1, help="Token budget of a step (chunked_prefill_size, max_num_tokens, n_batch).")
]
MaxModelLen = Annotated[int | None, typer.Option(min=1, help="Longest prompt and answer together.")]
ChunkedPrefill = Annotated[bool | None, typer.Option(help="Whether prompts are spread over steps.")]
PrefixCaching = Annotated[bool | None, typer.Option(help="Whether equal heads of prompts are found again.")]
Admission = Annotated[
    str | None, typer.Option(help="chunk, no-evict, max-utilization, estimate or slot; the engine's own by default.")
]
Replicas = Annotated[int | None, typer.Option(min=1, help="Data-parallel copies behind a router.")]
Routing = Annotated[str | None, typer.Option(help="round-robin, least-loaded or prefix-aware.")]
PrefillReplicas = Annotated[int | None, typer.Option(min=0, help="Replicas that only prefill and hand over.")]
TransferBandwidth = Annotated[
    str | None, typer.Option("--transfer", help="Bandwidth of the hand-over, such as '50 GB/s'.")
]


def chosen(given: dict[str, object], fields: dict[str, str] | tuple[str, ...]) -> dict[str, object]:
    """Pick the options of one kind and give them their inner names.

    Parameters
    ----------
    given : dict
        All options of a command.
    fields : dict or tuple
        Option → inner name; a tuple where they are the same.

    Returns
    -------
    dict
        Inner name → value, None where not given.

    Examples
    --------
    >>> chosen({"turns": 4, "seed": 1}, {"turns": "turns"})
    {'turns': 4}
    """
    names = fields if isinstance(fields, dict) else {name: name for name in fields}
    return {inner: given[option] for option, inner in names.items() if option in given}
