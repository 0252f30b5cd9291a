"""`glmplan fit` on a terminal and in a pipe: the first screen, the page and its sections, help and versions."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import threading
from importlib.metadata import version

import pytest

from glmplan.cli import COMMANDS
from glmplan.present.answer_text import SECTIONS
from glmplan.present.deployment_files import PLATFORMS

RUN = "import sys; from glmplan.cli import main; main(sys.argv[1:])"
ASKED = ("fit", "llama-3.1-8b", "--on", "1xh100-sxm")
PLAIN = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "TERM")}
#: what hangs takes longer, on however busy a machine [s]
HANGS = 300
ANSI = re.compile(r"\033\[[0-9;]*m")


def piped(*words, **settings):
    done = subprocess.run(
        [sys.executable, "-c", RUN, *words], capture_output=True, text=True, timeout=HANGS,
        env={**PLAIN, "TERM": "xterm", **settings},
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done


def on_terminal(*words, columns=80, **settings):
    """What a command prints on a terminal of so many columns."""
    import fcntl
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    env = {**PLAIN, "TERM": "xterm", **settings}
    with subprocess.Popen([sys.executable, "-c", RUN, *words], stdout=theirs, stderr=theirs, env=env) as running:
        os.close(theirs)
        # leaving the block waits for the program, which waits for us as long as what it writes is not read
        late = threading.Timer(HANGS, running.kill)
        late.start()
        parts = []
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # Linux says so when the other end is closed
                break
            if not part:
                break
            parts.append(part)
        code = running.wait()
        late.cancel()
    os.close(ours)
    assert code >= 0, f"ended by signal {-code}: it takes more than {HANGS} s"
    return b"".join(parts).decode().replace("\r\n", "\n")


@pytest.fixture(scope="module")
def page():
    return piped(*ASKED, "--full").stdout


@pytest.fixture(scope="module")
def screen():
    return piped(*ASKED).stdout


def test_the_first_screen_is_what_is_printed_and_names_the_page(screen, page):
    assert len(screen.splitlines()) <= 30 < len(page.splitlines())
    assert f"--full: {len(page.splitlines())} lines" in screen


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_is_its_part_of_the_page(name, page):
    text = piped(*ASKED, "--section", name).stdout
    if text.startswith("not in this answer"):
        assert name not in re.search(r"--section (\S+)", piped(*ASKED).stdout)[1].split("|")
        return
    assert f"\n\n{text}" in page and text.strip()


def test_sections_are_printed_in_the_order_in_which_they_are_asked_for(page):
    text = piped(*ASKED, "--section", "start,memory", "--section", "start").stdout
    start, memory = piped(*ASKED, "--section", "start").stdout, piped(*ASKED, "--section", "memory").stdout
    assert text == f"{start}\n{memory}"


def test_the_help_names_the_sections_of_the_page_and_the_platforms():
    text = "".join(piped("fit", "--help").stdout.split())
    assert f"withcommas:{','.join(SECTIONS)}." in text and f"withcommasfor:{','.join(PLATFORMS)}." in text


def test_a_pipe_is_plain_and_a_hundred_columns_wide(screen):
    assert not ANSI.search(screen)
    assert piped(*ASKED, COLUMNS="70").stdout == screen


@pytest.mark.parametrize("columns", [40, 72, 120])
def test_a_terminal_is_written_to_its_width_but_never_below_sixty(columns):
    text = ANSI.sub("", on_terminal(*ASKED, columns=columns))
    widest = max(map(len, text.splitlines()))
    assert max(columns, 60) - 12 < widest <= max(columns, 60)


def test_a_terminal_has_colours_unless_no_color_is_set_or_it_is_dumb():
    coloured = on_terminal(*ASKED)
    assert "\033[1;32mFITS\033[0m" in coloured
    for settings in ({"NO_COLOR": "1"}, {"TERM": "dumb"}):
        plain = on_terminal(*ASKED, **settings)
        assert not ANSI.search(plain) and plain == ANSI.sub("", coloured)


def test_an_error_is_coloured_on_a_terminal_only():
    assert on_terminal("fit", "glm-9", "--on", "1xh100-sxm").startswith("\033[1;31mglmplan:\033[0m model: 'glm-9'")
    assert piped("fit", "glm-9", "--on", "1xh100-sxm").stderr.startswith("glmplan: model: 'glm-9'")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--full", "--section", "users"], "--section"),
        (["--full", "--format", "json"], "--full"),
        (["--section", "users", "--format", "csv"], "--section"),
        (["--section", "memory,prices"], "prices"),
        (["--deploy", "compose,swarm", "--out", "x"], "swarm"),
    ],
)
def test_views_that_cannot_both_be_meant_are_refused(words, says):
    done = piped(*ASKED, *words)
    assert done.returncode == 2 and says in done.stderr and not done.stdout


@pytest.mark.parametrize("words", [[], *([name] for name in COMMANDS), ["hardware", "show"], ["models", "list"]])
def test_every_command_has_a_short_help_and_a_version(words):
    long, short = piped(*words, "--help"), piped(*words, "-h")
    assert long.returncode == short.returncode == 0
    assert short.stdout == long.stdout and "Usage: glmplan" in short.stdout
    assert piped(*words, "--version").stdout == f"{version('glmplan')}\n"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["fit", "glm-5.1", "--on", "1xa100"], "a100-80gb-sxm"),
        (["fit", "glm-5.1", "--on", "8xa100"], "8xa100-80gb-sxm"),
        (["hardware", "show", "a100"], "a100-80gb-sxm"),
        (["fit", "glm-5.1", "--on", "1xh100"], "h100-sxm"),
        (["fit", "glm-5.1", "--on", "2xhgx-h200-8"], "16xh200-sxm"),
        (["fit", "glm-5.1", "--on", "3xdgx-h100"], "24xh100-sxm"),
        (["models", "show", "glm5.1"], "glm-5.1"),
    ],
)
def test_an_unknown_name_says_first_what_was_meant_in_an_order_that_is_always_the_same(words, meant):
    said = {piped(*words, PYTHONHASHSEED=str(seed)).stderr for seed in (1, 2)}
    assert len(said) == 1
    assert re.search(rf"(nearest|the parts of \d+): {re.escape(meant)}(,|\n)", said.pop())


def test_deployment_files_are_written_into_a_folder_and_named(tmp_path):
    platforms = ("--deploy", "compose,slurm", "--deploy", "slurm")
    done = piped(*ASKED, "--section", "start", *platforms, "--out", str(tmp_path / "d"))
    assert done.returncode == 0, done.stderr
    paths = sorted(str(path) for path in (tmp_path / "d").iterdir())
    assert [path.rpartition("/")[2] for path in paths] == ["compose.yaml", "llama-3-1-8b-bf16.sbatch"]
    assert done.stdout.splitlines()[-2:] == paths


def test_a_platform_without_a_folder_is_refused():
    done = piped(*ASKED, "--deploy", "compose")
    assert done.returncode == 2 and "--out" in done.stderr and not done.stdout
