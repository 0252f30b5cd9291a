"""The request for a plan: each option once, from which every way to ask is derived.

The command line, `glmplan.fit`, the questions of the service, the form of its page, the axes of a sweep, `glmplan size`
and the columns of workbooks take their options from `PlanRequest`: a field that is added here is one of all of them,
except those that its `Option` leaves out.
"""

# pydantic evaluates the annotations at import, so they stay code: as text each would be compiled first
from typing import Annotated, Any

from glmplan.request.option import EVERY_COMMAND, PLANNED, PLANS, Option, OptionRecord

__all__ = ["PlanRequest"]

_CHOSEN = EVERY_COMMAND | {"walls"}
_LAYOUT = _CHOSEN - {"size"}  # which compares machines, each in its best layout
_LENGTH = PLANS | PLANNED
_SERVED = PLANS | {"simulate"}
_WITH_SLO = _LENGTH - {"sensitivity"}


class PlanRequest(OptionRecord):
    """A model on a machine; what is left out is chosen, and the answer says how.

    Examples
    --------
    >>> PlanRequest("glm-5.1-nvfp4", "6xrtx-pro-6000-ws", tp="2", users="8,1").users
    (1, 8)
    """

    model: Annotated[
        str,
        Option(
            help="Catalogue name, or name-format.",
            axis="Models.",
            commands=frozenset(),
            example="glm-5.1-nvfp4",
            sheet="machine",
            form="",
        ),
    ]
    on: Annotated[
        str,
        Option(
            help="NxACCELERATOR or a host of the catalogue.",
            axis="Machines; 1..8xPART for one to eight.",
            commands=frozenset(),
            example="6xrtx-pro-6000-ws",
            sheet="machine",
            form="",
        ),
    ]
    part: Annotated[
        str | None,
        Option(
            help="Data sheet of an unlisted accelerator: name:memory=48GB,bandwidth=1008GB/s,bf16=165T.",
            commands=PLANS | {"compare", "sensitivity", "simulate"},
            form="",
        ),
    ] = None
    host_memory: Annotated[
        float | None,
        Option(
            kind="bytes",
            unit="B",
            help="Memory of each machine, all its sockets together, such as 512GB.",
            commands=PLANS | {"compare", "sensitivity", "simulate"},
            form="Hardware",
            label="Host memory",
            vacant="none",
        ),
    ] = None
    host_memory_bandwidth: Annotated[
        float | None,
        Option(
            kind="bandwidth",
            unit="B/s",
            help="Data-sheet bandwidth of that memory, all sockets of a machine together, such as 460GB/s.",
            commands=PLANS | {"compare", "sensitivity", "simulate"},
            form="Hardware",
            label="Host memory bandwidth",
            vacant="none",
        ),
    ] = None
    host_cores: Annotated[
        int | None,
        Option(
            kind="whole",
            help="Cores of each machine, all its sockets together, for weights that they compute.",
            commands=PLANS | {"compare", "sensitivity", "simulate"},
            form="Hardware",
            label="Host cores",
            vacant="none",
        ),
    ] = None
    weights: Annotated[
        str | None,
        Option(
            help="Checkpoint or format of the weights.",
            axis="Formats of the weights.",
            commands=_CHOSEN,
            tries="Formats to try, with commas.",
            sheet="weights",
            form="",
            label="Weights",
            listed=True,
        ),
    ] = None
    kv: Annotated[
        str | None,
        Option(
            help="Format of the KV cache.",
            axis="Formats of the KV cache.",
            commands=_CHOSEN,
            sheet="cache",
            form="Model",
            label="KV cache",
            listed=True,
        ),
    ] = None
    engine: Annotated[
        str | None,
        Option(
            help="vllm, sglang, trtllm, llama.cpp, ktransformers, mlx, lmdeploy, lmdeploy-pytorch or exllamav3.",
            axis="Engines.",
            tries="Engines to try, with commas.",
            sheet="engine",
            form="Hardware",
            label="Engine",
            listed=True,
        ),
    ] = None
    engine_version: Annotated[
        str | None,
        Option(
            help="Version of the engine; latest, the default of fit, is the newest known.",
            axis="Versions of the engine.",
            commands=_CHOSEN,
            sheet="Engine",
        ),
    ] = None
    tp: Annotated[
        int | None,
        Option(
            kind="whole",
            help="Tensor parallel degree.",
            axis="Tensor parallel degrees; the plan chooses where none is given.",
            commands=_LAYOUT,
            sheet="layout",
            form="Layout",
            label="TP",
            vacant="auto",
        ),
    ] = None
    pp: Annotated[
        int | None,
        Option(
            kind="whole",
            help="Pipeline stages.",
            axis="Pipeline stages.",
            commands=_LAYOUT,
            sheet="layout",
            form="Layout",
            label="PP",
            vacant="auto",
        ),
    ] = None
    dp: Annotated[
        int | None,
        Option(
            kind="whole",
            help="Attention data parallel degree.",
            axis="Attention data parallel degrees.",
            commands=_LAYOUT,
            sheet="layout",
            form="Layout",
            label="DP",
            vacant="auto",
        ),
    ] = None
    ep: Annotated[
        int | None,
        Option(
            kind="whole",
            help="Expert parallel degree.",
            axis="Expert parallel degrees.",
            commands=_LAYOUT,
            sheet="layout",
            form="Layout",
            label="EP",
            vacant="auto",
        ),
    ] = None
    dcp: Annotated[
        int | None,
        Option(
            kind="whole",
            help="Decode context parallel degree.",
            axis="Decode context parallel degrees.",
            commands=_LAYOUT,
            sheet="layout",
            form="Layout",
            label="DCP",
            vacant="auto",
        ),
    ] = None
    replicas: Annotated[
        int | None,
        Option(
            kind="whole",
            most=10_000,
            help="Servers of that layout behind a router.",
            commands=_SERVED,
            sheet="layout",
            form="",
        ),
    ] = None
    disaggregated: Annotated[
        str | None,
        Option(
            help="Servers of the layout for prompts and for decoding, as in 1:3, over the own links.",
            sheet="layout",
            form="",
        ),
    ] = None
    context: Annotated[
        int | None,
        Option(
            kind="whole",
            unit="token",
            help="Longest sequence that must fit, in tokens.",
            axis="Lengths of prompt and answer together, in tokens.",
            point=True,
            commands=_CHOSEN - {"sheet new"},
            sheet="context_tokens",
            form="Load",
            label="Context",
            vacant="as needed",
        ),
    ] = None
    input: Annotated[
        int | None,
        Option(
            kind="whole",
            unit="token",
            help="Prompt of a request, in tokens.",
            axis="Prompt lengths; 256..32768*20 for twenty in equal ratios.",
            point=True,
            flags=("--input",),
            commands=_LENGTH,
            sheet="prompt_tokens",
            form="Load",
            label="Prompt tokens",
            vacant="2048",
        ),
    ] = None
    output: Annotated[
        int | None,
        Option(
            kind="whole",
            unit="token",
            help="Answer of a request, in tokens.",
            axis="Answer lengths.",
            point=True,
            flags=("--output",),
            commands=_LENGTH,
            sheet="answer_tokens",
            form="Load",
            label="Answer tokens",
            vacant="512",
        ),
    ] = None
    use_case: Annotated[
        str | None,
        Option(
            help="Lengths of chat, long-chat, rag, code-completion, agent, summarise or batch, unless given.",
            commands=_LENGTH,
            form="Load",
            label="Use case",
        ),
    ] = None
    users: Annotated[
        tuple[int, ...] | None,
        Option(
            kind="counts",
            help="Numbers of users at once, as in 1,4,8.",
            axis="Users at once; 1..64 for all of them.",
            point=True,
            commands=PLANS,
            sheet="users",
            form="",
        ),
    ] = None
    mtp: Annotated[
        int | None,
        Option(
            kind="whole",
            unit="token",
            least=0,
            help="Speculative tokens for each step; 0 for none.",
            axis="Speculative tokens for each step.",
            commands=_CHOSEN,
            sheet="Speculative decoding",
            form="Drafting",
            label="Drafted tokens",
            vacant="none",
        ),
    ] = None
    drafter: Annotated[
        str | None,
        Option(
            help="mtp, ngram, suffix, a draft model, or a folder of an EAGLE or DFlash head; size: best.",
            axis="Ways of drafting.",
            commands=_CHOSEN,
            sheet="Speculative decoding",
            form="Drafting",
            label="Drafter",
            vacant="the model's own",
        ),
    ] = None
    acceptance: Annotated[
        float | None,
        Option(
            kind="number",
            help="Chance of a drafted token (up to 1), or tokens gained in a step (above 1).",
            axis="Chances of a drafted token, or tokens gained in a step.",
            sheet="Speculative decoding",
            form="Drafting",
            label="Acceptance",
            vacant="typical",
        ),
    ] = None
    eager: Annotated[bool, Option(kind="flag", help="Without CUDA graphs.", label="Without CUDA graphs")] = False
    memory_fraction: Annotated[
        float | None,
        Option(
            kind="number",
            help="Share of the memory the engine may use.",
            axis="Shares of the memory that the engine may use.",
        ),
    ] = None
    max_num_seqs: Annotated[
        int | None,
        Option(
            kind="whole",
            help="Requests that run at once on a data-parallel rank; slots in llama.cpp.",
            axis="Requests that run at once.",
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int | None,
        Option(
            kind="whole",
            unit="token",
            help="Token budget of a step of a data-parallel rank (chunked_prefill_size, max_num_tokens, n_batch).",
            flags=("--max-num-batched-tokens", "--max-batched-tokens"),
        ),
    ] = None
    max_model_len: Annotated[
        int | None, Option(kind="whole", unit="token", help="Longest prompt and answer together.")
    ] = None
    attention_backend: Annotated[str | None, Option(help="Attention kernels, as the engine names them.")] = None
    gpu_layers: Annotated[
        int | None,
        Option(
            kind="whole",
            least=0,
            flags=("--gpu-layers", "--n-gpu-layers", "-ngl"),
            help="Layers on accelerators, counted from the output (llama.cpp); the CPU computes the others.",
            axis="Layers on accelerators, counted from the output (llama.cpp); 10..50*5 for five in equal ratios.",
            commands=PLANS | {"compare", "simulate"},
            form="",
        ),
    ] = None
    no_kv_offload: Annotated[
        bool,
        Option(
            kind="flag",
            help="KV cache of all layers in host memory (llama.cpp).",
            commands=PLANS | {"compare", "simulate"},
            form="",
        ),
    ] = False
    lora: Annotated[
        int | None, Option(kind="whole", help="LoRA adapters loaded at the same time.", label="LoRA adapters")
    ] = None
    lora_rank: Annotated[
        int | None, Option(kind="whole", help="Rank of the largest adapter; 16 where none is named.", label="LoRA rank")
    ] = None
    power_limit: Annotated[
        float | None,
        Option(
            kind="power",
            unit="W",
            help="Power limit of each accelerator, such as 450W.",
            axis="Power limits of an accelerator, such as 450W.",
            commands=EVERY_COMMAND - {"sheet new", "sheet fill", "sheet check"},
            tries="Power limits of each accelerator to try, such as 450W, with commas.",
        ),
    ] = None
    host_tokens: Annotated[
        int | None,
        Option(
            kind="whole",
            unit="token",
            least=0,
            help="Copies of cached tokens in host memory, for each replica (hicache, LMCache).",
            commands=_SERVED,
            form="",
        ),
    ] = None
    host_bandwidth: Annotated[
        float | None,
        Option(
            kind="bandwidth",
            unit="B/s",
            help="Bandwidth over which they come back to a replica, instead of the machine's links, such as '50 GB/s'.",
            commands=_SERVED,
            form="",
        ),
    ] = None
    calibration: Annotated[
        str | None,
        Option(
            kind="path",
            help="Calibration of your site, from `glmplan calibrate --from … --save`.",
            commands=EVERY_COMMAND | {"predict", "validate"},
            over_http=False,
        ),
    ] = None
    probability: Annotated[
        float | None,
        Option(
            kind="number",
            help="Probability of meeting the SLO; 0.95 by default.",
            commands=_WITH_SLO,
            sheet="probability",
            form="",
        ),
    ] = None
    tpot_limit: Annotated[
        float | str | None,
        Option(
            kind="time",
            unit="s",
            help="Longest mean TPOT of the SLO, such as 50ms; 100 ms by default.",
            commands=_WITH_SLO,
            sheet="gap_limit",
            form="",
        ),
    ] = None
    ttft_limit: Annotated[
        float | str | None,
        Option(
            kind="time",
            unit="s",
            help="Longest mean TTFT of the SLO, such as 2s; 10 s by default, or three times that of one user.",
            commands=_WITH_SLO,
            sheet="wait_limit",
            form="",
        ),
    ] = None
    recipe: Annotated[
        str | None,
        Option(help="Take launch settings from this recipe collection, such as vllm-recipes.", commands=PLANS),
    ] = None

    def __init__(self, model: object, on: object, **given: Any) -> None:
        super().__init__(model=model, on=on, **given)
