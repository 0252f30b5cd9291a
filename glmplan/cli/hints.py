"""Answer an unknown option with the one that asks for the same.

An option of a serving engine is named by its option here, an option of other commands by these commands, and a
misspelled one by the nearest name.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from difflib import get_close_matches

from glmplan.request.option import Option, options_of, spelled
from glmplan.request.plan import PlanRequest
from glmplan.request.traffic import TrafficSpec

__all__ = ["answer_unknown"]

#: similarity of names from which one is offered for another [-]
_NEAR = 0.7

#: option of other commands, an option or argument of this one, and how the same is said here
_HERE = (
    ("--users", "--traffic", "Users are part of the traffic here, as in --traffic closed:8."),
    ("--model", "model", "The model is the first argument here: glmplan {command} MODEL."),
    ("--on", "--only", "Machines are named with --only here."),
    ("--on", "plans", "Machines are arguments here, as in glmplan {command} 8xh200-sxm 8xb200-sxm."),
    ("--on", "run", "The machine is a value of the run here: --set host=FILE."),
    ("--only", "--on", "The machine is named with --on here."),
    ("--slo", "--traffic", "An SLO is judged by glmplan safe --slo, with the same options."),
)

#: option of a plan → options of llama.cpp, vLLM, SGLang, TensorRT-LLM, LMDeploy and TabbyAPI that set the same
_SAME = {
    "gpu_layers": "ngl gpu-layers n-gpu-layers",
    "no_kv_offload": "nkvo no-kv-offload",
    "max_num_seqs": "np parallel max-running-requests max-batch-size max-num-seqs",
    "kv": "ctk ctv cache-type-k cache-type-v kv-cache-dtype cache-mode quant-policy",
    "max_num_batched_tokens": "ub ubatch-size chunked-prefill-size max-num-tokens chunk-size max-prefill-token-num",
    "drafter": "md model-draft spec-draft-model spec-type speculative-algorithm speculative-config draft-mode",
    "mtp": "draft draft-max draft-n spec-draft-n-max num-speculative-tokens speculative-num-steps draft-num-tokens",
    "tp": "tensor-parallel-size tp-size",
    "pp": "pipeline-parallel-size pp-size",
    "dp": "data-parallel-size dp-size",
    "ep": "enable-expert-parallel expert-parallel-size ep-size moe-expert-parallel-size",
    "dcp": "decode-context-parallel-size dcp-size",
    "memory_fraction": "gpu-memory-utilization mem-fraction-static kv-cache-free-gpu-memory-fraction "
    "cache-max-entry-count",
    "weights": "quantization dtype",
    "max_model_len": "context-length max-seq-len session-len",
    "eager": "enforce-eager disable-cuda-graph eager-mode",
    "lora": "max-loras max-loras-per-batch",
    "engine": "backend",
}
#: options of engines that no option of a plan sets → answer
_OTHERWISE = {
    "c ctx-size": "llama.cpp shares it among its slots: --context is the longest request, --max-num-seqs the slots.",
    "ot override-tensor ncmoe n-cpu-moe cmoe cpu-moe": "A plan with llama.cpp leaves experts of as few layers as "
    "needed to the CPU, and its command names them; --gpu-layers of glmplan fit places whole layers.",
    "fa flash-attn": "Plans with llama.cpp have it on.",
    "ts tensor-split sm split-mode": "Layers are dealt with --pp, rows with --tp; the command has the shares.",
    "t threads": "The cores are those of the machine: --on with a TOML file (glmplan hardware import).",
    "m hf hf-repo model-path": "The model is the first argument of glmplan fit: a catalogue name or a .gguf file.",
}


def answer_unknown(word: str, arguments: Sequence[str], known: Collection[str], command: str) -> tuple[str, str]:
    """Return an unknown option as it was given, and what to ask instead.

    `word` is the option as click names it: of a single dash with letters the first letter. `known` are options and
    arguments of the command. The answer is empty where no option is near.

    Examples
    --------
    >>> answer_unknown("-n", ["-ngl", "20"], {"--model", "--on"}, "size")
    ('-ngl', 'It is --gpu-layers of glmplan compare, fit, report, safe, simulate and sweep.')
    >>> answer_unknown("--tensor-parallel-size", [], {"--tp"}, "fit")[1]
    'It is --tp here.'
    """
    here = next((text for name, of, text in _HERE if name == word and of in known), "")
    if here:
        return word, here.format(command=command)
    if not word.startswith("--"):
        word = next((one.partition("=")[0] for one in arguments if one.startswith(word)), word)
    key = word.lstrip("-").replace("_", "-")
    flags = dict(_flags())
    name = next((spelled(name) for name, words in _SAME.items() if key in words.split()), f"--{key}")
    if name in flags:
        return word, _elsewhere(flags[name], word, known)
    other = next((text for words, text in _OTHERWISE.items() if key in words.split()), "")
    if other:
        return word, other
    near = get_close_matches(f"--{key}", known, 1, _NEAR)
    if near:
        return word, f"The nearest is {near[0]}."
    near = get_close_matches(f"--{key}", flags, 1, _NEAR)
    return word, _elsewhere(flags[near[0]], word, known) if near else ""


def _elsewhere(one: Option, word: str, known: Collection[str]) -> str:
    """Return the option's name here, or its name and commands."""
    flag = next(flag for flag, found in _flags() if found is one)
    if flag in known:
        return f"It is {flag} here."
    commands = set(one.commands)
    if "simulate" in commands:
        commands.add("safe")
    if one.axis:
        commands.add("sweep")
    *first, last = sorted(commands) or ["fit"]
    name = "an option" if word == flag else flag
    return f"It is {name} of glmplan {', '.join(first)}{' and ' * bool(first)}{last}."


def _flags() -> Iterator[tuple[str, Option]]:
    """Yield each flag of a request with its option."""
    for record in (TrafficSpec, PlanRequest):
        for name, one in options_of(record).items():
            yield from ((flag, one) for flag in one.flags or (spelled(name),))
