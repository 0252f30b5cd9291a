"""The catalogue of models: names, files with mistakes, the commands."""

from __future__ import annotations

import json

import pytest

from glmplan.catalog.entries.models import load_model, load_model_file, model_names
from glmplan.catalog.files import data_folder
from glmplan.cli import main
from glmplan.errors import SpecError, UnknownName


def run(capsys, *words):
    with pytest.raises(SystemExit) as stop:
        main(["models", *words])
    out, err = capsys.readouterr()
    return stop.value.code or 0, out, err


def changed(tmp_path, old, new):
    text = (data_folder("model_specs") / "glm-5.1.toml").read_text()
    assert old in text
    (tmp_path / "glm-5.1.toml").write_text(text.replace(old, new, 1))
    return tmp_path / "glm-5.1.toml"


@pytest.mark.parametrize("name", ["GLM-5.1", "zai-org/GLM-5.1", "glm-5.1"])
def test_a_model_is_found_by_name_and_hugging_face_name(name):
    assert load_model(name).name == "glm-5.1"


@pytest.mark.parametrize("name", ["", "..", "../pyproject", "glm-5.1.toml", "glm", "*"])
def test_a_name_that_is_not_there_is_refused(name):
    with pytest.raises(UnknownName):
        load_model(name)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("hidden = 6144", "hiden = 6144", r"hidden: Field required"),
        ("hidden = 6144", "hidden = -1", r"hidden: .*greater than 0"),
        ("hidden = 6144", "hidden = nan", r"hidden"),
        ("sparse*75", "spares*75", r"spares"),
        ("sparse*75", "(sparse*75", r"unbalanced"),
        ('routed_experts = "nvfp4"', 'routed_experts = "nvfp5"', r"nvfp5.*nearest: nvfp4"),
        ('routed_experts = "nvfp4"', 'routed_expert = "nvfp4"', r"routed_expert"),
        ("layers = [78]", "layers = [79]", r"layer 79"),
        ('"1404.406 GiB"', '"1404.406 gibi"', r"gibi"),
        ('default_checkpoint = "bf16"', 'default_checkpoint = "bf17"', r"bf17"),
        ("topk = 8", "topk = 300", r"topk 300 is larger than experts 256"),
        ("[mtp]", "[mtp", r"not valid TOML"),
    ],
)
def test_a_mistake_in_a_model_file_is_named(tmp_path, old, new, message):
    with pytest.raises(SpecError, match=rf"glm-5.1.toml.*{message}"):
        load_model_file(changed(tmp_path, old, new))


def test_list_shows_every_model(capsys):
    code, out, _ = run(capsys, "list", "--format", "json")
    assert code == 0
    assert [row["name"] for row in json.loads(out)] == list(model_names())


def test_show_prints_parameters_cache_sizes_and_disagreements(capsys):
    code, out, _ = run(capsys, "show", "glm-5.1")
    assert code == 0
    for text in ("743.91 B", "40.83 B", "100,152", "62,252", "1,507.73", "434 GiB (-0.0%)", "7168"):
        assert text in out
    code, out, _ = run(capsys, "show", "glm-5.1-nvfp4", "--format", "json")
    facts = json.loads(out)
    assert facts["checkpoint"] == "nvfp4"
    assert facts["parameters"]["total"] == 743911218432


def test_an_unknown_model_exits_with_2_and_the_nearest_names(capsys):
    code, out, err = run(capsys, "show", "glm-6")
    assert (code, out) == (2, "")
    assert "glm-5.1" in err
    assert "Traceback" not in err


def test_import_writes_a_file_that_check_accepts(tmp_path, capsys):
    from tests.io.models.configs import GLM_5_2

    (tmp_path / "config.json").write_text(json.dumps(GLM_5_2))
    target = tmp_path / "own.toml"
    code, _, err = run(capsys, "import", str(tmp_path / "config.json"), "--name", "own", "--out", str(target))
    assert (code, err) == (0, "")
    assert load_model_file(target).name == "own"
    code, out, _ = run(capsys, "check", str(target))
    assert code == 0
    assert "78 layers" in out


def test_check_refuses_a_wrong_file(tmp_path, capsys):
    code, _, err = run(capsys, "check", str(changed(tmp_path, "hidden = 6144", "hidden = 0")))
    assert code == 2
    assert "hidden" in err


def test_no_alias_is_a_model_with_one_of_its_checkpoints_or_a_number_of_a_part():
    """Such words are looked up first, without reading every file for its aliases."""
    from glmplan.catalog.entries.accelerators import accelerator_names
    from glmplan.catalog.entries.hosts import host_aliases, split_count
    from glmplan.catalog.entries.models import load_model, model_aliases, model_names

    for alias in model_aliases():
        cuts = [place for place, sign in enumerate(alias) if sign in "-:@" and alias[:place] in model_names()]
        assert not any(load_model(alias[:cut]).checkpoint(alias[cut + 1 :]) for cut in cuts), alias
    assert not [
        alias for alias in host_aliases() if split_count(alias)[1] in accelerator_names() and alias[0].isdigit()
    ]
