"""Own machines: each pair is planned as `fit` plans it, and the assignment is the best one."""

from __future__ import annotations

import shutil
from datetime import date
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from glmplan import fit
from glmplan.catalog.files import data_folder
from glmplan.errors import SpecError
from glmplan.present.size_text import size_content
from glmplan.purchase.inventory import Inventory, OwnMachine, WantedModel, assigned, pair_rows, pairs_of, read_inventory
from glmplan.purchase.money import money_of
from glmplan.purchase.size import sized
from glmplan.purchase.size_question import read_size

DATA = Path(__file__).parents[1] / "data"
MONEY = money_of(today=date(2026, 11, 22))


def written(folder, text):
    path = folder / "machines.toml"
    path.write_text(text)
    return path


def goals_of(machines, safe, rates, users):
    """Return served shares, idle machines and relative rates, in the order of the objective."""
    best = rates.max(axis=0)
    relative = np.divide(rates, best, out=np.zeros_like(rates), where=best > 0)
    served = np.minimum((machines * safe).sum(axis=0) / users, 1.0).sum()
    return round(float(served), 6), -int(machines.sum()), round(float((machines * relative).sum()), 6)


@pytest.mark.parametrize("seed", range(8))
def test_the_assignment_is_the_best_of_all(seed):
    draw = np.random.default_rng(seed)
    counts, users = draw.integers(1, 3, 2), draw.integers(1, 12, 2)
    safe, rates = draw.integers(0, 10, (2, 2)), draw.uniform(5, 50, (2, 2))
    rates = np.where(safe > 0, rates, 0.0)
    own = Inventory(
        tuple(OwnMachine(f"{one}xl40s", int(one), name=f"m{place}") for place, one in enumerate(counts)),
        tuple(WantedModel("llama-3.1-8b", int(one), name=f"w{place}") for place, one in enumerate(users)),
        0.95,
    )
    pairs = tuple(SimpleNamespace(safe=int(a), rate=float(b)) for a, b in zip(safe.flat, rates.flat, strict=True))
    found = assigned(own, pairs)
    every = (np.array(one).reshape(2, 2) for one in product(range(3), repeat=4))
    possible = [one for one in every if (one.sum(axis=1) <= counts).all() and not one[safe == 0].any()]
    best = max(goals_of(one, safe, rates, users) for one in possible)
    assert goals_of(found.machines, safe, rates, users) == best
    assert (found.machines.sum(axis=1) <= counts).all()


def test_two_machines_serve_what_one_cannot():
    own = Inventory((OwnMachine("1xl40s", 3),), (WantedModel("llama-3.1-8b", 20),), 0.95)
    found = assigned(own, (SimpleNamespace(safe=8, rate=30.0),))
    assert found.machines.tolist() == [[3]]
    assert found.served.tolist() == [1.0]


def test_a_pair_is_what_fit_answers(tmp_path):
    file = written(
        tmp_path,
        'probability = 0.8\n[[machine]]\non = "1xl40s"\npower-limit = "300W"\n'
        '[[model]]\nmodel = "llama-3.1-8b"\nusers = 4\ninput = 1000\noutput = 100\n',
    )
    own = read_inventory(file)
    pairs = pairs_of(own, MONEY)
    [row] = pair_rows(pairs, assigned(own, pairs))
    answer = fit("llama-3.1-8b", "1xl40s", users=4, input=1000, output=100, power_limit="300W", probability=0.8)
    assert row["safe_users"] == answer.safe.users
    assert row["verdict"] == answer.verdict
    assert row["user_tokens_per_s"] == answer.users[-1].user_rate.value
    assert row["machines_assigned"] == 1


def test_options_of_the_command_hold_for_every_model(tmp_path):
    file = written(tmp_path, '[[machine]]\non = "1xl40s"\n[[model]]\nmodel = "llama-3.1-8b"\ninput = 1000\n')
    assert read_inventory(file, {"input": 500, "engine": "sglang"}).models[0].options == {
        "input": 500,
        "engine": "sglang",
    }


def test_a_file_of_a_machine_is_found_beside_the_inventory(tmp_path):
    shutil.copy(data_folder("hardware_db") / "accelerators/l40s.toml", tmp_path / "card.toml")
    file = written(tmp_path, '[[machine]]\non = "2xcard.toml"\n')
    [machine] = read_inventory(file, models=False).machines
    assert machine.resolved().count == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[[machine]]\non = "1xl40z"\n[[model]]\nmodel = "llama-3.1-8b"', ("machine 1", "l40z", "l40s")),
        ('[[machine]]\non = "1xl40s"\n[[model]]\nmodel = "llama-3.1-8c"', ("model 1", "llama-3.1-8c", "llama-3.1-8b")),
        ('[[machine]]\non = "1xl40s"\n[[model]]\nmodel = "llama-3.1-8b"\nimput = 5', ("model 1", "imput", "input")),
        ('[[machine]]\non = "1xl40s"\ncounts = 2\n[[model]]\nmodel = "llama-3.1-8b"', ("machine 1", "counts", "count")),
        ('[[machine]]\non = "1xl40s"\n', ("model", "needs at least one [[model]]")),
        ('[[machines]]\non = "1xl40s"\n', ("machines", "machine")),
        ('[[machine]]\non = "1xl40s"\n[[machine]]\non = "1xl40s"\n', ("1xl40s", "name")),
        ('[[machine]]\non = "1xl40s"\ncount = 0\n[[model]]\nmodel = "llama-3.1-8b"', ("machine 1 count", "0")),
    ],
)  # fmt: skip
def test_an_error_names_the_file_the_field_and_the_nearest_choice(tmp_path, text, words):
    file = written(tmp_path, text)
    with pytest.raises(SpecError) as caught:
        read_inventory(file, models="name" not in words)
    for word in ("machines.toml", *words):
        assert word in str(caught.value)


def test_size_takes_no_more_machines_than_there_are(tmp_path):
    file = written(tmp_path, '[[machine]]\non = "1xl40s"\ncount = 2\n')
    asked = {"users": 64, "input": 1000, "output": 100, "weights": "bf16"}
    slo = "tpot p95 < 60 ms"
    own = sized(read_size("llama-3.1-8b", slo, inventory=file, **asked), MONEY)
    free = sized(read_size("llama-3.1-8b", slo, only="1xl40s", **asked), MONEY)
    assert free.options[0].machines > 2
    assert own.options == ()
    few = sized(read_size("llama-3.1-8b", slo, inventory=file, **{**asked, "users": 4}), MONEY)
    assert few.options[0].machines == 1
    assert few.options[0].way.paid == "own"
    # electricity is the only cost of a machine that is there
    assert few.options[0].way.usd == pytest.approx(float(few.options[0].way.month.power))


def test_size_refuses_other_machines_beside_an_inventory(tmp_path):
    file = written(tmp_path, '[[machine]]\non = "1xl40s"\n')
    for field, given in (("--only", {"only": "1xl40s"}), ("--kind", {"kind": "rent"})):
        with pytest.raises(SpecError, match=field):
            read_size("llama-3.1-8b", "tpot p95 < 45 ms", users=4, inventory=file, **given)


def test_a_model_larger_than_the_accelerators_is_planned_beside_host_memory(tmp_path):
    shutil.copy(DATA / "hosts" / "desktop.toml", tmp_path)
    text = '[[machine]]\non = "desktop.toml"\n[[model]]\nmodel = "gpt-oss-120b"\nusers = 2\n'
    [found] = pairs_of(read_inventory(written(tmp_path, text)), MONEY)
    assert (found.verdict, found.answer.asked.engine) == ("fits", "llama.cpp")
    assert found.answer.asked.settings.host_experts > 0
    [stated] = pairs_of(read_inventory(written(tmp_path, text + 'engine = "vllm"\n')), MONEY)
    assert stated.verdict == "does_not_fit"


def test_an_own_machine_of_several_kinds_is_said_to_have_unlike_stages(tmp_path):
    for on, said in (("1xrtx-5090+1xrtx-5080", True), ("2xrtx-5090", False)):
        file = written(tmp_path, f'[[machine]]\non = "{on}"\n')
        asked = read_size("qwen3-30b-a3b-fp8", "tpot p95 < 50 ms", users=2, inventory=file)
        kinds = size_content(sized(asked, MONEY, answers=1))["not_looked_at"]
        assert any("--pp" in kind for kind in kinds) is said
