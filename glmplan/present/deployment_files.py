"""Write deployment files of a plan for container platforms and Slurm.

Program, options and environment are those of `glmplan.planner.launch`. Names of images and ports are facts of the
engine (`hardware_db/engines`). Each template is a file of `templates`, and follows a published example.

Not written: servers that span machines, disaggregated servers, routers in front of several servers.

References
----------
.. [1] https://docs.vllm.ai/en/stable/deployment/k8s/ (Deployment, /dev/shm, probes)
.. [2] https://github.com/vllm-project/production-stack helm/README.md and helm/templates/deployment-vllm-multi.yaml
.. [3] https://github.com/llm-d/llm-d guides/optimized-baseline/modelserver/gpu/vllm/base at 05b03f75
.. [4] https://github.com/ai-dynamo/dynamo examples/backends/vllm/deploy/v1beta1/agg.yaml at 04521f47
.. [5] https://docs.docker.com/compose/how-tos/gpu-support/ (device_ids)
.. [6] https://www.freedesktop.org/software/systemd/man/latest/systemd.service.html (quoting of commands)
.. [7] https://slurm.schedmd.com/sbatch.html
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from glmplan.catalog.engines.limitations import load_engine
from glmplan.costs.blocks.stack import checkpoint_bytes
from glmplan.errors import SpecError
from glmplan.planner.launch import launch_files
from glmplan.request.option import read_names
from glmplan.units import GIB

if TYPE_CHECKING:
    import jinja2

    from glmplan.planner.capacity import Holding
    from glmplan.planner.make_plan import FitAnswer

__all__ = ["PLATFORMS", "Server", "deployment_files", "server_of", "systemd_word"]

#: Kubernetes resource of the accelerators of a vendor
_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
#: environment variable that selects the accelerators of a process
_VISIBLE = {"nvidia": "CUDA_VISIBLE_DEVICES", "amd": "ROCR_VISIBLE_DEVICES"}
#: free space of the volume beside the weights, for compiled kernels and tokenizers [GiB]
_BESIDE_WEIGHTS = 20
#: options of vLLM's HTTP server, which Dynamo's worker does not have: its frontend answers requests
_FRONT_END = {
    "--chat-template": 1,
    "--chat-template-content-format": 1,
    "--enable-auto-tool-choice": 0,
    "--reasoning-parser": 1,
    "--tool-call-parser": 1,
}
#: options of vLLM that are values of their own in the Helm chart → name and type of the value
_CHART_VALUES = {
    "--tensor-parallel-size": ("tensorParallelSize", int),
    "--max-model-len": ("maxModelLen", int),
    "--max-num-seqs": ("maxNumSeqs", int),
    "--gpu-memory-utilization": ("gpuMemoryUtilization", float),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One server of a plan, as platforms start it."""

    name: str  # a DNS label
    title: str  # model, format and machine
    engine: str
    release: str
    argv: tuple[str, ...]  # program and options, as shell words
    environment: Mapping[str, str]
    files: Mapping[str, str]  # files that the command names
    vendor: str
    accelerators: int  # of one server
    replicas: int
    per_machine: int  # servers on one machine
    power_limit: float | None  # of each accelerator [W]
    weights: str  # repository or path of the weights
    storage: int  # volume of the weights [GiB]
    image: str  # empty: none is published
    program: str  # program in the image
    cache: str
    port: int
    health: str
    notes: tuple[str, ...]

    @property
    def machines(self) -> int:
        """Return the machines that the servers need."""
        return -(-self.replicas // self.per_machine)

    @property
    def resource(self) -> str:
        """Return the Kubernetes resource of the accelerators."""
        return _RESOURCES[self.vendor]

    @property
    def listening(self) -> tuple[str, ...]:
        """Return the command with the address that a container must listen on."""
        return self.listening_on(self.port)

    def listening_on(self, port: int) -> tuple[str, ...]:
        """Return the command that listens on a port of all addresses."""
        running = load_engine(self.engine).running
        assert running is not None
        host, number = running.listens
        return (*self.argv, host, "0.0.0.0", number, str(port))

    @property
    def contained(self) -> tuple[str, ...]:
        """Return the command in the image."""
        return (self.program, *self.listening[1:])

    def visible(self, place: int) -> str:
        """Return the numbers of the accelerators of a server of one machine."""
        first = place * self.accelerators
        return ",".join(str(number) for number in range(first, first + self.accelerators))

    @property
    def visible_variable(self) -> str:
        """Return the environment variable that selects accelerators."""
        return _VISIBLE[self.vendor]


def _check(answer: FitAnswer) -> Holding:
    """Return the layout of a plan that files can start, else raise SpecError."""
    asked, holding = answer.asked, answer.holding
    if not answer.command or holding is None:
        raise SpecError("needs a plan that can be started: " + answer.headline, field="--deploy")
    terms, host = holding.terms, asked.machine.host
    if terms.prefill:
        raise SpecError("does not write disaggregated servers", field="--deploy", value=asked.machine.text)
    if terms.server > host.accelerators_per_node:
        message = f"does not write servers on several machines: this one needs {terms.server} accelerators, of "
        raise SpecError(f"{message}{host.accelerators_per_node} in a machine", field="--deploy")
    vendor = asked.machine.accelerator.vendor.lower()
    if vendor not in _RESOURCES:
        raise SpecError("is not a vendor of accelerators that the files can name", field="--deploy", value=vendor,
                        choices=_RESOURCES)  # fmt: skip
    return holding


def server_of(answer: FitAnswer) -> Server:
    """Return the server of a plan; SpecError if no file can start it."""
    asked, holding = answer.asked, _check(answer)
    terms = holding.terms
    vendor = asked.machine.accelerator.vendor.lower()
    words = shlex.split(" ".join(answer.command))
    start = next(place for place, word in enumerate(words) if not re.match(r"[A-Za-z_]\w*=", word))
    argv = tuple(words[start:])
    container = load_engine(asked.engine).container
    image = "" if container is None else container.images.get(vendor, "")
    name = f"{asked.model.name}-{asked.checkpoint.name}".lower()
    return Server(
        name=re.sub(r"[^a-z0-9]+", "-", name).strip("-")[:50],
        title=f"{asked.model.name} {asked.checkpoint.name} on {asked.machine.text}: {terms.name}",
        engine=asked.engine,
        release=asked.runs_as or "",
        argv=argv,
        environment=dict(word.split("=", 1) for word in words[:start]),
        files=launch_files(asked, holding),
        vendor=vendor,
        accelerators=terms.server,
        replicas=terms.replicas,
        per_machine=min(terms.replicas, asked.machine.host.accelerators_per_node // terms.server),
        power_limit=asked.power_limit,
        weights=next((word for word in argv if "/" in word and not word.startswith("-")), "PATH_TO_WEIGHTS"),
        storage=math.ceil(checkpoint_bytes(asked.model, asked.checkpoint) / GIB) + _BESIDE_WEIGHTS,
        image=image.format(version=asked.runs_as) if asked.runs_as else "",
        program=container.program or argv[0] if container is not None else argv[0],
        cache=container.cache if container is not None else "HF_HOME",
        port=container.port if container is not None else 8000,
        health=container.health if container is not None else "/health",
        notes=answer.command_notes,
    )


# Templates and their filters.


def systemd_word(text: str) -> str:
    r"""Return a word of a command in the quoting of systemd.

    Examples
    --------
    >>> print(systemd_word("--limit"), systemd_word('{"a": "50%"}'))
    --limit "{\"a\": \"50%%\"}"
    """
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return escaped if re.fullmatch(r"[\w@%+=:,./$-]+", escaped) else f'"{escaped}"'


def _yaml_list(words: tuple[str, ...], indent: int) -> str:
    """Return words as a YAML list; JSON strings are YAML strings."""
    return "\n".join(f"{' ' * indent}- {json.dumps(word, ensure_ascii=False)}" for word in words)


@cache
def _templates() -> jinja2.Environment:
    import jinja2

    # files are YAML, units and scripts: each value is quoted by the filter of its language
    found = jinja2.Environment(
        loader=jinja2.PackageLoader("glmplan.present"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    found.filters |= {
        "string": lambda text: json.dumps(str(text), ensure_ascii=False),
        "items_at": _yaml_list,
        "systemd": systemd_word,
        "shell": shlex.quote,
    }
    return found


def _written(template: str, server: Server, **more: Any) -> str:
    return _templates().get_template(template).render(server=server, **more)


def _image_of(server: Server, platform: str) -> None:
    """Refuse a platform of containers if no image is known."""
    if not server.image:
        words = f"needs a container image, and none of {server.engine} for {server.vendor} is known"
        raise SpecError(words, field="--deploy", value=platform, choices=("systemd", "slurm"))


#: engines of platforms that do not run every one
_ENGINES = {"helm-vllm": ("vllm",), "llm-d": ("vllm", "sglang"), "dynamo": ("vllm", "sglang")}


def _only(server: Server, platform: str) -> None:
    if server.engine not in _ENGINES[platform]:
        words = f"runs {' and '.join(_ENGINES[platform])} only"
        others = [one for one in PLATFORMS if server.engine in _ENGINES.get(one, (server.engine,))]
        raise SpecError(words, field="--deploy", value=platform, choices=others)
    if server.files:
        raise SpecError("does not take a file of options", field="--deploy", value=platform)


def _kubernetes(server: Server) -> dict[str, str]:
    _image_of(server, "kubernetes")
    return {"kubernetes.yaml": _written("kubernetes.yaml.j2", server)}


def _compose(server: Server) -> dict[str, str]:
    _image_of(server, "compose")
    return {"compose.yaml": _written("compose.yaml.j2", server)} | dict(server.files)


def _systemd(server: Server) -> dict[str, str]:
    """Return one unit for each server of a machine, with ports that count up."""
    found = dict(server.files)
    for place in range(server.per_machine):
        name = f"{server.name}-{place}" if server.per_machine > 1 else server.name
        words = server.listening_on(server.port + place)
        found[f"{name}.service"] = _written("systemd.service.j2", server, name=name, place=place, words=words)
    return found


def _slurm(server: Server) -> dict[str, str]:
    return {f"{server.name}.sbatch": _written("slurm.sbatch.j2", server)} | dict(server.files)


def _options(words: tuple[str, ...]) -> list[list[str]]:
    """Return the options of a command, each with its values.

    Examples
    --------
    >>> _options(("--eager", "--limit", "4", "--name=x"))
    [['--eager'], ['--limit', '4'], ['--name', 'x']]
    """
    groups: list[list[str]] = []
    for word in words:
        if word.startswith("--") and "=" in word:
            groups.append(word.split("=", 1))
        elif word.startswith("-") and not re.fullmatch(r"-\d.*", word):
            groups.append([word])
        else:
            groups[-1].append(word)
    return groups


def _helm_vllm(server: Server) -> dict[str, str]:
    """Return values of the chart of vLLM's production stack.

    The chart turns prefix caching off unless it is asked for: vLLM and the plan have it on.
    """
    _only(server, "helm-vllm")
    _image_of(server, "helm-vllm")
    config: dict[str, object] = {"enablePrefixCaching": True}
    others: list[str] = []
    for group in _options(server.argv[3:]):
        if group[0] in _CHART_VALUES:
            name, kind = _CHART_VALUES[group[0]]
            config[name] = kind(group[1])
        elif group == ["--no-enable-prefix-caching"]:
            config["enablePrefixCaching"] = False
        else:
            others += group
    repository, _, tag = server.image.rpartition(":")
    more = {"config": config, "others": tuple(others), "repository": repository, "tag": tag}
    return {"values.yaml": _written("helm-vllm.yaml.j2", server, **more)}


def _llm_d(server: Server) -> dict[str, str]:
    """Return a Kustomize overlay of llm-d's base for model servers."""
    _only(server, "llm-d")
    _image_of(server, "llm-d")
    return {
        "kustomization.yaml": _written("llm-d-kustomization.yaml.j2", server),
        "patch-modelserver.yaml": _written("llm-d-patch.yaml.j2", server),
    }


def _dynamo(server: Server) -> dict[str, str]:
    """Return a graph of Dynamo: its frontend and workers of the engine."""
    _only(server, "dynamo")
    left: list[str] = []
    if server.engine == "vllm":
        words: list[str] = ["--model", server.argv[2]]
        for group in _options(server.argv[3:]):
            if group[0] in _FRONT_END:
                left += group
            else:
                words += group
    else:
        words = list(server.argv[3:])
    return {"dynamo.yaml": _written("dynamo.yaml.j2", server, words=tuple(words), left=" ".join(left))}


#: platform → function that returns its files
PLATFORMS = {
    "kubernetes": _kubernetes,
    "helm-vllm": _helm_vllm,
    "llm-d": _llm_d,
    "dynamo": _dynamo,
    "compose": _compose,
    "systemd": _systemd,
    "slurm": _slurm,
}


def deployment_files(answer: FitAnswer, platforms: str | Sequence[str]) -> dict[str, str]:
    """Return the deployment files of a plan by name.

    - `platforms`: Names of `PLATFORMS`, as a list or as text with commas.

    Examples
    --------
    >>> from glmplan.planner import fit_answer
    >>> from glmplan.request.plan import PlanRequest
    >>> sorted(deployment_files(fit_answer(PlanRequest("gpt-oss-120b", "1xh100-sxm")), "llm-d"))
    ['kustomization.yaml', 'patch-modelserver.yaml']
    """
    names, server = read_names(platforms, "--deploy", PLATFORMS), server_of(answer)
    return {name: text for platform in names for name, text in PLATFORMS[platform](server).items()}
