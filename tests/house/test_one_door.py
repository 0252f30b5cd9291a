"""What comes from outside comes in through one door and goes out through one: files are read in `catalog.files`, texts
are written to the terminal by `cli.screen`."""

import ast
import sys

#: calls that open or read a file; `os.open` to write a journal and to close a pipe is told from reading by its flags
READS = {"open", "read_text", "read_bytes", "load_workbook", "from_file", "loadtxt", "genfromtxt", "read_csv",
         "memmap", "fromfile", "ZipFile", "read_parquet"}  # fmt: skip
DOOR = "catalog.files"
#: where a library opens a file itself: memory maps of kernel tables and a tokenizer that the user names
OTHERS = {
    "measure.prompts": "Tokenizer.from_file",
    # a stream that came in through the door, and parts of the archive in it
    "catalog.files": ("zipfile.ZipFile", "archive.open"),
    # the sources of the engine, before anything of the project is imported
    "simulation.compiled": "source.read_bytes",
    # the copy that is written
    "present.sheets.fill": "zipfile.ZipFile",
}


def called(node):
    """Name of what a call calls, as it is written."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def reads(node):
    name = called(node)
    if name == "os.open":
        return "O_WRONLY" not in ast.unparse(node)
    if node.__class__ is ast.Call and node.args and called(node.args[0]) == "io.BytesIO":
        return False  # bytes that came in through the door
    if name == "np.load":
        return True
    # by their bare names the other two are those of the door
    return name == "open" or ("." in name and name.rpartition(".")[2] in READS)


def _told(name):
    told = OTHERS.get(name, ())
    return (told,) if isinstance(told, str) else told


def test_files_are_read_through_one_door(sources):
    found = [
        f"{source.name}:{node.lineno}: {called(node)}"
        for source in sources
        for node in ast.walk(source.tree)
        if source.name != DOOR and reads(node) and called(node) not in (*_told(source.name), "self._open")
    ]
    assert not found, "\n".join(["", *found])


def test_the_door_itself_is_found_by_this_test(sources):
    door = next(source for source in sources if source.name == DOOR)
    assert any(reads(node) for node in ast.walk(door.tree))


def test_the_terminal_is_written_to_in_one_place(sources):
    words = ("typer.echo", "print", "Console", "sys.stdout.write", "sys.stderr.write", "click.echo")
    found = [
        f"{source.name}:{node.lineno}: {called(node)}"
        for source in sources
        for node in ast.walk(source.tree)
        if source.name.split(".")[0] == "cli" and source.name != "cli.screen" and called(node) in words
    ]
    # `run` prints what `error_words` has made fit for a terminal
    assert [one for one in found if not one.startswith("cli.run:")] == []


#: where else rows of CSV are written: one line at a time, with `safe_cell`, and tables that the project reads again
ROWS = {"catalog.tables", "purchase.sweep", "present.sheets.fill", "calibrate.backtest.holdout",
        "calibrate.step.crossvalidate", "calibrate.step.write"}  # fmt: skip


def test_no_table_is_written_past_the_check_for_formulas(sources):
    writers = {s.name for s in sources for node in ast.walk(s.tree) if called(node) in ("csv.writer", "csv.DictWriter")}
    assert writers == ROWS


def test_durations_are_taken_from_clocks_that_nobody_sets(sources):
    wall = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.datetime.now"}
    users = {s.name for s in sources for node in ast.walk(s.tree) if called(node) in wall}
    assert users == {"service.jobs"}  # times that outlive a restart; `test_jobs.py` steps the clock


#: how the door is called
DOORS = {
    "open_file", "parse_json", "read_bytes", "read_entries", "read_json", "read_log", "read_packed", "read_rows",
    "read_table", "read_text", "read_toml", "text_lines",
}  # fmt: skip
#: module that reads what people bring → readers of `tools/fuzz.py` that break it
FUZZED = {
    "simulation.fleets.spec": ["fleet"],
    "catalog.entries.accelerators": ("accelerator",),
    "catalog.entries.catalog": ("accelerator", "host"),
    "catalog.entries.hosts": ("host",),
    "catalog.entries.models": ("model",),
    "catalog.entries.prices": ("prices",),
    "measure.journal": ("journal",),
    "measure.validation": ("plan",),
    "prediction.step_models": ("site",),
    "io.machines.dump_kinds": ("dump", "machine"),
    "io.models.drafters": ("drafter",),
    "io.models.gguf": ("gguf",),
    "io.models.hf_config": ("config",),
    "io.models.safetensors_header": ("index", "safetensors"),
    "io.runs.importers": ("runs",),
    "present.decision_parts": ("report",),
    "io.runs.table": ("table",),
    "simulation.traffic.conversations": ("conversations",),
    "simulation.traffic.load_generators": ("traffic",),
    "simulation.traffic.sources": ("lengths",),
    "simulation.traffic.spec": ("traffic",),
    "simulation.traffic.traces": ("trace",),
    "present.sheets.fill": ("quote",),
    "present.sheets.option": ("sized",),
    "present.sheets.quote_table": ("mapping",),
    "purchase.axes": ("sweep",),
    "purchase.hybrid": ("portfolio",),
    "purchase.inventory": ("inventory",),
    "purchase.sweep": ("part",),
}
#: modules that call a reader above by its name, carry what it reads to workers, or read what no file holds: answers of
#: servers, which hostile servers break in `tests/measure`, and /proc
OTHER = {"cli.calibrate", "cli.predict", "cli.reproduce", "cli.serve", "catalog.files", "measure.prompts",
"measure.server_facts",
         "service.guard",          "io.machines.this_machine", "present.hardware_page", "purchase.axes"}  # fmt: skip
#: modules that read only what ships with the project, or what `glmplan calibrate` wrote
SHIPPED = {
    "catalog.entries.prices", "catalog.entries.names", "catalog.entries.use_cases", "catalog.files", "planner.evidence",
    "planner.hazards", "prediction.effects", "service.form", "present.sheets.plan_book",
    "prediction.offloaded_rows", "prediction.evidence", "prediction.deployment",
    "io.models.checkpoints", "io.runs.settings", "io.runs.ledger", "io.runs.importers.startup_logs",
    "io.runs.columns", "simulation.compiled",
}  # fmt: skip
SHIPPED_ROOMS = ("calibrate.", "catalog.engines.", "costs.")


def test_every_reader_of_what_people_bring_is_fuzzed(sources, root):
    sys.path.insert(0, str(root / "tools"))
    import fuzz

    found = {
        source.name
        for source in sources
        if any(called(node).rpartition(".")[2] in DOORS for node in ast.walk(source.tree))
    }
    rest = {name for name in found - set(FUZZED) - OTHER - SHIPPED if not name.startswith(SHIPPED_ROOMS)}
    assert not rest, f"add a reader and a sample to tools/fuzz.py: {sorted(rest)}"
    assert not (set(FUZZED) | OTHER | SHIPPED) - found
    broken = {name for names in FUZZED.values() for name in names}
    assert broken | {"json"} == set(fuzz.readers())


def test_no_path_is_asked_whether_it_exists_by_methods_that_raise(sources):
    """Those of `Path` raise for a name too long or a folder without permission (Python 3.11); `os.path` answers no."""
    found = [
        f"{source.name}:{node.lineno}: {called(node)}"
        for source in sources
        for node in ast.walk(source.tree)
        # a member of an archive is asked whether it is a folder
        if called(node).endswith((".is_file", ".is_dir", ".exists"))
        and called(node) not in ("part.is_dir", "os.path.exists")
    ]
    assert not found, "\n".join(["", *found])


def test_our_own_processes_take_no_modules_from_the_current_folder(sources):
    """`python -m` looks there first; a folder of other people may hold a json.py."""
    started = [
        [ast.unparse(word) for word in words[:2]]
        for source in sources
        for node in ast.walk(source.tree)
        for words in [getattr(node, "elts", getattr(node, "args", None))]
        if isinstance(words, list) and words and ast.unparse(words[0]) == "sys.executable"
    ]
    assert len(started) == 2 and all(second == "'-P'" for _, second in started)
