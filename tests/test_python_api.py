"""`import glmplan`: the public names, what they answer, and the guide whose blocks run."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import math
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import glmplan
import glmplan.planner.ask
from glmplan.planner import fit_answer
from glmplan.prediction.effects import COLUMNS, LEVELS, keys_of
from glmplan.request.keywords import Question
from glmplan.request.plan import PlanRequest

ROOT = Path(__file__).resolve().parents[1]
GUIDE = ROOT / "docs/guide/python.md"

#: the promise to programs: a name that goes or comes is a line here and in the changelog
PUBLIC = [
    "Deployed", "Deployment", "DoesNotFit", "Figure", "FitAnswer", "GlmplanError", "Infeasible", "Kept", "Listing",
    "Load", "MemoryPlan", "Outcome", "Prediction", "SafeLoad", "SpecError", "StepTimes", "UnknownFact", "UnknownName",
    "deployment", "fit", "hardware", "kept", "load_accelerator", "load_host", "load_machine", "load_model", "memory",
    "models", "predict", "predict_table", "safe", "simulate", "step_time",
]  # fmt: skip


@pytest.fixture(scope="module")
def served():
    return glmplan.deployment("llama-3.1-8b", on="1xh100-sxm", engine="vllm", input=1024, output=128)


def test_the_public_names_are_these_and_each_is_there():
    assert sorted(glmplan.__all__) == sorted(PUBLIC)
    for name in PUBLIC:
        assert getattr(glmplan, name) is not None
        assert inspect.getdoc(getattr(glmplan, name)), name
    assert set(PUBLIC) <= set(dir(glmplan))
    with pytest.raises(AttributeError, match="no attribute 'fitt'"):
        glmplan.fitt  # noqa: B018


def test_the_names_for_type_checkers_are_the_names_at_run_time():
    tree = ast.parse((ROOT / "glmplan/__init__.py").read_text(encoding="utf-8"))
    seen = {
        alias.name: node.module
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("glmplan")
        for alias in node.names
    }
    assert seen == glmplan._MODULE


def test_a_room_of_the_package_never_takes_the_place_of_a_public_name():
    code = (
        "import glmplan, pkgutil, importlib\n"
        "[importlib.import_module(m.name) for m in pkgutil.iter_modules(glmplan.__path__, 'glmplan.')]\n"
        "print([n for n in glmplan.__all__ if type(getattr(glmplan, n)).__name__ == 'module'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.strip() == "[]", done.stderr


def test_importing_costs_no_library_and_fit_needs_no_pandas():
    code = (
        "import sys, glmplan\n"
        "print([m for m in ('numpy', 'pandas', 'pydantic') if m in sys.modules])\n"
        "glmplan.fit('llama-3.1-8b', on='1xh100-sxm', users=1)\n"
        "print([m for m in ('pandas', 'altair', 'networkx') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.stdout.split("\n")[:2] == ["[]", "[]"], done.stderr


def inside(record):
    """A record, and those of glmplan that its fields hold: of a tuple the first."""
    yield record
    names = [one.name for one in dataclasses.fields(record)] if dataclasses.is_dataclass(record) else []
    for name in names or list(getattr(type(record), "model_fields", {})):
        value = getattr(record, name)
        value = value[0] if isinstance(value, tuple) and value else value
        if type(value).__module__.startswith("glmplan.") and not name.startswith("_"):
            yield value


def test_every_record_is_told_in_one_line_of_what_it_is(served):
    promise = "tpot p95 < 80 ms"
    results = [
        served, served.deployment, served.asked, glmplan.fit("llama-3.1-8b", on="1xh100-sxm", users=(1, 8)),
        glmplan.fit("kimi-k2.6", on="4xrtx-pro-6000-ws"), glmplan.hardware(), glmplan.models(), glmplan.memory(served),
        glmplan.step_time(served, decode_requests=4), glmplan.predict(served, users=4),
        glmplan.simulate(served, "closed:2", requests=20), glmplan.safe(served, promise),
        glmplan.kept(served, promise, "closed:4"), glmplan.load_model("glm-5.1"), glmplan.load_accelerator("h100-sxm"),
        glmplan.load_host("dgx-spark"), glmplan.load_machine("8xh100-sxm"),
    ]  # fmt: skip
    for result in results:
        for one in inside(result):
            said = repr(one)
            assert "\n" not in said and len(said) <= 200, (type(result).__name__, type(one).__name__, said)
            assert type(one).__name__ in said or said.startswith("<"), said


def test_typed_and_written_values_ask_the_same_question():
    typed = glmplan.fit("llama-3.1-8b", on="2xh100-sxm", tp=2, users=(1, 8), context=8192, memory_fraction=0.85)
    written = fit_answer(
        PlanRequest("llama-3.1-8b", "2xh100-sxm", tp="2", users="1,8", context="8192", memory_fraction="0.85")
    )
    assert typed.users == written.users
    assert typed.holding.pool == written.holding.pool
    assert str(typed) == str(written)


def test_a_question_takes_exactly_what_the_command_line_takes():
    named = set(PlanRequest.model_fields) - {"model", "on"}
    assert named == set(Question.__annotations__)
    for ask in (glmplan.fit, glmplan.deployment):
        assert named <= set(inspect.signature(ask).parameters)


@pytest.mark.parametrize(
    "arguments, field, said",
    [
        ({"tp": 3}, "tp", "32 attention heads"),
        ({"tp": True}, "tp", "whole number"),
        ({"tp": 2.0}, "tp", "whole number"),
        ({"users": ()}, "users", "empty"),
        ({"users": (1, 0)}, "users", "at least 1"),
        ({"users": "1,x"}, "users", "whole number"),
        ({"memory_fraction": "a lot"}, "memory_fraction", "not a number"),
        ({"engine": "vlllm"}, "engine", "vllm"),
        ({"tpp": 2}, "argument", "nearest: tp"),
        ({"weights": 8}, "weights", "8 is not text"),
        ({"kv": []}, "kv", "not text"),
        ({"engine": None, "engine_version": 0.19}, "engine_version", "0.19 is not text"),
        ({"users": b"8"}, "users", "whole number"),
        ({"context": float("nan")}, "context", "nan is not a whole number"),
        ({"memory_fraction": True}, "memory_fraction", "not a number"),
        ({"eager": "no"}, "eager", "neither True nor False"),
        ({"calibration": 3}, "calibration", "3 is not text"),
    ],
)
def test_a_wrong_argument_is_named_as_a_program_writes_it(arguments, field, said):
    with pytest.raises(glmplan.SpecError) as caught:
        glmplan.fit("llama-3.1-8b", on="2xh100-sxm", **arguments)
    assert caught.value.field == field
    assert said in str(caught.value)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    "ask, field",
    [
        (lambda d: glmplan.fit(None, on="1xh100-sxm"), "model"),
        (lambda d: glmplan.fit("llama-3.1-8b", on=8), "on"),
        (lambda d: glmplan.load_model(5), "model"),
        (lambda d: glmplan.memory("llama-3.1-8b"), "planned"),
        (lambda d: glmplan.predict(d.deployment), "planned"),
        (lambda d: glmplan.predict(d, users=float("nan")), "users"),
        (lambda d: glmplan.predict(d, users=10**6), "users"),
        (lambda d: glmplan.step_time(d, decode_requests=-1), "decode_requests"),
        (lambda d: glmplan.step_time(d, decode_context=[1, float("nan")]), "decode_context"),
        (lambda d: glmplan.step_time(d, prefill_tokens="many"), "prefill_tokens"),
        (lambda d: glmplan.step_time(d, prefill_context=[[1], [2]]), "prefill_context"),
        (lambda d: glmplan.step_time(d, decode_requests=[1, 2], decode_context=[1, 2, 3]), None),
        (lambda d: glmplan.simulate(d, None), "traffic"),
        (lambda d: glmplan.simulate(d, "closed:inf"), "traffic"),
        (lambda d: glmplan.simulate(d, "closed:1", requests=2.5), "requests"),
        (lambda d: glmplan.simulate(d, "closed:1", seed=-1), "seed"),
        (lambda d: glmplan.simulate(d, "closed:1", slo=5), "slo"),
        (lambda d: glmplan.simulate(d, "closed:1", settings=[]), "settings"),
        (lambda d: glmplan.simulate(d, "closed:1", inputs=5), "argument"),
        (lambda d: glmplan.safe(d, "ttft p95 < 2"), "slo"),
        (lambda d: glmplan.safe(d, "ttft p95 < 2 s", most=float("nan")), "most"),
        (lambda d: glmplan.safe(d, "ttft p95 < 2 s", most=-1), "most"),
        (lambda d: glmplan.predict_table([{"model": "glm-5.1"}]), "frame"),
    ],
)
def test_what_is_given_wrongly_to_a_question_is_an_error_that_names_it(served, ask, field):
    with pytest.raises(glmplan.SpecError) as caught:
        ask(served)
    assert caught.value.field == field
    assert "--" not in str(caught.value)


def test_answers_of_a_single_token_have_no_time_between_tokens():
    answer = glmplan.fit("llama-3.1-8b", on="1xh100-sxm", users=(1, 8), input=1024, output=1)
    one, eight = answer.users
    assert one.tpot is None and one.user_rate is None and one.ttft.value < eight.ttft.value
    assert eight.total_rate.value >= one.total_rate.value > 0
    assert [limit.name for limit in answer.safe.limits] == ["kv", "queue"] and answer.safe.users > 0
    assert str(answer) and answer.to_frame()["tpot_mean_ms"].isna().all()
    assert glmplan.simulate(answer, "closed:1", requests=5).summary["ttft_mean_ms"] > 0


def test_what_does_not_fit_is_an_answer_of_fit_and_an_error_of_a_deployment():
    answer = glmplan.fit("glm-5.1-nvfp4", on="2xrtx-pro-6000-ws")
    assert answer.verdict == "does_not_fit"
    assert len(answer.to_frame("memory")) == 2
    with pytest.raises(glmplan.DoesNotFit):
        glmplan.deployment("glm-5.1-nvfp4", on="2xrtx-pro-6000-ws")
    for ask in (glmplan.step_time, glmplan.predict, lambda plan: glmplan.simulate(plan, "closed:1")):
        with pytest.raises(glmplan.DoesNotFit):
            ask(answer)
    assert len(glmplan.memory(answer).ranks) == 2


def test_every_answer_has_one_line_a_page_and_a_frame(served):
    answer = glmplan.fit("llama-3.1-8b", on="1xh100-sxm", users=(1, 8))
    records = [
        answer,
        glmplan.memory(served),
        glmplan.predict(served, users=4),
        glmplan.step_time(served, decode_requests=[1, 8], decode_context=1000),
        glmplan.simulate(served, "closed:2", requests=8),
        glmplan.safe(served, "tpot p95 < 1 s", most=2),
    ]
    for record in records:
        assert "\n" not in repr(record) and repr(record).startswith("<") and len(repr(record)) < 300
        assert str(record).strip() and str(record) != repr(record)
        assert len(record.to_frame()) >= 1
        with pytest.raises((dataclasses.FrozenInstanceError, AttributeError, TypeError)):
            record.basis = "other"
    for table in ("users", "memory", "layouts", "changes", "warnings"):
        answer.to_frame(table)
    with pytest.raises(glmplan.SpecError, match="nearest: users"):
        answer.to_frame("user")


def test_frames_hold_what_the_answer_holds(served):
    answer = glmplan.fit("llama-3.1-8b", on="1xh100-sxm", users=(1, 8))
    frame = answer.to_frame()
    assert frame["users"].tolist() == [1, 8]
    assert frame.loc[1, "tpot_mean_ms"] == pytest.approx(answer.users[1].tpot.value * 1e3)
    assert (frame["tpot_mean_ms_low"] < frame["tpot_mean_ms_high"]).all()
    ranks = glmplan.memory(served)
    assert ranks.to_frame()["weights_gib"].sum() == pytest.approx(
        sum(sum(rank.weights.values()) for rank in ranks.ranks) / 2**30
    )
    outcome = glmplan.simulate(served, "closed:2", requests=8, keep=True)
    assert len(outcome.to_frame("requests")) == 8
    assert outcome.to_frame("requests")["output_tokens"].eq(128).all()


def test_one_deployment_answers_as_fit_does(served):
    answer = glmplan.fit("llama-3.1-8b", on="1xh100-sxm", engine="vllm", input=1024, output=128, users=(4,))
    figure = glmplan.predict(served, users=4).figures["tpot"]
    assert figure == answer.users[-1].tpot
    assert glmplan.memory(answer).pool == glmplan.memory(served).pool
    same = glmplan.step_time(answer, decode_requests=4, decode_context=500).seconds
    assert same == glmplan.step_time(served, decode_requests=4, decode_context=500).seconds


def test_a_calibration_holds_for_everything_that_is_asked_of_what_was_planned_with_it(served, tmp_path):
    site = tmp_path / "site.toml"
    twice = [math.log(2) if name == "scale" else 0.0 for name in COLUMNS]
    key = keys_of(served.deployment)[LEVELS.index("configuration")]
    site.write_text(f'columns = {list(COLUMNS)}\n[effects.configuration]\n"{key}" = {twice}\n')
    words = {"engine": "vllm", "input": 1024, "output": 128, "calibration": str(site)}
    calibrated = glmplan.deployment("llama-3.1-8b", on="1xh100-sxm", **words)
    answer = glmplan.fit("llama-3.1-8b", on="1xh100-sxm", users=(4,), **words)

    def steps(planned):
        return glmplan.step_time(planned, decode_requests=4, decode_context=500).seconds[0]

    def tpot(planned):
        return glmplan.predict(planned, users=4).figures["tpot"].value

    def played(planned):
        return glmplan.simulate(planned, "closed:4", requests=20).summary["tpot_mean_ms"]

    for ask in (steps, tpot, played):
        assert ask(calibrated) == pytest.approx(2 * ask(served), rel=0.05), ask.__name__
        assert ask(answer) == ask(calibrated), ask.__name__
    assert tpot(answer) == answer.users[-1].tpot.value


def test_shares_of_a_step_add_up_to_one_and_more_requests_take_longer(served):
    steps = glmplan.step_time(served, decode_requests=[1, 8, 64], decode_context=2048)
    assert sum(steps.shares.values()) == pytest.approx([1.0, 1.0, 1.0])
    assert (steps.seconds[1:] > steps.seconds[:-1]).all()


def test_a_table_of_runs_is_predicted_as_the_command_predicts_it(tmp_path, capsys):
    import pandas as pd

    frame = pd.DataFrame(
        {"id": ["a", "b"], "model": "llama-3.1-8b", "accelerator": "h100-sxm", "tp": 1, "engine": "vllm",
         "weights": "bf16", "concurrency": [1, 8], "input_tokens": [512, None], "output_tokens": 64}
    )  # fmt: skip
    found = glmplan.predict_table(frame)
    file = tmp_path / "runs.csv"
    frame.convert_dtypes().to_csv(file, index=False)
    from glmplan.cli import main

    with pytest.raises(SystemExit):
        main(["predict", "--runs", str(file), "--out", str(tmp_path / "out.csv")])
    said = pd.read_csv(tmp_path / "out.csv")
    assert found["id"].tolist() == ["a", "b"]
    assert found["tpot_mean_ms"].tolist() == pytest.approx(said["tpot_mean_ms"].tolist(), rel=1e-5)
    with pytest.warns(UserWarning, match="concurrency"):
        glmplan.predict_table(frame.rename(columns={"concurrency": "Concurrency"}))


def test_catalogues_list_names_and_frames():
    models = glmplan.models()
    assert "glm-5.1" in models and len(models) == len(models.to_frame()) == len(list(models))
    assert {"accelerator", "host"} == set(glmplan.hardware().to_frame()["kind"])
    assert repr(models).startswith(f"<{len(models)} models")


def test_the_blocks_of_the_guide_run_in_their_order():
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 6
    known: dict[str, object] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for block in blocks:
            exec(compile(block, str(GUIDE), "exec"), known)
    assert known["answer"].verdict == "fits"
