"""What the sources of a table of collected runs state beyond its columns, campaign by campaign.

A rule comes from a statement of the source (told beside it, and in `calibration/sources.toml`) and holds for every row
of the source that it is about; nothing here looks at how fast a run was, except where a source's rate and latency
contradict each other (`contradiction`).
"""

from __future__ import annotations

import re

from glmplan.catalog.entries.models import load_model
from glmplan.costs.blocks.stack import model_state_bytes

__all__ = ["CAMPAIGNS", "CAMPAIGNS_B", "SAID", "SHARE", "stated"]

Row = dict[str, str]

#: campaign as collected → in our own names: of those that older tables hold too
CAMPAIGNS = {
    "rtx6kpro-wiki-2026-05": "rtx6kpro-wiki-2026-05-kimi-k2.6",
    "InferenceX": "inferencex-2026-11",
    "vendor sweep": "vendor-sweeps-2026-11",
}
#: the same of the second collection of November 2026: campaigns of which older tables hold other rows
CAMPAIGNS_B = {
    "gpustack-performance-lab": "gpustack-performance-lab-2026-08",
    "ml.energy-leaderboard": "ml.energy-leaderboard-2026-02",
    "ktransformers-docs": "ktransformers-docs-2026-02",
    "llama.cpp-dgx-spark-bench": "llama.cpp-dgx-spark-bench-2025-11",
    "sglang-docs-benchmark-snippets": "sglang-docs-benchmark-snippets-2026-09",
    "wafer-post": "wafer-post-2026-09",
    "dnhkng-gh200-part-3": "dnhkng-gh200-part-3-2026-06",
}
#: prose that the columns already say
SAID = re.compile(
    r"llm_decode_bench, one prompt per cell.*|gpu-memory-utilization `?0\.\d+`?|llm_decode_bench, \d+ s cells"
    r"|one prompt for all requests, prefix cached.*|bench_serving random|range ratio 1\.0|per-GPU figure.*"
    r"|GPU-to-GPU copies off|P2P state in the source|the source does not say if TTFT.*|num_prompts from the command.*"
)
#: how a page tells the share of drafted tokens that were accepted
SHARE = re.compile(r"accept_rate=(0\.\d+)|accept ~?(\d+)%$")

_FRACTION = re.compile(r"(?:gpu-memory-utilization|gpu-util) `?(0\.\d+)`?")
#: SGLang draws one acceptance length for the whole batch (python/sglang/srt/speculative/spec_utils.py at 00731f0b)
_SIMULATED = "SGLANG_SIMULATE_ACC_LEN"
#: rate over what the latencies of as many requests in flight allow; outside, one of the two does not measure this load
_LITTLE = (0.7, 1.3)
_RATES: tuple[str, ...] = ("output_tokens_per_s", "total_tokens_per_s")
_LATENCIES: tuple[str, ...] = ("ttft_mean_ms", "ttft_p50_ms", "tpot_mean_ms", "tpot_p50_ms")


def stated(row: Row) -> Row:
    """Return a collected row with what its source states beside it.

    Parameters
    ----------
    row : dict
        Column → cell.

    Returns
    -------
    dict
        The same with more columns.
    """
    found = dict(row)
    if row.get("apart"):
        found |= _set_apart(row)
    if fraction := _FRACTION.search(row["notes"]):
        found["memory_fraction"] = fraction[1]
    if _SIMULATED in row["notes"] and "simulated" not in row["speculative"]:
        found["speculative"] = f"{row['speculative']} simulated"
    for start, rule in _RULES.items():
        if row["campaign"].startswith(start):
            found |= rule(found)
    return found | contradiction(found)


def contradiction(row: Row) -> Row:
    """Set one of rate and latency aside where they contradict each other.

    A rate that is too low for its latencies holds time in which fewer ran than are stated, such as the last wave; one
    that is too high for them shows that the clock of the latencies ran outside of the load.
    """
    seconds = [float(row.get(name) or 0) / 1e3 for name in ("ttft_mean_ms", "tpot_mean_ms")]
    if not all(seconds):
        seconds = [float(row.get(name) or 0) / 1e3 for name in ("ttft_p50_ms", "tpot_p50_ms")]
    rate, out, users = (float(row.get(name) or 0) for name in ("output_tokens_per_s", "output_tokens", "concurrency"))
    if not (all(seconds) and rate and out and users) or row.get("phase") != "serving":
        return {}
    ratio = rate * (seconds[0] + (out - 1) * seconds[1]) / (users * out)
    low, high = _LITTLE
    if low <= ratio <= high:
        return {}
    doubted, why = (_LATENCIES, "its clock ran outside of the stated load")
    if ratio < low:
        doubted, why = _RATES, "holds time in which fewer ran than are stated"
    names = tuple(name for name in doubted if row.get(name))
    return withhold(row, names, f"contradicts the {'latencies' if ratio < low else 'rate'} ({ratio:.2f}): {why}")


def withhold(row: Row, names: tuple[str, ...], why: str) -> Row:
    """Set figures aside, with the reason."""
    told = [row["withheld"]] if row.get("withheld") else []
    return {"withheld": " | ".join([*told, f"{' '.join(names)}: {why}"])} if names else {}


def noted(row: Row, text: str) -> Row:
    """Add a fact to the notes."""
    return {"notes": f"{row['notes']}; {text}" if row["notes"] else text}


# --- Argonne: batches of 2024 (vLLM/A100/Throughput_measurement/benchmark_throughput.py) ---


def _argonne(row: Row) -> Row:
    found = withhold(row, ("output_tokens_per_s",), "the same figure: the source counts input and output together")
    return found | {"speculative": "none"}  # run_benchmarks.sh has no option for it


# --- SGLang's cookbooks: total tokens of a GPU; medians, as the file says of its later cells ---


def _cookbook(row: Row) -> Row:
    found: Row = {"request_rate_per_s": "inf"} if row["num_requests"] else {}
    found |= withhold(row, ("total_tokens_per_s",), "the same figure: lengths are fixed")
    if not row["tp"]:
        found["unusable"] = "how the accelerators were divided (TP, DP) is not printed"
    return found


# --- four RTX 3090: the run pages tell the launch (catalog/runs), HARDWARE.md the machine ---


#: the median first token of one request came in 57 to 86 ms, the 99th percentile in some 300: no RTX 3090 reads 512
#: tokens with 12 billion weights in less than 160 ms; models with recurrent layers, whose prompts are not kept, do 535
_REPEATED = "prompts were repeated and cached, which no page says: first tokens sooner than the part can read a prompt"


def _lotto(row: Row) -> Row:
    found: Row = {}
    if row["kv_cache"].lower() == "auto (bf16)":
        found["kv_cache"] = "bf16"
    name = row["source"].rsplit("data/benchmarks.jsonl ", 1)[-1]
    if "orchestrator" in row["campaign"]:
        # the pages call the figure itl_p50: gaps between chunks
        found |= {"itl_p50_ms": row["tpot_p50_ms"], "tpot_p50_ms": "", "max_model_len": "32768"}
        if row["model"] == "gemma-4-12b":
            found |= withhold(row, ("ttft_p50_ms", "ttft_p99_ms", "output_tokens_per_s"), _REPEATED)
        if row["engine"] == "vllm":
            found |= {"memory_fraction": "0.9", "max_num_seqs": "256", "attention_backend": "FLASH_ATTN"}
        else:
            found["running_limit"] = "1" if "single_stream" in name else "8"  # -np
        if "spec-mtp" in name:
            found["speculative"] = "mtp steps=4 draft=5"  # --spec-type draft-mtp --spec-draft-n-max 4
            found |= withhold(row | found, ("itl_p50_ms",), "a gap between chunks of several drafted tokens")
            found["unusable"] = "no figure is left: gaps between chunks of drafts, and cached prompts"
        if layout := re.search(r"topo-tp(\d)-pp(\d)-dp(\d)-i(\d)", name):
            tp, pp, dp, copies = map(int, layout.groups())
            found |= {"tp": str(tp), "pp": str(pp), "dp": str(dp * copies)}
            found["accelerator_count"] = str(tp * pp * dp * copies)
    elif "nvfp4-driver" in row["campaign"]:
        found |= {"memory_fraction": "0.90", "max_model_len": "131072", "attention_backend": "FLASH_ATTN",
                  "protocol": "vllm-bench-random"}  # fmt: skip
        if row["checkpoint"] in ("cyankiwi-AWQ", "nvidia-NVFP4"):
            found["unusable"] = "the page lists each cell twice, up to 1.9 times apart, and does not say what differed"
    else:
        found["max_num_seqs"] = "64"
        if name.split("/")[1].startswith("prefix-warm") or "/prefix-warm" in name:
            found["prefix_cached"] = "yes"
    return found


# --- magik6k: FINDINGS.md ---


def _magik(row: Row) -> Row:
    found: Row = {"cuda_graphs": "no"}  # every launch has --disable-cuda-graph
    if row["phase"] == "memory":
        return found
    if row["model"] == "glm-4.7":
        found["unusable"] = "the prompt is not printed, and the rates are twice what the page's latencies allow"
        return found
    # bench_serving's random mode: the log of 16 prompts of "512" tokens prints 4,072, of "256" answers 2,284
    found |= {"protocol": "sglang-bench-random", "input_tokens": "128.5", "output_tokens": "50.5",
              "request_rate_per_s": "inf"}  # fmt: skip
    if row["model"] == "kimi-k2.5":
        found["unusable"] = "a KV pool of 4,578 tokens decides how many ran at once, which is not stated"
    return found


# --- teo-ma: the clients are in the repository (tools), logs beside the results ---

#: requests a second, and tokens a second in and out, of result.json: bench_serving draws lengths from 1 on
_DRAWN = {
    ("qwen3-14b", "10"): (0.5321895812877712, 2005.716093957352, 193.2912559237185),
    ("qwen3-14b", "40"): (1.2014860875155877, 5321.381881606538, 464.2241870638352),
    ("qwen3-14b", "200"): (1.633678779915958, 7486.921133325647, 700.4561136767661),
    ("qwen2.5-72b", "10"): (0.08122665800967054, 789.2956812115705, 35.61788953724053),
    ("qwen2.5-72b", "40"): (0.11508256176856868, 1134.6478865650702, 53.40118572466008),
    ("qwen2.5-72b", "200"): (0.11142289779364775, 1148.8876274096806, 55.58108410640531),
}
#: requests that the client let in at once (engine_args of the result file, README 3B.2)
_LET_IN = {"qwen3_32b_nvfp4_vllm_10k_0p8k_result.json": 24}


def _teo_ma(row: Row) -> Row:
    # one wave: asyncio.gather, --num-prompts as many as --max-concurrency
    found: Row = {"num_requests": row["concurrency"], "memory_fraction": "0.90"}
    if row["engine"] == "sglang":
        rate, read, written = _DRAWN[row["model"], row["concurrency"]]
        found |= {
            "protocol": "sglang-bench-random",
            "request_rate_per_s": "inf",
            "input_tokens": f"{read / rate:.1f}",
            "output_tokens": f"{written / rate:.1f}",
            "output_tokens_per_s": f"{written:.6g}",
            "attention_backend": "triton",
            "max_model_len": "24576" if row["model"] == "qwen2.5-72b" else "10928",
        }
        if row["model"] == "qwen2.5-72b":
            found["kv_cache"] = "fp8"  # fp8_e5m2
        return found
    found["max_model_len"] = "10928"
    for file, users in _LET_IN.items():
        if file in row["source"] and float(row["concurrency"]) > users:
            found |= noted(row, f"{row['concurrency']} requests, {users} let in by the client")
            found["concurrency"] = str(users)
    return found


# --- community wiki of RTX PRO 6000, May to July 2026: each page prints its launch ---

#: campaign → what its page sets for every row: requests at once, tokens of a step, longest request, one-shot all-reduce
_PAGES: dict[str, Row] = {
    "rtx6kpro-kimi-k26-v2": {"max_num_seqs": "128", "max_num_batched_tokens": "8192", "max_model_len": "262144",
                             "cuda_graphs": "yes"},
    "rtx6kpro-glm51-v3": {"max_num_seqs": "64", "max_num_batched_tokens": "8192", "max_model_len": "202752"},
    "rtx6kpro-glm51-v5": {"max_num_seqs": "64", "max_num_batched_tokens": "8192", "max_model_len": "202752"},
    "rtx6kpro-glm52-v11": {"max_num_batched_tokens": "8192", "max_model_len": "256000"},
    "rtx6kpro-glm52-v12": {"max_num_batched_tokens": "8192", "max_model_len": "256000"},
    "rtx6kpro-glm52-mxfp4": {"max_num_batched_tokens": "8192"},
}  # fmt: skip
#: pages whose launch switches the one-shot all-reduce on (VLLM_ENABLE_PCIE_ALLREDUCE=1)
_ONE_SHOT = frozenset(_PAGES) - {"rtx6kpro-glm52-mxfp4"}
#: pages with the patched NCCL that finds its rings without a graph file
_PATCHED = frozenset({"rtx6kpro-kimi-k26-v2", "rtx6kpro-glm51-v3", "rtx6kpro-glm52-v11", "rtx6kpro-glm52-v12"})
PATCHED_HOST = "local 8-GPU RTX PRO 6000 host, patched NCCL without XML"


def _wiki(row: Row) -> Row:
    page = next((name for name in _PAGES if row["campaign"].startswith(name)), "")
    found: Row = {name: cell for name, cell in _PAGES.get(page, {}).items() if not row.get(name)}
    if row["phase"] == "memory" and "context 256000" not in row["notes"] and page == "rtx6kpro-glm52-v12":
        found = {}  # a start with other limits, which the notes tell
    found["protocol"] = "decode-grid"
    if page == "rtx6kpro-kimi-k26-v2" and row["phase"] != "memory":
        found["memory_fraction"] = "0.90" if row["dcp"] != "1" and row["speculative"] != "none" else "0.94"
    if "custom allreduce 0" in row["notes"]:
        found |= noted(row, "custom AR disabled")
    elif page in _ONE_SHOT or "custom allreduce 1" in row["notes"]:
        found |= noted(row, "custom AR")
    if page in _PATCHED:
        found["host"] = PATCHED_HOST
    return found


def _vilsol(row: Row) -> Row:
    # BENCHMARKS.md: the one-shot all-reduce could not open its handles and fell back to NCCL; acceptance 2.7 to 3.7
    # with three drafted tokens; steps of more tokens than were captured run eagerly
    found = {"protocol": "decode-grid", "max_num_batched_tokens": "8192"} | noted(row, "custom AR disabled")
    if row["speculative"] == "mtp-3":
        found["speculative"] = "mtp steps=3 draft=4 accept len 2.7-3.7"
        if row["notes"].startswith("config A") and row["phase"] == "decode" and float(row["concurrency"]) * 4 > 16:
            found["cuda_graphs"] = "no"
    return found


# --- the same wiki of May 2026: Kimi-K2.6 ---


def _kimi(row: Row) -> Row:
    found: Row = {}
    if not row["notes"].startswith("hardware/") and not row["host"].startswith("10.229"):
        found |= {"max_num_seqs": "128", "max_num_batched_tokens": "8192"} if "prometheus" in row["notes"] else {}
    if "Prefill Sanity" in row["notes"] or ("kimi-k26.md" in row["notes"] and row["measured_on"] >= "2026-04-25"):
        found["context_is_label"] = "no"  # counted: the tool asks the server for tokens since 25 April
    if "VLLM_ENABLE_PCIE_ALLREDUCE=1" in row["host"]:
        found |= noted(row, "custom AR")
    draft = re.search(r"eagle3-(\d)", row["speculative"])
    if row["speculative"].endswith("accept 0%"):
        found["unusable"] = "no drafted token was accepted: the page reproduces a defect"
    elif draft and (share := SHARE.search(row["speculative"])):
        accepted = float(share[1]) if share[1] else float(share[2]) / 100
        found["acceptance_length"] = f"{1 + int(draft[1]) * accepted:.3f}"
    elif draft and "accept 50-70%" in row["speculative"]:
        low, high = (1 + share * int(draft[1]) for share in (0.5, 0.7))
        found["speculative"] = f"eagle3-{draft[1]} accept len {low:.1f}-{high:.1f}"
    return found | _set_aside(row)


def _set_aside(row: Row) -> Row:
    """What the page of 25 April itself calls no result."""
    if "prometheus" not in row["notes"] or row["phase"] != "decode":
        return {}
    first = row["concurrency"] == "1" and row["input_tokens"] == "0"
    if first and ("cold artifact" in row["notes"] or "cold-start artifact" in row["notes"]):
        return {"unusable": "a cold start of the first cell, as the page says"}
    if row["concurrency"] == "128" and row["input_tokens"] == "131072" and "Decode Matrix" in row["notes"]:
        return {"unusable": "the cache held fewer requests than were sent, as the page says"}
    if row["host"].startswith("ForceP2P OFF; custom AR on"):
        return {"unusable": "without forced copies between cards the one-shot all-reduce collapsed, as the page says"}
    return {}


def _sweeps(row: Row) -> Row:
    """The InferenceX rows are as those that ship; the group that its collectors doubt is trusted less."""
    if "doubtful" not in row["notes"]:
        return {}
    return {"trust": "C", "notes": "vendor sweep; six label pairs of this group differ 1.3 times in TPOT"}


# --- second collection of November 2026 ---


def _set_apart(row: Row) -> Row:
    """Set a row aside that its collectors keep apart, with their reason; of a contradiction only the figures go."""
    if row["apart"] == "rate and latency disagree":
        return {}  # `contradiction` says which of the two, by its ratio
    return {"unusable": row["apart"]}


#: parts on which every launch script of DeepSeek-V4-Pro serves deepseek-ai/DeepSeek-V4-Pro, with experts in FP4, under
#: the label fp8 (InferenceX benchmarks/single_node dsv4_fp8_h200.sh, dsv4_fp8_mi300x.sh, dsv4_fp8_mi325x.sh); only on
#: MI355X a script serves sgl-project/DeepSeek-V4-Pro-FP8. Eight H200 do not hold FP8 experts
_NATIVE_EXPERTS = frozenset({"h200-sxm", "mi300x", "mi325x"})


def _dump(row: Row) -> Row:
    # a median over all dates and builds: no day and no release; rate and TPOT are of different runs
    found = {"measured_on": "", "engine_version": ""}
    if row["model"] == "deepseek-v4-pro" and row["accelerator"] in _NATIVE_EXPERTS:
        found["weights"] = "fp8"
    return found


def _divided(row: Row) -> Row:
    # servers for prefill and for decode: no launch script of one server says how they ran
    return {"protocol": "inferencex-disaggregated"}


def _tokens(row: Row) -> Row:
    # SemiAnalysisAI/InferenceX experimental/token_position_decode_slo: fixed lengths, request rate inf, a client limit
    return {"protocol": "vllm-bench-random", "request_rate_per_s": "inf", "notes": row["notes"].strip("; ")}


_SPARK = re.compile(r"max-num-batched-tokens (\d+)")
_LONGEST = re.compile(r"max-model-len (\d+)")


def _spark(row: Row) -> Row:
    """Launches of djangodevreng, tant2tls and kernelore: the notes hold the server's options."""
    found: Row = {}
    if budget := _SPARK.search(row["notes"]):
        found["max_num_batched_tokens"] = budget[1]
    if longest := _LONGEST.search(row["notes"]):
        found["max_model_len"] = longest[1]
    if row["phase"] == "prefill":
        found["protocol"] = "llama-benchy"
    elif row["phase"] == "decode":
        found["protocol"] = "single-stream"
    elif not row["request_rate_per_s"] and row["campaign"].startswith("tant2tls"):
        found["protocol"] = "vllm-bench-random"
    return found


def _truths(row: Row) -> Row:
    """Rows whose source or collector doubts the measured value itself."""
    if row["campaign"].startswith("kernelore") and row["phase"] == "prefill":
        return {"unusable": "a cold single shot: compilation inside"}
    if row["campaign"].startswith("blis"):
        return {"unusable": "TPOT measured inside of the engine, partly faster than the memory bandwidth allows"}
    if row["campaign"].startswith("amd-agentx"):
        return {"protocol": "agentic-replay"}
    return {}


def _stack(row: Row) -> Row:
    # pages with answers of 4 tokens at up to 1,000 users measure the client
    if 0 < float(row["output_tokens"] or 0) <= 8:
        return {"unusable": "answers of a few tokens: the client is measured"}
    return {}


def _energy(row: Row) -> Row:
    # Qwen3-8B at 8 requests: 251 tokens/s on this host, 818 on H100; steps of all models stay at 32 to 42 ms
    if row["accelerator"] == "b200-sxm":
        return {"unusable": "the host of the B200 rows is sick: steps of 32 to 42 ms whatever the model"}
    return {}


def _simulated(row: Row) -> Row:
    if "simulated accept" in row["notes"]:
        return {"unusable": "the acceptance length was simulated (SGLANG_SIMULATE_ACC_LEN)"}
    return {}


# --- loswald: README, bench scripts and the command of the client ---

#: vllm bench serve draws the prompts of every run from one seed, so that a run finds those of the run before in the
#: prefix cache (github.com/vllm-project/vllm issues 54227 and 52884, pull request 53920)
_DRAWN_AGAIN = "prompts of one seed in every run of a few prompts: the prefix cache holds those of the run before"
_COMMON = re.compile(r"(\d+) of the prompt tokens are a prefix common to all requests")


def _loswald(row: Row) -> Row:
    if "few prompts: one to four waves" in row["notes"]:
        return {"unusable": _DRAWN_AGAIN}
    prefix = _COMMON.search(row["notes"])
    # states of recurrent layers are not kept for a prefix
    if prefix is None or model_state_bytes(load_model(row["model"])):
        return {}
    return {"input_tokens": str(float(row["input_tokens"]) - float(prefix[1])), "context_depth": prefix[1]}


_RULES = {
    "loswald": _loswald,
    "inferencex-dump": _dump,
    "inferencex-dsr1-2025-2026-disagg": _divided,
    "inferencex-token-position": _tokens,
    "djangodevreng": _spark,
    "tant2tls": _spark,
    "kernelore": _truths,
    "blis": _truths,
    "amd-agentx": _truths,
    "gpustack": _stack,
    "ml.energy": _energy,
    "sglang-docs-benchmark-snippets": _simulated,
    "anl-": _argonne,
    "sglang-cookbook": _cookbook,
    "lottolotto": _lotto,
    "magik6k": _magik,
    "teo-ma": _teo_ma,
    "rtx6kpro-glm": _wiki,
    "rtx6kpro-kimi": _wiki,
    "rtx6kpro-wiki": _kimi,
    "vilsol": _vilsol,
    "inferencex-and": _sweeps,
}
