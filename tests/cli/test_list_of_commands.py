"""The list of commands is whole, whichever command is imported; an answer imports the command asked for alone."""

import subprocess
import sys

import pytest

from glmplan.cli import COMMANDS, main


@pytest.mark.parametrize("words", [["--help"], ["-h"], [], ["--help", "fit"]])
def test_the_list_names_every_command_with_its_line(capsys, words):
    with pytest.raises(SystemExit):
        main(words)
    said = " ".join("".join(capsys.readouterr()).split())
    for name, (_, line) in COMMANDS.items():
        # a long line is cut where the list has no room
        assert f" {name} {line[:30]}" in said


def test_a_wrong_command_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["fitt"])
    assert ended.value.code == 2
    assert "fitt" in capsys.readouterr().err


def test_one_command_is_imported_and_neither_plots_nor_tables_nor_graphs_for_a_fit():
    code = """if True:
        import contextlib, io, sys
        from glmplan.cli import COMMANDS, main
        with contextlib.suppress(SystemExit), contextlib.redirect_stdout(io.StringIO()):
            main(["fit", "llama-3.1-8b", "--on", "1xh100-sxm"])
        other = {module for module, _ in COMMANDS.values()} - {"glmplan.cli.fit"}
        heavy = {"scipy", "pandas", "altair", "networkx", "fastapi", "openpyxl", "rich"}
        print(sorted((other | heavy) & sys.modules.keys()))
    """
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"
