"""Launch command of an engine for a plan, and its benchmark command."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from glmplan.catalog.engines.kernels import sparse_capabilities, sparse_words
from glmplan.catalog.engines.limitations import another_program, load_engine
from glmplan.catalog.engines.recipes import (
    Recipe,
    best_recipe,
    known_flags,
    option_groups,
    option_name,
    options_file,
    options_of_plans,
)
from glmplan.catalog.entries.hosts import load_machine
from glmplan.catalog.schema.engine import version_key
from glmplan.costs.blocks.stack import is_indexed, mixers_of, model_features
from glmplan.planner.capacity import LOW, Holding, contexts_of
from glmplan.planner.hazards import hazard_rules
from glmplan.planner.layouts import adapter_words, kinds_of_servers
from glmplan.planner.question import Asked
from glmplan.prediction.deployment import default_kv
from glmplan.prediction.load import slots_held
from glmplan.units import TokenCount, Tokens

if TYPE_CHECKING:
    from glmplan.planner.capacity import Terms

__all__ = [
    "DEGREES",
    "degrees_of",
    "degrees_set",
    "launch_command",
    "launch_context",
    "launch_files",
    "recipe_for",
    "seats_of",
    "slots_of",
    "slots_on",
    "validate_command",
    "with_recipe",
]


def recipe_for(asked: Asked, cards: int) -> Recipe | None:
    """Return the recipe nearest to a plan."""
    return best_recipe(
        asked.model.name, engine=asked.engine, version=asked.runs_as, accelerator=asked.machine.accelerator.name,
        checkpoint=asked.checkpoint.repository, cards=cards,
    )  # fmt: skip


def with_recipe(
    asked: Asked, holding: Holding, words: tuple[str, ...], notes: tuple[str, ...]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Add limitation options and recipe flags to a launch command.

    Returns command and notes. Options that the release does not know are left out and named.
    """
    release, names = known_flags(asked.engine, asked.runs_as) or ("", frozenset())
    limitations = holding.terms.limitations
    asks = [
        option
        for option in dict.fromkeys(option for limitation in limitations for option in limitation.told)
        if option_name(option) not in _said(words) and _knows(names, option_name(option))
    ]
    words = (*words, *asks)
    told = (*_stage_variables(asked, holding), *(one for wall in limitations for one in wall.environment))
    variables = {one.partition("=")[0]: one for one in told}
    if asked.machine.stages:
        order = ", ".join(asked.machine.stages)
        notes += (f"the visible devices are the cards in the order of the stages ({order}) by their place in --on: "
                  "compare it with nvidia-smi -L",)  # fmt: skip
    recipe = recipe_for(asked, holding.terms.accelerators)
    if recipe is None:
        return _started_with(variables, words), notes
    decided, of_model = options_of_plans(asked.engine)
    own_part = recipe.accelerator == asked.machine.accelerator.name
    file = options_file(asked.engine)
    added, unknown, filed = [], [], []
    for group in option_groups(recipe.flags):
        name = option_name(group)
        if name in decided | _said(words) or not (own_part or name in of_model):
            continue
        if not _knows(names, name):
            unknown.append(name)
            filed.append(group.removeprefix("--").replace(" ", ": ", 1))
            continue
        added.append(_quoted(group))
    if recipe.env and own_part:
        variables = {one.partition("=")[0]: one for one in shlex.split(recipe.env)} | variables
    notes += (f"extra flags ({recipe.accelerator} recipe): {recipe.source}",) if added else ()
    if unknown and file is not None:
        notes += (f"{file} of that recipe ({recipe.source}) also contains: {'; '.join(filed)}",)
    elif unknown:
        notes += (f"omitted, unknown to {asked.engine} {release}: {', '.join(unknown)}",)
    return _started_with(variables, (*words, *added)), notes


#: maker → variables that choose devices and their order; vLLM asks for the first where cards differ
_DEVICES = {"NVIDIA": ("CUDA_DEVICE_ORDER=PCI_BUS_ID", "CUDA_VISIBLE_DEVICES"), "AMD": ("HIP_VISIBLE_DEVICES",)}


def _stage_variables(asked: Asked, holding: Holding) -> tuple[str, ...]:
    """Return the variables for the layers of unlike stages and their cards."""
    machine, running = asked.machine, load_engine(asked.engine).running
    if not machine.stages or running is None or running.stage_layers is None:
        return ()
    names, kinds = load_machine(machine.text).accelerator_names, [name for name, _ in machine.kinds]
    places = ",".join(map(str, sorted(range(len(names)), key=lambda place: kinds.index(names[place]))))
    *order, devices = _DEVICES.get(machine.accelerator.vendor, ("",))
    layers = f"{running.stage_layers.variable}={','.join(map(str, holding.terms.layers))}"
    return (*order, *([f"{devices}={places}"] if devices else ()), layers)


def _said(words: tuple[str, ...]) -> set[str]:
    return {option_name(one) for group in words for one in option_groups(group)}


def _knows(names: frozenset[str], name: str) -> bool:
    """Return True if a release knows an option, or if its options are unknown."""
    plain = name.partition(".")[0]
    return not names or bool({plain, plain.replace("--no-", "--", 1)} & names)


def _started_with(variables: dict[str, str], words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command after its environment variables, in shell syntax."""
    quoted = (f"{name}={shlex.quote(one.partition('=')[2])}" for name, one in variables.items())
    return (*quoted, *words)


def _quoted(group: str) -> str:
    """Return an option with its value in shell syntax."""
    name, _, value = group.partition(" ")
    return f"{name} {value if not value or value.startswith(chr(39)) else shlex.quote(value)}".rstrip()


def launch_command(asked: Asked, holding: Holding, context: TokenCount) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the launch command of a plan and notes on it.

    One text per flag with its value, the program first, after any environment variables. Empty if another program
    replaces the engine on the accelerator.

    References
    ----------
    .. [1] https://docs.vllm.ai/en/stable/cli/serve/
    .. [2] https://docs.sglang.ai/advanced_features/server_arguments.html
    .. [3] https://nvidia.github.io/TensorRT-LLM/commands/trtllm-serve/trtllm-serve.html
    .. [4] https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md
    .. [5] https://github.com/kvcache-ai/ktransformers/blob/main/doc/en/kt-kernel/README.md
    .. [6] https://github.com/ml-explore/mlx-lm/blob/main/mlx_lm/SERVER.md
    .. [7] https://github.com/InternLM/lmdeploy/blob/1263d5cd/lmdeploy/cli/serve.py, turbomind/parallel_config.py
    .. [8] https://github.com/theroyallab/tabbyAPI/blob/e632af41/config_sample.yml (each field is an option, too)
    """
    part = asked.machine.accelerator
    other = another_program(asked.engine, vendor=part.vendor, kind=part.kind)
    if other is not None:
        return (), (f"no command of {asked.engine} starts {other.another_program}: {other.do}",)
    makers = {
        "vllm": _vllm,
        "sglang": _sglang,
        "trtllm": _trtllm,
        "llama.cpp": _llama_cpp,
        "ktransformers": _ktransformers,
        "mlx": _mlx,
        "lmdeploy": _lmdeploy,
        "lmdeploy-pytorch": _lmdeploy,
        "exllamav3": _exllamav3,
    }
    words, notes = makers[asked.engine](asked, holding, context)
    if not words:
        return words, notes
    words, notes = with_recipe(asked, holding, words, notes)
    terms = holding.terms
    if terms.prefill:
        notes = (*kinds_of_servers(asked, terms), *notes)
    if terms.replicas > 1:
        own = f"{terms.server} accelerators" if terms.server > 1 else "accelerator"
        notes = (f"start {terms.replicas} servers behind a router, each on its own {own}", *notes)
    return words, notes


def _repository(asked: Asked) -> tuple[str, list[str]]:
    stored = asked.checkpoint
    plain = stored.default == "bf16" and not stored.formats and stored.form in ("safetensors", "gguf")
    found = stored.repository or (asked.model.hugging_face if plain else None)
    if found:
        return found, []
    return "PATH_TO_WEIGHTS", [f"no published files in {stored.name} are known for this model: insert your path"]


def _sparse_words(asked: Asked, sparse: bool) -> tuple[str, ...]:
    """Return the options for sparse attention on GPUs with separate kernels."""
    part = asked.machine.accelerator
    runs = sparse and is_indexed(asked.model) and part.compute_capability not in sparse_capabilities()
    rotary = "nope-dsa" not in model_features(asked.model)
    return sparse_words(asked.engine, part.compute_capability or "", rotary=rotary) if runs else ()


def _cache_words(asked: Asked, kv: str) -> tuple[str, ...]:
    """Return the engine's name of the KV format; empty for its default."""
    found = load_engine(asked.engine).cache_format(kv)
    packs = found.packed is not None and any(one.packed_fp8 for one in mixers_of(asked.model))
    written = found.packed if packs else found.written
    part, release = asked.machine.accelerator, asked.runs_as
    if written is None and default_kv(asked.checkpoint, asked.engine, model=asked.model, accelerator=part) != kv:
        known = not (release and found.named_since) or version_key(release) >= version_key(found.named_since)
        written = found.named if known else None
    return () if written is None else (written,)


def _set_options(asked: Asked, names: tuple[str, str, str, str], ranks: int = 1) -> list[str]:
    """Return options for memory, max_num_seqs, token budget and attention.

    Engines that count over all data-parallel ranks get the value times `ranks`.
    """
    settings = asked.settings
    values = (
        None if settings.memory_fraction is None else f"{settings.memory_fraction:g}",
        None if settings.max_num_seqs is None else settings.max_num_seqs * ranks,
        None if settings.max_num_batched_tokens is None else settings.max_num_batched_tokens * ranks,
        settings.attention_backend or None,
    )
    return [f"{name} {value}" for name, value in zip(names, values, strict=True) if name and value is not None]


def _shared_context(asked: Asked, dcp: int) -> list[str]:
    """Return the option for ranks that divide cached tokens."""
    running = load_engine(asked.engine).running
    facts = None if running is None else running.shared_context
    return [] if facts is None or dcp == 1 else [f"{facts.option} {dcp}"]


def _vllm(asked: Asked, holding: Holding, context: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    terms = holding.terms
    where, notes = _repository(asked)
    words = [f"vllm serve {where}"]
    words += [f"--tensor-parallel-size {terms.tp}"] * (terms.tp > 1)
    words += [f"--pipeline-parallel-size {terms.pp}"] * (terms.pp > 1)
    words += [f"--data-parallel-size {terms.dp}"] * (terms.dp > 1)
    words += ["--enable-expert-parallel"] * (terms.ep > 1)
    words += _shared_context(asked, terms.dcp)
    asked_for = _sparse_words(asked, terms.sparse)
    words += asked_for or [f"--kv-cache-dtype {kv}" for kv in _cache_words(asked, terms.kv)]
    words += [f"--max-model-len {context}"] * (context < asked.model.max_context)
    words += _set_options(
        asked, ("--gpu-memory-utilization", "--max-num-seqs", "--max-num-batched-tokens", "--attention-backend")
    )
    words += ["--enforce-eager"] * (not terms.graphs)
    words += adapter_words(asked)
    running = load_engine(asked.engine).running
    if running is not None and running.host_tables and any(kind.lookup for kind in asked.model.layers.values()):
        words.append(running.host_tables)
        notes.append("the n-gram tables are in host memory")
    if terms.mtp:
        head, own = asked.model.draft_head, asked.model.mtp
        method = {"method": own.method if own is not None else asked.request.drafter or "mtp"}
        method = method if head is None else {"method": head.method, "model": head.repository}
        config = json.dumps(method | {"num_speculative_tokens": terms.mtp}, separators=(",", ":"))
        words.append(f"--speculative-config '{config}'")
    return tuple(words), tuple(notes)


def _sglang(asked: Asked, holding: Holding, context: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    terms = holding.terms
    where, notes = _repository(asked)
    words = [f"python -m sglang.launch_server --model-path {where}"]
    # SGLang counts tp over all ranks of a stage; attention data parallelism divides it
    words += [f"--tp-size {terms.tp * terms.dp}"] * (terms.tp * terms.dp > 1)
    words += [f"--pp-size {terms.pp}"] * (terms.pp > 1)
    words += [f"--dp-size {terms.dp} --enable-dp-attention"] * (terms.dp > 1)
    words += [f"--ep-size {terms.ep}"] * (terms.ep > 1)
    words += _shared_context(asked, terms.dcp)
    words += [f"--kv-cache-dtype {kv}" for kv in _cache_words(asked, terms.kv)]
    words += _sparse_words(asked, terms.sparse)
    words += [f"--context-length {context}"] * (context < asked.model.max_context)
    names = ("--mem-fraction-static", "--max-running-requests", "--chunked-prefill-size", "--attention-backend")
    words += _set_options(asked, names, ranks=terms.dp)
    words += ["--disable-cuda-graph"] * (not terms.graphs)
    words += adapter_words(asked)
    if terms.mtp:
        words += _sglang_drafting(asked, terms.mtp)
        notes += ["SGLang has no suffix decoding: the command drafts by n-grams"] * (asked.request.drafter == "suffix")
    return tuple(words), tuple(notes)


#: method → SGLang's algorithm
_ALGORITHMS = {"eagle3": "EAGLE3", "eagle": "EAGLE", "dflash": "DFLASH", "draft_model": "STANDALONE"}


def _sglang_drafting(asked: Asked, drafted: int) -> list[str]:
    """Return SGLang's options of speculative decoding [1]_.

    References
    ----------
    .. [1] https://docs.sglang.io/docs/advanced_features/speculative_decoding.md
    """
    head = asked.model.draft_head
    last = f"--speculative-num-draft-tokens {drafted + 1}"
    if head is None and asked.model.mtp is None:
        return ["--speculative-algorithm NGRAM", last]
    name = "EAGLE" if head is None else f"{_ALGORITHMS[head.method]} --speculative-draft-model-path {head.repository}"
    if head is not None and head.method == "dflash":
        return [f"--speculative-algorithm {name}", last]
    return [f"--speculative-algorithm {name} --speculative-num-steps {drafted} --speculative-eagle-topk 1 {last}"]


def _trtllm(asked: Asked, holding: Holding, context: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    terms = holding.terms
    where, notes = _repository(asked)
    words = [f"trtllm-serve {where}"]
    words += [f"--tp_size {terms.tp * terms.dp}"] * (terms.tp * terms.dp > 1)
    words += [f"--pp_size {terms.pp}"] * (terms.pp > 1)
    words += [f"--ep_size {terms.ep}"] * (terms.ep > 1)
    words += [f"--max_seq_len {context}"] * (context < asked.model.max_context)
    words += _set_options(asked, ("--kv_cache_free_gpu_memory_fraction", "--max_batch_size", "--max_num_tokens", ""))
    if terms.mtp and asked.model.mtp is None:
        head = asked.model.draft_head
        notes.append(f"the command omits speculative decoding with {head.repository if head else 'n-grams'}: add it")
    extra = _trtllm_options(asked, holding)
    if extra:
        words.append(f"--extra_llm_api_options {_OPTIONS_FILE}")
        notes.append(f"{_OPTIONS_FILE} contains: " + "; ".join(extra))
    return tuple(words), tuple(notes)


#: file with the options of TensorRT-LLM that its command line lacks
_OPTIONS_FILE = "options.yaml"


def _trtllm_options(asked: Asked, holding: Holding) -> list[str]:
    """Return the lines of the options file of TensorRT-LLM."""
    terms = holding.terms
    extra = [f"attn_backend: {asked.settings.attention_backend}"] * bool(asked.settings.attention_backend)
    extra += ["enable_attention_dp: true"] * (terms.dp > 1)
    extra += [f"kv_cache_config: {{dtype: {kv}}}" for kv in _cache_words(asked, terms.kv)]
    extra += ["cuda_graph_config: null"] * (not terms.graphs)
    # without it a prompt above max_num_tokens is refused (llmapi/llm.py: _check_arguments)
    budget = asked.defaults.budget_of(terms.dp) // terms.dp
    extra += ["enable_chunked_prefill: true"] * (asked.defaults.whole_prompts and asked.input_tokens > budget)
    if terms.mtp and asked.model.mtp is not None:
        extra.append(f"speculative_config: {{decoding_type: MTP, num_nextn_predict_layers: {terms.mtp}}}")
    return extra


def launch_files(asked: Asked, holding: Holding) -> dict[str, str]:
    """Return the files that a launch command names, by name."""
    lines = _trtllm_options(asked, holding) if asked.engine == "trtllm" else []
    return {_OPTIONS_FILE: "\n".join(lines) + "\n"} if lines else {}


def _quant(name: str, repository: str) -> str:
    """Return the quantisation tag of a GGUF file in a repository.

    unsloth prefixes its own mixtures, which end in XL, with UD.
    """
    quant = name.upper().removesuffix("-GGUF").removesuffix("-MTP")
    own = repository.startswith("unsloth/") and quant.endswith("_XL") and not quant.startswith("UD-")
    return f"UD-{quant}" if own else quant


def _llama_cpp(asked: Asked, holding: Holding, context: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    terms = holding.terms
    where, notes = _repository(asked)
    if "/" in where and "gguf" in where.lower():
        # without a quant the server takes Q4_K_M, or the first file that there is [4]
        files = f"-hf {where}:{_quant(asked.checkpoint.name, where)}"
    elif "/" in where:
        files = "-m PATH_TO_GGUF"
        notes = [*notes, f"no GGUF of {where} is known: make one with convert_hf_to_gguf.py of llama.cpp"]
    else:
        files = f"-m {where}"
    from glmplan.planner.moved_experts import moved_options

    words = ["llama-server", files, *moved_options(asked, holding)]
    # the server takes what -c says at start and stops if it is not there: the lower bound of the pool, and in host
    # memory less than all of it, which other processes need too
    slots = slots_of(asked, holding, asked.users[-1])
    kept = _tokens_on_host(holding)
    whole = slots * min(context, *contexts_of(asked, holding, (slots * terms.decoding,), quantile=LOW))
    whole = int(min(whole, kept)) // 256 * 256
    if slots * terms.decoding <= max(holding.held_low, 1):  # each slot takes a whole request: no rounding below it
        whole = max(whole, -(-slots * asked.user_tokens // 256) * 256)
    words += [f"-c {whole or context}", f"--parallel {slots}"]
    if split := asked.machine.shares:
        words += ["--split-mode layer", "--tensor-split " + ",".join(f"{100 * share:.0f}" for share in split)]
        notes.append(
            "--tensor-split has the order of llama-server --list-devices: "
            + ", ".join(f"{count} × {name}" for name, count in asked.machine.kinds)
            + " here"
        )
    words += ["--split-mode layer"] * (terms.pp > 1) + ["--split-mode row"] * (terms.tp > 1)
    words += _llama_cpp_drafting(asked, terms.mtp)
    words += [f"--cache-type-k {kv} --cache-type-v {kv}" for kv in _cache_words(asked, terms.kv)]
    words += _set_options(asked, ("", "", "--ubatch-size", ""))
    words.append("--flash-attn on")
    notes.append(f"-c is shared by {slots} slots, {whole // max(slots, 1):,} tokens each")
    if asked.settings.on_host:
        words += ["--numa distribute"] * (len(asked.machine.host.sockets) > 1)
        notes.append(
            "steps of prompts fetch these weights from host memory once: larger ones take fewer fetches (-ub 4096)"
        )
    return tuple(words), tuple(notes)


def _tokens_on_host(holding: Holding) -> Tokens:
    """Return a server's tokens whose caches leave host memory to others."""
    each = holding.host_requests(holding.terms.replicas / holding.pool.length)
    if holding.host_memory is None or not each:
        return np.inf
    most = float(hazard_rules()["host-memory-overcommit"].thresholds["tight"]) * holding.host_memory
    return max(most - holding.host_weights, 0.0) / each


def _llama_cpp_drafting(asked: Asked, drafted: int) -> list[str]:
    """Return llama-server's options of speculative decoding [1]_.

    References
    ----------
    .. [1] https://github.com/ggml-org/llama.cpp/blob/a3a1c4747fdc0dcad40b3946108b89375d9a7d0e/docs/speculative.md
    """
    head = asked.model.draft_head
    if not drafted:
        return []
    if head is None:
        name = "ngram-simple" if asked.model.mtp is None else "draft-mtp"
        return [f"--spec-type {name} --spec-draft-n-max {drafted}"]
    name = {"eagle3": "draft-eagle3", "dflash": "draft-dflash", "draft_model": "draft-simple"}[head.method]
    return [f"--spec-type {name} --spec-draft-n-max {drafted} --spec-draft-model PATH_TO_GGUF_OF_THE_DRAFTER"]


def _ktransformers(asked: Asked, holding: Holding, context: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    words, notes = _sglang(asked, holding, context)
    if "moe" not in model_features(asked.model):
        return words, (*notes, "no routed experts: nothing is computed on the CPU, and SGLang alone serves this model")
    running = load_engine(asked.engine).running
    # the bulk of a GGUF file is the format that its bits are counted in
    gguf = asked.checkpoint.form == "gguf"
    stored = "gguf" if gguf else asked.checkpoint.bulk
    method = running.host_experts.get(stored) if running is not None else None
    if method is None:
        # another method would use converted experts, with other sizes than planned
        return (), (f"no command: no --kt-method is known that reads experts in {stored} as they are stored",)
    more = (method, "--kt-weight-path PATH_TO_WEIGHTS", "--kt-num-gpu-experts 0")
    if gguf:
        where, whole = _repository(asked)[0], asked.model.hugging_face or "PATH_TO_SAFETENSORS"
        note = (
            "--kt-weight-path is the folder of the GGUF file; all but the routed experts come from the safetensors of "
        )
        note += f"{whole} and are larger than in the GGUF file of this plan"
        return (*(word.replace(where, whole) for word in words), *more), (note,)
    note = "routed experts run on the CPU from host memory; --kt-weight-path is the local folder of the same files"
    return (*words, *more), (*notes, note)


def _mlx(asked: Asked, holding: Holding, context: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    where, notes = _repository(asked)
    words = [f"mlx_lm.server --model {where}"]
    ranks = holding.terms.server
    if ranks > 1 and ranks <= asked.machine.per_node:
        words = [f"mlx.launch -n {ranks} --", *words]
    elif ranks > 1:
        words = ["mlx.launch --hostfile hosts.json --", *words]
        notes.append(f"hosts.json names the {ranks} machines: mlx.distributed_config writes it")
    words += ["--pipeline"] * (holding.terms.pp > 1)
    return tuple(words), (*notes, "MLX reserves no KV pool: the cache grows with the requests")


def _lmdeploy(asked: Asked, holding: Holding, context: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    terms = holding.terms
    where, notes = _repository(asked)
    words = [f"lmdeploy serve api_server {where} --backend {asked.engine.partition('-')[2] or 'turbomind'}"]
    # --tp is that of attention or of the experts, whichever is larger; the ranks are those of attention x --dp
    split = max(terms.tp, terms.tp * terms.dp // max(terms.ep, 1))
    words += [f"--tp {split}"] * (split > 1) + [f"--dp {terms.dp}"] * (terms.dp > 1)
    words += [f"--ep {terms.ep}"] * (terms.ep > 1)
    words += [f"--quant-policy {kv}" for kv in _cache_words(asked, terms.kv)]
    words += [f"--session-len {context}"] * (context < asked.model.max_context)
    words += _set_options(asked, ("--cache-max-entry-count", "--max-batch-size", "--max-prefill-token-num", ""))
    if terms.mtp:
        head = asked.model.draft_head
        method = "hy3_mtp" if asked.model.family == "hunyuan" else "deepseek_mtp"
        method = method if head is None else f"{head.method} --speculative-draft-model {head.repository}"
        words.append(f"--speculative-algorithm {method} --speculative-num-draft-tokens {terms.mtp}")
    if terms.dp > 1:
        words.append("--proxy-url http://PROXY:8000")
        notes.append("each data-parallel rank is a server of its own behind lmdeploy serve proxy --server-port 8000")
    return tuple(words), tuple(notes)


def _exllamav3(asked: Asked, holding: Holding, context: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    terms = holding.terms
    where, notes = _repository(asked)
    from glmplan.planner.moved_experts import moved_options

    # the server allocates its cache at start: the lower bound of the pool
    tokens = int(min(holding.pool.low / terms.decoding, asked.users[-1] * context))
    words = [f"python main.py --model-dir models --model-name {where.rpartition('/')[2]}"]
    words += [f"--max-seq-len {context}", f"--cache-size {max(tokens, context) // 256 * 256}"]
    words += [f"--cache-mode {kv}" for kv in _cache_words(asked, terms.kv)]
    words += [*moved_options(asked, holding), *["--tensor-parallel true"] * (terms.tp > 1)]
    words += _set_options(asked, ("", "--max-batch-size", "--chunk-size", ""))
    head, own = asked.model.draft_head, asked.model.mtp
    if terms.mtp:
        mode = "mtp" if own is not None else "ngram" if head is None else "model --draft-model-name NAME_OF_THE_DRAFTER"
        words.append(f"--draft-mode {mode} --draft-num-tokens {terms.mtp}")
    notes.append(f"in the folder of TabbyAPI, with the files of {where} in models/")
    return tuple(words), tuple(notes)


def seats_of(asked: Asked, ranks: int) -> int:
    """Return the running requests that a server allows on all ranks.

    The engine default counts per rank; an explicit max_num_seqs counts as the engine reads it.
    """
    explicit = asked.settings.max_num_seqs is not None
    places = asked.defaults.places
    return max(places // ranks, 1) * ranks if explicit and asked.defaults.divided else places * ranks


def slots_on(asked: Asked, terms: Terms, held_low: np.ndarray) -> np.ndarray:
    """Return `slots_held` of each decoding server.

    - `held_low`: Requests that the pools of all servers hold at the lower bound, [-].
    """
    stated = asked.settings.max_num_seqs is not None
    return slots_held(asked.defaults, seats_of(asked, terms.dp), held_low / terms.decoding, stated=stated)


def slots_of(asked: Asked, holding: Holding, users: int | None = None) -> int:
    """Return `slots_held` of each decoding server of a layout.

    `users`: Slots of equal context are no more than these users need.
    """
    slots = int(slots_on(asked, holding.terms, np.array(holding.held_low)))
    chosen = asked.settings.max_num_seqs is None and asked.defaults.admission == "slot"
    return min(slots, -(-users // holding.terms.decoding)) if chosen and users is not None else slots


def launch_context(asked: Asked, best: Holding) -> TokenCount:
    """Return the longest sequence of the launch command.

    As requested, else the lower bound of the KV pool.
    """
    explicit = asked.settings.max_model_len or asked.context
    if explicit is not None:
        return explicit
    lower_bound = int(min(best.context_low, asked.model.max_context))
    if lower_bound >= asked.model.max_context:
        return asked.model.max_context
    return max(lower_bound // 1024 * 1024, asked.request_tokens)


#: degrees of a layout that a benchmark command states
DEGREES = ("tp", "pp", "dp", "ep", "dcp")


def degrees_set(degrees: Mapping[str, int]) -> dict[str, int]:
    """Return the degrees that a benchmark command states: TP, others above 1.

    Examples
    --------
    >>> degrees_set({"tp": 1, "pp": 3, "dp": 1, "ep": 1, "dcp": 1})
    {'tp': 1, 'pp': 3}
    """
    return {name: degrees[name] for name in DEGREES if degrees[name] > 1 or name == "tp"}


def degrees_of(terms: Terms) -> dict[str, int]:
    """Return the stated degrees of a planned layout."""
    return degrees_set({name: getattr(terms, name) for name in DEGREES})


def validate_command(
    model: str, on: str, facts: Mapping[str, object], *, users: Iterable[int], lengths: tuple[int, int], more: str = ""
) -> str:
    """Return the `glmplan validate` command for a delivered machine.

    - `facts`: Columns of a run that describe the deployment.
    - `users`: Load steps; none if `more` has rates.
    - `lengths`: Prompt and answer, [token].

    Examples
    --------
    >>> validate_command("m", "2xh100-sxm", {"tp": 2}, users=(1, 8), lengths=(2048, 512))
    'glmplan validate m --url http://MACHINE:8000/v1 --on 2xh100-sxm --set tp=2 --users 1,8 --input 2048 --output 512
    --out acceptance'
    """
    columns = " ".join(shlex.join(["--set", f"{name}={value}"]) for name, value in facts.items())
    steps = ",".join(map(str, users))
    steps = f"--users {steps} " if steps else ""
    return (
        f"glmplan validate {shlex.quote(model)} --url http://MACHINE:8000/v1 --on {shlex.quote(on)} {columns} "
        f"{steps}--input {lengths[0]} --output {lengths[1]} {more + ' ' if more else ''}--out acceptance"
    )
