"""Which machine a row of a table ran on."""

import csv
from dataclasses import replace

import pytest

from glmplan.catalog.entries.hosts import host_aliases, host_names, implied_host
from glmplan.catalog.files import data_folder, plain_name
from glmplan.errors import UnknownFact
from glmplan.io.machines.resolve import resolve_machine
from glmplan.io.runs.ledger import described_hosts, host_of_row
from glmplan.io.runs.record import Run
from glmplan.prediction.from_row import question_of


def row(**fields):
    told = {"engine": "vllm", "concurrency": 4.0, "input_tokens": 1000.0, "output_tokens": 100.0, "tp": 8,
            "accelerator_count": 8, "protocol": "closed-loop"}  # fmt: skip
    return Run("a", "glm-5.1", "rtx-pro-6000-ws", **{**told, **fields})


def test_every_host_that_a_measured_row_names_is_known_or_described():
    texts = set()
    for path in (data_folder("calibration") / "measurements").glob("*.csv"):
        if path.name in {"collectives.csv", "pcie-topologies.csv"}:
            continue  # ledgers of transfers, which name hosts of the catalogue
        with open(path, newline="") as stream:
            texts |= {line["host"] for line in csv.DictReader(stream) if line.get("host")}
    assert len(texts) > 20
    known = {*host_names(), *host_aliases()}
    assert not [text for text in texts if text not in described_hosts() and plain_name(text) not in known]


def test_every_description_says_why_and_names_a_host_of_the_catalogue():
    for text, entry in described_hosts().items():
        assert entry["why"].strip() and entry["source"].strip(), text
        assert entry.get("host", "hgx-b200-8") in host_names(), text


def test_a_row_that_names_nothing_has_the_machine_of_a_plan_for_as_many_parts():
    for tp, pp, count in ((8, 1, 8), (4, 1, 4), (2, 3, 6), (4, 1, 8)):
        link = question_of(row(tp=tp, pp=pp, accelerator_count=count)).deployment.link
        assert link == resolve_machine(f"{count}xrtx-pro-6000-ws").links(tp=tp, pp=pp)


def test_a_row_that_names_a_host_has_its_links():
    tuned = question_of(row(host="dual Turin, NCCL graph XML")).deployment.link.tensor
    untuned = question_of(row(host="dual Turin, NCCL graph no-XML")).deployment.link.tensor
    named = question_of(row(host="workstation-2-switches-8")).deployment.link.tensor
    assert [link.basis for link in (tuned, untuned, named)] == [
        "pcie/ring/two-sockets-tuned", "pcie/ring/two-sockets", "pcie/ring/direct",
    ]  # fmt: skip
    assert named == resolve_machine("workstation-2-switches-8").links(tp=8).tensor


def test_copies_through_host_memory_are_seen_where_a_row_tells_them():
    off = "dual Turin 9575F direct-attach, 4 GPU/socket, 3x xGMI (Festr), NCCL_P2P_DISABLE=1 + channels"
    assert question_of(row(host=off)).deployment.link.tensor.basis == "pcie/ring/staged"


@pytest.mark.parametrize(
    ("text", "basis"),
    [
        ("2 NUMA nodes, NCCL_P2P_DISABLE=1", "pcie/ring/staged"),
        ("ForceP2P ON; custom AR off, NCCL P2P off, channels 16/32", "pcie/ring/staged"),
        ("8x local host, NCCL XML", "pcie/ring/two-sockets-tuned"),
        ("ForceP2P ON; custom AR off, NCCL P2P on/default", "pcie/ring/two-sockets"),
    ],
)
def test_a_set_up_is_read_from_a_text_that_names_no_machine(text, basis):
    assert question_of(row(host=text)).deployment.link.tensor.basis == basis


def test_a_host_that_nobody_described_is_said_to_be_assumed():
    question = question_of(row(host="a box under my desk"))
    assert "host 'a box under my desk' as 8xrtx-pro-6000-ws" in question.assumed
    assert host_of_row("a box under my desk", "rtx-pro-6000-ws", 8)[0] == implied_host("rtx-pro-6000-ws", 8)


def test_sglang_counts_replicas_of_attention_inside_tp():
    deployment = question_of(row(engine="sglang", tp=8, dp=8, accelerator_count=8)).deployment
    assert (deployment.tp, deployment.dp, deployment.count) == (1, 8, 8)
    others = question_of(row(engine="vllm", tp=2, dp=4, accelerator_count=8)).deployment
    assert (others.tp, others.dp, others.count) == (2, 4, 8)


def test_a_row_over_more_nodes_than_its_network_is_known_for_is_refused():
    with pytest.raises(UnknownFact, match="network between nodes"):
        question_of(replace(row(tp=16, accelerator_count=16), accelerator="h200-sxm"))
