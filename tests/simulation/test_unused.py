"""Options without effect are refused, where they are read or where traffic meets a service."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.errors import SpecError
from glmplan.simulation.engine.settings import EngineSettings, TransferLink, scheduler_settings
from glmplan.simulation.traffic.sources import request_source
from glmplan.simulation.traffic.spec import Traffic, parse_traffic
from glmplan.simulation.unused import check_used

#: a value of each field that is not its default
OTHER = {
    "cv": 3.0, "on": 5.0, "off": 5.0, "profile": (1.0, 9.0), "speed": 2.0, "input": 300, "output": 70, "jitter": 0.5,
    "input_cv": 0.5, "output_cv": 0.5, "think": 3.0, "ramp": 3.0, "shared_prefix": 20, "turns": 3, "tool_wait": 1.0,
    "start": 50, "urgent": 0.5, "images": 0.5, "patience": 9.0,
}  # fmt: skip
ARRIVALS = "arrival_s,input_tokens,output_tokens\n" + "".join(f"{n},{90 + n},10\n" for n in range(9))
CONVERSATIONS = "session,wait_s,input_tokens,output_tokens\n" + "".join(f"{n // 2},1,{9 + n},10\n" for n in range(9))
LENGTHS = "input_tokens,output_tokens\n70,7\n80,8\n"


@pytest.fixture(params=["closed:2", "poisson:2/s", "constant:2/s", "gamma:2/s", "onoff:2/s", "daily:2/s", "sessions:2",
                        "sessions:2/s", "arrivals", "conversations,users=2", "conversations,rate=1"])  # fmt: skip
def spec(request, tmp_path):
    (tmp_path / "arrivals").write_text(ARRIVALS)
    (tmp_path / "conversations").write_text(CONVERSATIONS)
    named = request.param
    return named if ":" in named else f"trace:{tmp_path / named}"


def stream(traffic: Traffic) -> list[tuple[object, ...]]:
    """Return the first requests, each answered a second after its arrival."""
    source = request_source(traffic, 60, np.random.default_rng(1))
    made, arrivals = [], iter(source.arrivals)
    for _ in range(60):
        if (one := next(arrivals, None)) is None:
            break
        made.append((one.arrival, one.input, one.output, one.runs, one.priority, one.images, one.leaves))
        if source.after is not None:
            one.finish = one.arrival + 1.0
            follow = source.after(one, one.finish)
            arrivals = iter([*arrivals] + ([follow] if follow is not None else []))
    return made


@pytest.mark.parametrize("name", OTHER)
def test_a_field_of_traffic_changes_its_requests_or_is_refused(spec, name):
    plain = stream(parse_traffic(spec))
    try:
        changed = parse_traffic(spec, **{name: OTHER[name]})
    except SpecError as error:
        assert name in str(error)
        return
    if spec.startswith("trace") and name == "output":
        return  # the length of answers that a recording leaves out
    assert stream(changed) != plain


@pytest.mark.parametrize("name", ["input", "output", "jitter", "input_cv", "output_cv"])
def test_drawn_lengths_leave_no_others(tmp_path, name):
    (tmp_path / "lengths.csv").write_text(LENGTHS)
    with pytest.raises(SpecError, match=f"{name}: .*beside lengths"):
        parse_traffic("closed:2", lengths=str(tmp_path / "lengths.csv"), **{name: OTHER[name]})


@pytest.mark.parametrize("name", ["users", "rate"])
def test_recorded_arrivals_have_neither_users_nor_a_rate(tmp_path, name):
    (tmp_path / "arrivals").write_text(ARRIVALS)
    with pytest.raises(SpecError, match=f"{name}: .*only on conversations"):
        stream(parse_traffic(f"trace:{tmp_path / 'arrivals'},{name}=2"))


PLAIN, LINK = Traffic(kind="closed", users=2), TransferLink(1e9)
URGENT, IMAGES = (PLAIN.model_copy(update=one) for one in ({"urgent": 0.2}, {"images": 1.0}))


@pytest.mark.parametrize(
    ("engine", "settings", "traffic", "field"),
    [
        ("vllm", {}, IMAGES, "--image-time"),
        ("vllm", {"image_seconds": 0.06}, PLAIN, "--image-time"),
        ("vllm", {}, URGENT, "--urgent"),
        ("vllm", {"order": "priority"}, PLAIN, "--order"),
        ("vllm", {"order": "lpm", "prefix_caching": True}, PLAIN, "--order"),
        ("sglang", {"order": "lpm", "prefix_caching": False}, PLAIN, "--order"),
        ("vllm", {"host_link": LINK}, PLAIN, "--host-bandwidth"),
        ("vllm", {"link": LINK}, PLAIN, "--transfer"),
        ("vllm", {"prefill_max_requests": 2}, PLAIN, "--prefill-max-requests"),
        ("vllm", {"schedule_conservativeness": 0.5}, PLAIN, "--schedule-conservativeness"),
        ("sglang", {"reserve_full_isl": True}, PLAIN, "--reserve-full-isl"),
        ("vllm", {"routing": "least-loaded"}, PLAIN, "--routing"),
        ("vllm", {"routing": "least-loaded", "replicas": 2, "prefill_replicas": 1}, PLAIN, "--routing"),
        ("vllm", {"routing": "prefix-aware", "replicas": 2, "prefix_caching": False}, PLAIN, "--routing"),
    ],
)
def test_a_setting_needs_what_it_modifies(engine, settings, traffic, field):
    with pytest.raises(SpecError) as error:
        check_used(scheduler_settings(engine, **settings), traffic, settings)
    assert error.value.field == field


@pytest.mark.parametrize(
    ("engine", "settings", "traffic"),
    [
        ("vllm", {}, PLAIN),
        ("vllm", {"image_seconds": 0.06, "encoder_cards": 1}, IMAGES),
        ("sglang", {"order": "priority"}, URGENT),
        ("sglang", {"order": "lpm", "prefill_max_requests": 2, "schedule_conservativeness": 0.5}, PLAIN),
        ("vllm", {"link": LINK, "replicas": 3, "prefill_replicas": 1, "routing": "least-kv"}, PLAIN),
        ("vllm", {"host_link": LINK, "host_tokens": 100, "reserve_full_isl": True}, PLAIN),
    ],
)
def test_a_setting_beside_what_it_modifies_is_taken(engine, settings, traffic):
    check_used(scheduler_settings(engine, **settings), traffic, settings)


def test_cards_of_encoders_need_their_time():
    with pytest.raises(SpecError, match="--encoder-cards: 2 needs --image-time"):
        EngineSettings(encoder_cards=2)
