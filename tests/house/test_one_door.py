"""What comes from outside comes in through one door and goes out through one: files are read in `facts.files`, texts
are written to the terminal by `cli.screen`."""

import ast

#: calls that open or read a file; `os.open` to write a journal and to close a pipe is told from reading by its flags
READS = {"open", "read_text", "read_bytes", "load_workbook", "from_file", "loadtxt", "genfromtxt", "read_csv"}
DOOR = "facts.files"
#: where a library opens a file itself: memory maps of kernel tables and a tokenizer that the user names
OTHERS = {
    "measure.prompts": "Tokenizer.from_file",
    # parts of an archive that came in through the door
    "facts.archives": "archive.open",
}


def called(node):
    """Name of what a call calls, as it is written."""
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def reads(node):
    name = called(node)
    if name == "os.open":
        return "O_WRONLY" not in ast.unparse(node)
    # by their bare names the other two are those of the door
    return name == "open" or ("." in name and name.rpartition(".")[2] in READS)


def test_files_are_read_through_one_door(sources):
    found = [
        f"{source.name}:{node.lineno}: {called(node)}"
        for source in sources
        for node in ast.walk(source.tree)
        if source.name != DOOR and reads(node) and called(node) not in (OTHERS.get(source.name), "self._open")
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
