"""Files that programs write are read line by line, with the same result as any TOML file."""

from __future__ import annotations

import pytest

from glmplan.errors import SpecError
from glmplan.facts.files import read_lines_toml, read_toml
from glmplan.facts.folders import data_folder

FITS = sorted((data_folder("calibration") / "fits" / "step").glob("*.toml"))


@pytest.mark.parametrize("path", FITS, ids=lambda path: path.name)
def test_every_shipped_fit_reads_the_same_either_way(path):
    assert read_lines_toml(path) == read_toml(path)


@pytest.mark.parametrize(
    "text",
    [
        'a = 1\n[b.c]\n"d e" = [1, -2.5]\n# a comment\nf = "x = y"\n',
        "a = [\n  1,\n  2,\n]\n",
        "[[rows]]\na = 1\n[[rows]]\na = 2\n",
        '["quoted name"]\na = 1\n',
        "a = 1_000\nb = 2026-04-12\nc = 'single'\n",
        "a.b = 1\n",
    ],
)
def test_what_is_not_written_line_by_line_is_read_as_toml(tmp_path, text):
    path = tmp_path / "a.toml"
    path.write_text(text)
    assert read_lines_toml(path) == read_toml(path)


@pytest.mark.parametrize("text", ["a = ", "[a", "nothing"])
def test_what_is_no_toml_is_refused_with_the_file(tmp_path, text):
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(SpecError, match=r"broken\.toml"):
        read_lines_toml(path)
