"""Two steps of a ladder predict the others: judged against a server whose times are known, not against a clock."""

from __future__ import annotations

import numpy as np
import pytest

from glmplan.catalog.entries.accelerators import load_accelerator
from glmplan.catalog.entries.models import load_model
from glmplan.io.models.checkpoints import checkpoint_for
from glmplan.io.runs.columns import FIGURES
from glmplan.measure.predicted_steps import METRICS, Case, fit_site, predicted_steps
from glmplan.prediction.deployment import deploy
from glmplan.prediction.effects import COLUMNS, LEVELS, Effects, keys_of, load_effects
from glmplan.prediction.load import user_load
from glmplan.prediction.predict import predict

USERS = (1, 2, 4, 8)
KNOWN = (1, 4)


def ladder_on(part: str, engine: str, weights: str) -> list[Case]:
    model = load_model("llama-3.1-8b")
    machine = load_accelerator(part)
    if not machine.peak:
        # a probe measures what nobody publishes of a processor
        machine = machine.model_copy(update={"peak": {"bf16": 4e12}})
    served = deploy(model, checkpoint_for(model, weights, engine=engine), machine, engine=engine)
    loads = {
        users: user_load(served.defaults, users=users, input_tokens=16, output_tokens=64, requests=50 * users,
                         staggered=True)
        for users in USERS
    }  # fmt: skip
    return [Case(float(users), served, load) for users, load in loads.items()]


def differing(case: Case, **logs: float) -> Effects:
    """The shipped fit, of a server whose steps take other times by known factors, in logarithms."""
    fit = load_effects(case.deployment.engine)
    values = {level: dict(table) for level, table in fit.values.items()}
    key = keys_of(case.deployment)[LEVELS.index("configuration")]
    own = np.array(values["configuration"].get(key, np.zeros(len(COLUMNS))), dtype=float)
    values["configuration"][key] = own + [logs.get(name, 0.0) for name in COLUMNS]
    return Effects(values, fit.spread, fit.intervals, fit.domain, fit.widths)


def answers(cases: list[Case], effects: Effects) -> list[dict[str, float]]:
    """What a server of these times shows, in the columns of a ladder."""
    return [
        {name: predict(case.deployment, case.load, effects=effects).figures[FIGURES[name].predicted].value
         / FIGURES[name].factor for name in METRICS}
        for case in cases
    ]  # fmt: skip


#: the fit of accelerators holds this server in its form; processors start from kernels of their own form
_ACCELERATOR, _PROCESSOR = ("h100-sxm", "vllm", "bf16", 0.02), ("epyc-9004", "llama.cpp", "q8_0", 0.06)
_FACTORS = (1 / 1.3, 1.5, 2.0)


@pytest.mark.parametrize(
    ("part", "engine", "weights", "near", "factor"),
    [
        *((*_ACCELERATOR, factor) for factor in _FACTORS),
        *((*_PROCESSOR, factor) for factor in _FACTORS),
    ],
)  # fmt: skip
def test_two_steps_bring_the_others_of_a_server_that_is_slower_or_faster(part, engine, weights, near, factor):
    cases = ladder_on(part, engine, weights)
    truth = answers(cases, differing(cases[0], scale=float(np.log(factor))))
    known = [number for number, case in enumerate(cases) if case.level in KNOWN]
    site = fit_site([cases[number] for number in known], [truth[number] for number in known])
    before, after = predicted_steps(cases)[0], predicted_steps(cases, site=site)[0]
    for number, true in enumerate(truth):
        for name, value in true.items():
            assert after[number].middle[name] == pytest.approx(value, rel=near), (cases[number].level, name)
            assert after[number].low[name] < value < after[number].high[name]
            # without its own steps the server is not known, and the interval says so
            widths = [np.log(one[number].high[name] / one[number].low[name]) for one in (before, after)]
            assert widths[1] < widths[0]
        assert abs(before[number].middle["tpot_mean_ms"] / true["tpot_mean_ms"] - 1.0) > 0.2
