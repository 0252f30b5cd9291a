"""A table takes the names that a plan and `runs import` take, and says what it takes for granted."""

from __future__ import annotations

import pytest

from glmplan.catalog.entries.models import load_model, model_names
from glmplan.io.runs.ledger import known_names, with_known_names
from glmplan.io.runs.table import read_runs, run_from_row

ROW = {"id": "a", "engine": "vllm", "input_tokens": "1024", "output_tokens": "256", "concurrency": "4"}


@pytest.mark.parametrize(
    ("cells", "model", "weights", "part", "count"),
    [
        ({"model": "glm-5.1-nvfp4", "accelerator": "6xrtx-pro-6000-ws"}, "glm-5.1", "nvfp4", "rtx-pro-6000-ws", 6),
        ({"model": "llama-3.1-8b-fp8", "accelerator": "l40s", "weights": "bf16"}, "llama-3.1-8b", "bf16", "l40s", None),
        ({"model": "llama-3.1-8b", "accelerator": "2xl40s", "accelerator_count": "1"}, "llama-3.1-8b", None, "l40s", 1),
        ({"model": "glm-5.1", "checkpoint": "nvidia/GLM-5.1-NVFP4", "accelerator": "l40s"}, "glm-5.1", "nvfp4", "l40s",
         None),
        ({"model": "glm-5.1", "checkpoint": "NVFP4-MTP", "accelerator": "l40s"}, "glm-5.1", "nvfp4-mtp", "l40s", None),
        ({"model": "glm-5.1", "checkpoint": "nvfp4", "weights": "fp8", "accelerator": "l40s"}, "glm-5.1", "fp8", "l40s",
         None),
        ({"model": "glm-5.1", "checkpoint": "some/body", "accelerator": "l40s"}, "glm-5.1", None, "l40s", None),
        ({"model": "nobody-knows", "accelerator": "nothing"}, "nobody-knows", None, "nothing", None),
    ],
)  # fmt: skip
def test_names_are_read_as_a_plan_reads_them(cells, model, weights, part, count):
    run = known_names(run_from_row(ROW | cells))
    assert (run.model, run.weights, run.accelerator, run.accelerator_count) == (model, weights, part, count)


@pytest.mark.parametrize("model", model_names())
def test_a_checkpoint_of_the_catalogue_is_taken_by_its_own_name(model):
    for one in load_model(model).checkpoints:
        assert run_from_row(ROW | {"model": model, "accelerator": "l40s", "weights": one.name}).weights == one.name


def test_weights_that_are_not_stated_are_told(tmp_path):
    file = tmp_path / "runs.csv"
    file.write_text(
        "id,model,accelerator,weights,checkpoint\na,llama-3.1-8b,h100-sxm,,\nb,llama-3.1-8b,h100-sxm,fp8,\n"
        "c,llama-3.1-8b,h100-sxm,,some/body\n"
    )
    table = with_known_names(read_runs(file))
    assert [text for text in table.warnings if "row c" in text and "'some/body' is not in the catalogue" in text]
    assert [text for text in table.warnings if "row a" in text and "bf16" in text]
    assert not [text for text in table.warnings if "row b" in text]
