"""Deployment files say what the launch command of the plan says, in the form that each platform reads."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from functools import cache

import pytest

from glmplan.errors import SpecError
from glmplan.planner import fit_answer
from glmplan.present.deployment_files import PLATFORMS, deployment_files, server_of, systemd_word
from glmplan.request.plan import PlanRequest

yaml = pytest.importorskip("yaml")

#: plans with: several servers and JSON in an option; environment variables on AMD; a file of options; a path; slots
PLANS = {
    "two servers": ("glm-5.1-fp8", "16xh200-sxm", {"mtp": 3}),
    "amd": ("deepseek-v3", "8xmi300x", {}),
    "sglang": ("glm-4.5-air", "4xh200-sxm", {"engine": "sglang"}),
    "trtllm": ("gpt-oss-120b", "4xh200-sxm", {"engine": "trtllm", "tp": 2, "kv": "fp8"}),
    "power limit": ("glm-4.5-air", "4xrtx-pro-6000-ws", {"power_limit": "450W"}),
    "llama.cpp": ("llama-3.1-8b-q4_k_m", "1xrtx-4090", {"users": "4", "context": "8192"}),
}


@cache
def plan(name):
    model, on, words = PLANS[name]
    answer = fit_answer(PlanRequest(model, on, **words), changes=False)
    assert answer.command
    return answer


def written(name, platform):
    return deployment_files(plan(name), platform)


def documents(text):
    return [one for one in yaml.safe_load_all(text) if one is not None]


def argv_of(answer):
    """Words of the launch command without its environment variables."""
    words = shlex.split(" ".join(answer.command))
    return words[next(place for place, word in enumerate(words) if not re.match(r"\w+=", word)) :]


@pytest.mark.parametrize("name", PLANS)
def test_the_kubernetes_manifest_fits_the_published_schemas(name):
    validator = pytest.importorskip("kubernetes_validate")
    found = documents(written(name, "kubernetes")["kubernetes.yaml"])
    for one in found:
        validator.validate(one, validator.latest_version(), strict=True)
    kinds = [one["kind"] for one in found]
    assert kinds == ["PersistentVolumeClaim", *["ConfigMap"] * (name == "trtllm"), "Deployment", "Service"]
    broken = found[-2] | {"spec": found[-2]["spec"] | {"replicas": "two"}}
    with pytest.raises(validator.ValidationError):
        validator.validate(broken, validator.latest_version(), strict=True)


@pytest.mark.parametrize("name", PLANS)
def test_the_manifest_starts_the_launch_command_on_the_accelerators_of_one_server(name):
    answer = plan(name)
    terms = answer.holding.terms
    deployment = documents(written(name, "kubernetes")["kubernetes.yaml"])[-2]["spec"]
    (container,) = deployment["template"]["spec"]["containers"]
    assert deployment["replicas"] == terms.replicas
    (limit,) = container["resources"]["limits"].items()
    assert limit == ("amd.com/gpu" if name == "amd" else "nvidia.com/gpu", str(terms.server))
    port = container["ports"][0]["containerPort"]
    command = container["command"]
    assert command[1:] == [*argv_of(answer)[1:], "--host", "0.0.0.0", "--port", str(port)]
    assert command[0].endswith(argv_of(answer)[0].removesuffix("python")) or command[0] == "python3"
    told = {one["name"]: one.get("value") for one in container["env"]}
    assert told.items() >= server_of(answer).environment.items()


def test_the_volume_holds_the_weights():
    claim = documents(written("two servers", "kubernetes")["kubernetes.yaml"])[0]
    size = int(claim["spec"]["resources"]["requests"]["storage"].removesuffix("Gi"))
    # 704.9 GiB of GLM-5.1-FP8
    assert 705 <= size < 740


@pytest.mark.parametrize("name", PLANS)
def test_a_parser_of_the_compose_specification_reads_the_compose_file(name):
    compose_spec = pytest.importorskip("compose_spec")
    text = written(name, "compose")["compose.yaml"]
    compose_spec.PyCompose.from_yaml(text)
    with pytest.raises(ValueError, match="icp"):
        compose_spec.PyCompose.from_yaml(text.replace("    ipc: host", "    icp: host"))


@pytest.mark.parametrize("name", PLANS)
def test_servers_of_a_compose_file_share_neither_accelerators_nor_ports(name):
    answer = plan(name)
    found = documents(written(name, "compose")["compose.yaml"])[0]["services"].values()
    if name == "amd":
        used = [one["environment"]["ROCR_VISIBLE_DEVICES"].split(",") for one in found]
    else:
        used = [one["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"] for one in found]
    host = answer.asked.machine.host.accelerators_per_node
    assert all(len(one) == answer.holding.terms.server for one in used)
    numbers = [int(number) for one in used for number in one]
    assert numbers == sorted(set(numbers)) and max(numbers) < host
    ports = [one["ports"][0] for one in found]
    assert len(set(ports)) == len(ports)
    assert all(one["command"][1:-4] == argv_of(answer)[1:] for one in found)


@pytest.mark.parametrize("name", PLANS)
def test_systemd_verifies_the_units(name, tmp_path):
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("needs systemd-analyze")
    found = {file: text for file, text in written(name, "systemd").items() if file.endswith(".service")}
    assert len(found) == server_of(plan(name)).per_machine
    for file, text in found.items():
        path = tmp_path / file
        path.write_text(text, encoding="utf-8")
        done = subprocess.run([program, "verify", str(path)], capture_output=True, text=True)
        assert not [line for line in done.stderr.splitlines() if file in line], done.stderr
        path.write_text(text.replace("Restart=on-failure", "Restart=perhaps"), encoding="utf-8")
        assert file in subprocess.run([program, "verify", str(path)], capture_output=True, text=True).stderr


def test_a_unit_limits_the_power_of_its_own_accelerators():
    (text,) = written("power limit", "systemd").values()
    terms = plan("power limit").holding.terms
    numbers = ",".join(map(str, range(terms.server)))
    assert f"nvidia-smi --id={numbers} --power-limit=450" in text


def test_words_of_a_unit_are_quoted_as_systemd_reads_them():
    assert [systemd_word(word) for word in ("a b", "50%", "$HOME", 'say "x"', "back\\slash")] == [
        '"a b"', "50%%", "$$HOME", '"say \\"x\\""', '"back\\\\slash"',
    ]  # fmt: skip


@pytest.mark.parametrize("name", PLANS)
def test_the_slurm_script_runs_the_launch_command(name, tmp_path):
    answer = plan(name)
    found = written(name, "slurm")
    (script,) = [text for file, text in found.items() if file.endswith(".sbatch")]
    terms = answer.holding.terms
    assert f"#SBATCH --gpus-per-node={terms.server}\n" in script
    assert (f"#SBATCH --array=0-{terms.replicas - 1}\n" in script) is (terms.replicas > 1)
    # Slurm reads its options until the first command
    body = [line for line in script.splitlines() if line and not line.startswith("#")]
    assert script.index("#SBATCH --output") < script.index(body[0])
    # `srun` that prints its words, one on a line
    (tmp_path / "srun").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "job").write_text(script)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_ARRAY_TASK_ID": "1"}
    done = subprocess.run(["bash", str(tmp_path / "job")], env=environment, capture_output=True, text=True, check=True)
    port = str(server_of(answer).port + 1)
    assert done.stdout.splitlines()[1:] == [*argv_of(answer), "--host", "0.0.0.0", "--port", port]


def test_the_values_of_the_vllm_chart_have_the_fields_of_its_documentation():
    """Fields as in helm/README.md; the template turns prefix caching off where it is not asked for."""
    (text,) = written("two servers", "helm-vllm").values()
    (spec,) = documents(text)[0]["servingEngineSpec"]["modelSpec"]
    assert {name: spec[name] for name in ("repository", "tag", "modelURL", "replicaCount", "requestGPU")} == {
        "repository": "vllm/vllm-openai",
        "tag": f"v{plan('two servers').asked.runs_as}",
        "modelURL": "zai-org/GLM-5.1-FP8",
        "replicaCount": 2,
        "requestGPU": 8,
    }
    config = spec["vllmConfig"]
    assert config["enablePrefixCaching"] is True and config["tensorParallelSize"] == 2
    words = config["extraArgs"]
    assert words[words.index("--speculative-config") + 1] == '{"method":"mtp","num_speculative_tokens":3}'
    assert "--tensor-parallel-size" not in words


def test_the_llm_d_overlay_patches_the_model_server_of_the_base():
    found = written("two servers", "llm-d")
    (overlay,), (patch,) = documents(found["kustomization.yaml"]), documents(found["patch-modelserver.yaml"])
    assert overlay["kind"] == "Kustomization" and overlay["patches"] == [{"path": "patch-modelserver.yaml"}]
    assert patch["kind"] == "Deployment" and patch["metadata"]["name"] == "decode"
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    assert container["name"] == "modelserver" and container["resources"]["limits"] == {"nvidia.com/gpu": 8}
    assert container["command"][:-4] == argv_of(plan("two servers"))


def test_the_dynamo_graph_has_a_frontend_and_workers_without_options_of_an_http_server():
    (text,) = written("two servers", "dynamo").values()
    (graph,) = documents(text)
    assert (graph["apiVersion"], graph["kind"]) == ("nvidia.com/v1beta1", "DynamoGraphDeployment")
    front, worker = graph["spec"]["components"]
    assert (front["type"], worker["type"], worker["replicas"]) == ("frontend", "worker", 2)
    (container,) = worker["podTemplate"]["spec"]["containers"]
    assert container["command"] == ["python3", "-m", "dynamo.vllm"]
    assert container["args"][:4] == ["--model", "zai-org/GLM-5.1-FP8", "--tensor-parallel-size", "2"]
    assert "--tool-call-parser" not in container["args"] and "--speculative-config" in container["args"]


@pytest.mark.parametrize("platform", ["helm-vllm", "dynamo", "llm-d"])
def test_a_platform_refuses_an_engine_that_it_does_not_run(platform):
    with pytest.raises(SpecError) as caught:
        written("llama.cpp", platform)
    assert caught.value.field == "--deploy" and caught.value.value == platform
    assert set(caught.value.choices) == {"kubernetes", "compose", "systemd", "slurm"}  # they run every engine


@pytest.mark.parametrize(
    ("model", "on", "words"),
    [
        ("glm-5.1-nvfp4", "4xrtx-pro-6000-ws", {}),  # does not fit
        ("glm-5.1-fp8", "16xh200-sxm", {"tp": 16}),  # one server on two machines
        ("qwen3-30b-a3b", "mac-studio-m3-ultra", {}),  # no containers, no systemd
    ],
)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_a_plan_that_no_file_can_start_is_refused(model, on, words, platform):
    answer = fit_answer(PlanRequest(model, on, **words), changes=False)
    with pytest.raises(SpecError) as caught:
        deployment_files(answer, platform)
    assert caught.value.field == "--deploy"
