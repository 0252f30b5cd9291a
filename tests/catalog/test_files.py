"""Files are read as the language's own reader reads them, and errors name the file."""

from __future__ import annotations

import os
import tomllib

import pytest

from glmplan.catalog.files import data_folder, read_toml, write_atomically, written_whole
from glmplan.errors import SpecError

FILES = sorted(
    path for folder in ("calibration", "hardware_db", "model_specs") for path in data_folder(folder).rglob("*.toml")
)


def test_every_shipped_file_reads_as_with_the_reader_of_the_language():
    assert len(FILES) > 100
    for path in FILES:
        with path.open("rb") as stream:
            assert read_toml(path) == tomllib.load(stream), path


@pytest.mark.parametrize("text", ["a = ", "[a", "nothing", "a = 1\na = 2", b"a = '\xff'"])
def test_what_is_no_toml_is_refused_with_the_file(tmp_path, text):
    path = tmp_path / "broken.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SpecError, match=r"broken\.toml"):
        read_toml(path)


@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_files_are_written_with_the_umask_of_the_user(tmp_path, mask):
    old = os.umask(mask)
    try:
        write_atomically(tmp_path / "a.txt", "whole")
        with written_whole(tmp_path / "b.txt") as stream:
            stream.write(b"whole")
    finally:
        os.umask(old)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o666 & ~mask}
    assert len(list(tmp_path.iterdir())) == 2
