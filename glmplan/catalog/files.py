"""The one door for files: reading within limits, errors that name file, place and remedy, writing in one step.

Whatever glmplan reads comes from somebody else. Through this door a file is regular, no larger than it may be (also
once unpacked), text in UTF-8, JSON of bounded depth with numbers of bounded length; everything else is a `SpecError`.
`tests/house` checks that no other module opens files for reading.
"""

from __future__ import annotations

import os
import re
import stat
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import rtoml

from glmplan.errors import GlmplanError, SpecError
from glmplan.units import GIB, ByteCount

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MOST_OF_A_FILE",
    "MOST_OF_A_PART",
    "MOST_OF_RUNS",
    "aliases_in",
    "archive_of",
    "data_folder",
    "fits_folder",
    "fits_in",
    "names_in",
    "open_file",
    "parse_json",
    "part_bytes",
    "part_pieces",
    "plain_name",
    "put_part",
    "read_bytes",
    "read_entries",
    "read_json",
    "read_log",
    "read_packed",
    "read_rows",
    "read_table",
    "read_text",
    "read_toml",
    "text_lines",
    "understood",
    "write_atomically",
    "written_whole",
]


#: what a config, a table of facts or a dump may hold at most; the largest that are published have a few MB [B]
MOST_OF_A_FILE = 64 * 2**20
#: what a file of runs or a log may hold at most, unpacked: as JSON it takes some twenty times that in memory [B]
MOST_OF_RUNS = 128 * 2**20
#: longest line of a trace, read one after another [B]
_LONGEST_LINE = 2**20
#: depth of JSON: published configs and results have ten levels at most [-]
_DEEPEST = 64
#: digits of a whole number: those of 64 bits have 20 [-]
_DIGITS = 25
_LONG_NUMBER = re.compile(rf"[0-9]{{{_DIGITS + 1}}}")
#: digits of other scripts
_OTHER_DIGITS = re.compile(r"(?![0-9])\d")
#: half of a pair that makes one character: no text can hold it
_HALF = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_PIECE = 2**20

#: what reading foreign content may raise in the standard library and in parsers
_FOREIGN = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, EOFError, MemoryError)


@contextmanager
def understood(file: str | Path, what: str = "file") -> Iterator[None]:
    """Turn whatever a reader trips over into an error that names the file.

    Examples
    --------
    >>> with understood("a.json", "table"):
    ...     int("x")
    Traceback (most recent call last):
    glmplan.errors.SpecError: a.json: cannot be understood as a table (invalid literal for int() with base 10: 'x'); ...
    """
    try:
        yield
    except GlmplanError:
        raise
    except OSError as error:
        raise _unreadable(error, file) from None
    except Exception as error:
        if not isinstance(error, _FOREIGN) and type(error).__module__.partition(".")[0] not in (
            "_csv",
            "struct",
            "zlib",
        ):
            raise
        said = f"{error}"[:160] or type(error).__name__
        words = f"cannot be understood as a {what} ({said}); check that it is whole and what it should be"
        raise SpecError(words, file=file) from error


@contextmanager
def open_file(path: str | Path) -> Iterator[tuple[BinaryIO, int]]:
    """Open a regular file for reading; never waits for a pipe or a device.

    Yields: The file and how much it holds, [B].

    Examples
    --------
    >>> with open_file("/dev/null") as (stream, size):
    ...     pass
    Traceback (most recent call last):
    glmplan.errors.SpecError: /dev/null: is no regular file: write its content to a file and give that
    """
    handle = None
    try:
        # without waiting: opening a pipe that nobody writes to would hang
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
        about = os.fstat(handle)
        if stat.S_ISDIR(about.st_mode):
            raise SpecError("is a folder; a file is needed", file=path)
        if not stat.S_ISREG(about.st_mode):
            raise SpecError("is no regular file: write its content to a file and give that", file=path)
        with os.fdopen(handle, "rb") as stream:
            handle = None
            yield stream, about.st_size
    except OSError as error:
        raise _unreadable(error, path) from None
    except ValueError as error:
        if isinstance(error, GlmplanError) or "null" not in str(error):
            raise
        raise SpecError("is no name of a file", file=repr(str(path))) from None
    finally:
        if handle is not None:
            os.close(handle)


def _unreadable(error: OSError, path: str | Path) -> SpecError:
    shown = str(path) if len(str(path)) < 300 else f"{str(path)[:100]}…"
    return SpecError(f"cannot be read: {error.strerror or error}", file=shown)


def read_bytes(path: str | Path, *, most: ByteCount = MOST_OF_A_FILE) -> bytes:
    """Read a whole file of bounded size.

    Examples
    --------
    >>> read_bytes("/proc/version" if Path("/proc/version").exists() else __file__)[:0]
    b''
    """
    with open_file(path) as (stream, size):
        if size > most:
            raise _too_large(path, most)
        # files that the kernel makes say that they hold nothing, and files grow: what counts is what is read
        found = stream.read(size + 1)
        while len(found) > size and (more := stream.read(_PIECE)):
            found += more
            if len(found) > most:
                raise _too_large(path, most)
    return found


def _too_large(path: str | Path, most: int, how: str = "holds") -> SpecError:
    return SpecError(f"{how} more than {most >> 20} MiB, the most that is read; split it or take a part", file=path)


def read_packed(path: str | Path, *, most: ByteCount = MOST_OF_RUNS) -> bytes:
    """Read a whole file that may be compressed with gzip.

    Examples
    --------
    >>> import gzip, pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.gz"
    >>> write_atomically(file, gzip.compress(b"inside"))
    >>> read_packed(file)
    b'inside'
    """
    data = read_bytes(path, most=most)
    if not data.startswith(b"\x1f\x8b"):
        return data
    import zlib

    found = bytearray()
    try:
        # one packed part after another, as gzip allows; zeros may fill the end
        while data.strip(b"\0"):
            part = zlib.decompressobj(wbits=31)
            found += part.decompress(data, most + 1 - len(found))
            if len(found) > most:
                raise _too_large(path, most, "unpacks to")
            if not part.eof:
                raise SpecError("is a gzip file that is cut off: copy it again", file=path)
            data = part.unused_data
    except zlib.error:
        raise SpecError("is a gzip file that is broken: copy it again", file=path) from None
    return bytes(found)


def read_text(path: str | Path, *, most: ByteCount = MOST_OF_A_FILE) -> str:
    """Read a text in UTF-8; a mark of the byte order at its begin is left out.

    Returns: The text, its line ends as they are.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
    >>> write_atomically(file, b"caf\\xe9")
    >>> read_text(file)
    Traceback (most recent call last):
    glmplan.errors.SpecError: ...: is not text in UTF-8 (line 1, byte 4): save it as UTF-8
    """
    data = read_bytes(path, most=most)
    try:
        return _plain_digits(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _no_text(path, data, error.start) from None


def _plain_digits(text: str) -> str:
    """Take the digits of other scripts out: Python counts with them, the programs that wrote these files do not."""
    return text if text.isascii() else _OTHER_DIGITS.sub("\ufffd", text)


def _no_text(path: str | Path, data: bytes, place: int, line: int = 0) -> SpecError:
    line = line or 1 + data.count(b"\n", 0, place)
    column = place - data.rfind(b"\n", 0, place)
    return SpecError(f"is not text in UTF-8 (line {line}, byte {column}): save it as UTF-8", file=path)


def read_log(path: str | Path, *, most: ByteCount = MOST_OF_RUNS) -> str:
    """Read what a tool printed, plain or compressed with gzip; bytes that are no UTF-8 become U+FFFD.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.log"
    >>> write_atomically(file, b"caf\\xe9")
    >>> read_log(file) == "caf\\ufffd"
    True
    """
    return _plain_digits(read_packed(path, most=most).decode("utf-8-sig", errors="replace"))


def text_lines(path: str | Path) -> Iterator[str]:
    """Read a text line by line, however long it is; each line is bounded.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.txt"
    >>> write_atomically(file, "a\\nb")
    >>> list(text_lines(file))
    ['a\\n', 'b']
    """
    with open_file(path) as (stream, _):
        number = 0
        while line := stream.readline(_LONGEST_LINE + 1):
            number += 1
            if len(line) > _LONGEST_LINE:
                raise SpecError(f"line {number} is longer than 1 MiB; a line holds one record", file=path)
            try:
                yield _plain_digits(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise _no_text(path, line, error.start, number) from None


def read_table(path: str | Path, *, most: ByteCount = MOST_OF_RUNS) -> list[list[str]]:
    """Read the cells of a CSV.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> write_atomically(file, "a,b\\n1,2\\n")
    >>> read_table(file)
    [['a', 'b'], ['1', '2']]
    """
    import csv
    import io

    rows = csv.reader(io.StringIO(read_text(path, most=most), newline=""))
    try:
        return list(rows)
    except csv.Error as error:
        raise SpecError(f"line {rows.line_num} is not a line of a CSV: {error}", file=path) from None


def read_rows(path: str | Path, *, most: ByteCount = MOST_OF_RUNS) -> list[dict[str, str]]:
    """Read a CSV as rows by the names of its header.

    Returns: One row for each line that is not empty; cells beyond a short line are empty.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> write_atomically(file, "a,b\\n1,2\\n")
    >>> read_rows(file)
    [{'a': '1', 'b': '2'}]
    """
    header, *lines = read_table(path, most=most) or [[]]
    for number, line in enumerate(lines, 2):
        if len(line) > len(header):
            raise SpecError(f"line {number} has {len(line)} cells below {len(header)} columns", file=path)
    return [dict(zip(header, line + [""] * (len(header) - len(line)), strict=True)) for line in lines if line]


def parse_json(text: str | bytes, *, file: str | Path | None = None, field: str | None = None) -> Any:
    """Read JSON that somebody else wrote.

    Returns: Its value: at most 64 levels deep, whole numbers of at most 25 digits, no half characters.

    Examples
    --------
    >>> parse_json('{"tp": 8}')
    {'tp': 8}
    >>> parse_json("[" * 100_000, file="a.json")
    Traceback (most recent call last):
    glmplan.errors.SpecError: a.json: is not JSON that can be read: it is nested deeper than 64 levels
    """
    import json

    def bad(why: str) -> SpecError:
        return SpecError(f"is not JSON that can be read: {why}", file=file, field=field)

    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise bad(f"byte {error.start} is not UTF-8: save it as UTF-8") from None
    text = _plain_digits(text)
    # a hook for each number would be slow, so only where one is suspiciously long
    hook: Callable[[str], int] | None = _number_of_bounded_length if _LONG_NUMBER.search(text) else None
    if "\\u" in text:
        text = _HALF.sub(r"\\ufffd", text)
    try:
        value = json.loads(text, parse_int=hook)
    except RecursionError:
        raise bad(f"it is nested deeper than {_DEEPEST} levels") from None
    except ValueError as error:
        raise bad(str(error)[:200]) from None
    level, depth = [value] if isinstance(value, dict | list) else [], 0
    while level:
        depth += 1
        if depth > _DEEPEST:
            raise bad(f"it is nested deeper than {_DEEPEST} levels")
        inside = (one.values() if isinstance(one, dict) else one for one in level)
        level = [one for held in inside for one in held if isinstance(one, dict | list)]
    return value


def _number_of_bounded_length(digits: str) -> int:
    if len(digits.lstrip("-")) > _DIGITS:
        raise ValueError(f"a number has {len(digits)} digits; {_DIGITS} are the most that are read")
    return int(digits)


def read_json(path: str | Path, *, most: ByteCount = MOST_OF_A_FILE) -> Any:
    """Read a file of JSON.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.json"
    >>> write_atomically(file, "[1]")
    >>> read_json(file)
    [1]
    """
    return parse_json(read_text(path, most=most), file=path)


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.toml"
    >>> write_atomically(file, 'memory = "96 GiB"')
    >>> read_toml(file)
    {'memory': '96 GiB'}
    """
    import rtoml

    text = read_text(path)
    try:
        return rtoml.loads(text)
    except (rtoml.TomlParsingError, RecursionError, ValueError) as error:
        raise SpecError(f"is not valid TOML: {error}", file=path) from None


def read_entries(path: str | Path, table: str, fields: Collection[str]) -> tuple[dict[str, Any], ...]:
    """Read the entries of a table of facts; each must have a source.

    - `fields`: Fields that an entry may have besides ``source`` and ``in_view`` (`glmplan.catalog.rule_provenance`).
    - Returns: The entries, in the order of the file.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.toml"
    >>> write_atomically(file, '[[rules]]\\nengine = "vllm"\\nsource = "https://docs.vllm.ai"')
    >>> read_entries(file, "rules", {"engine"})
    ({'engine': 'vllm', 'source': 'https://docs.vllm.ai'},)
    """
    found = tuple(read_toml(path)[table])
    for entry in found:
        for field in entry:
            if field not in (known := {*fields, "source", "in_view"}):
                raise SpecError(f"is not a field of {table}", file=path, value=field, choices=known)
        if not entry.get("source"):
            raise SpecError("has no source", file=path, field=table, value=str(entry))
    return found


def write_atomically(path: str | Path, content: str | bytes | Iterable[bytes]) -> None:
    """Write a file in one step: readers see the old content or the new, never a part.

    `content`: What to write; text is encoded as UTF-8.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "deep" / "a.txt"
    >>> write_atomically(file, "whole")
    >>> file.read_text()
    'whole'
    """
    path = Path(path)
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    parts = (data,) if isinstance(data, bytes) else data
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        with os.fdopen(handle, "wb") as stream:
            stream.writelines(parts)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
        if isinstance(error, OSError):
            raise SpecError(f"cannot be written: {error.strerror}", file=path) from None
        raise


# Where the facts lie: inside the installed package, or in the checkout.

# Aliases stand on one line each, so that names are found without parsing every file.
_ALIASES = re.compile(rb"^aliases = (\[.*\])$", re.MULTILINE)
_FOLDERS = ("calibration", "hardware_db", "model_specs")
_FITS: ContextVar[Path | None] = ContextVar("folder of the fits", default=None)


def data_folder(name: str) -> Path:
    """Return a data folder: `glmplan/_data/<name>` in an installed wheel, else `<checkout>/<name>`.

    Examples
    --------
    >>> data_folder("hardware_db").name
    'hardware_db'
    """
    if name not in _FOLDERS:
        raise SpecError("is not a data folder", value=name, choices=_FOLDERS)
    return _folder(name)


@lru_cache(maxsize=len(_FOLDERS))
def _folder(name: str) -> Path:
    package = Path(__file__).parents[1]
    for folder in (package / "_data" / name, package.parent / name):
        if folder.is_dir():
            return folder
    raise SpecError("is missing from this installation of glmplan; install it again", value=name)


def fits_folder() -> Path:
    """Return the folder of the fits that rest on measured runs: that of `fits_in`, else the shipped one.

    Examples
    --------
    >>> fits_folder().name
    'fits'
    """
    return _FITS.get() or _shipped_fits()


@lru_cache(maxsize=1)
def _shipped_fits() -> Path:
    return data_folder("calibration") / "fits"


@contextmanager
def fits_in(folder: Path) -> Iterator[None]:
    """Read the fits in another folder, such as those that were made without the held-out groups.

    What was read before is remembered by its readers: `glmplan.calibrate.step.crossvalidate` forgets it.
    """
    token = _FITS.set(folder)
    try:
        yield
    finally:
        _FITS.reset(token)


@lru_cache(maxsize=4096)
def plain_name(name: str) -> str:
    """Return a name as the catalogue compares it: lower case, words joined by `-`.

    Examples
    --------
    >>> plain_name(" RTX_PRO_6000 WS ")
    'rtx-pro-6000-ws'
    """
    return re.sub(r"[\s_]+", "-", name.strip().lower())


def names_in(folder: Path) -> tuple[str, ...]:
    """Return the names of the TOML files of a folder, sorted.

    Examples
    --------
    >>> "hgx-b200-8" in names_in(data_folder("hardware_db") / "hosts")
    True
    """
    return tuple(sorted(file.stem for file in folder.glob("*.toml")))


def aliases_in(folder: Path) -> dict[str, str]:
    """Return other spellings of the names of a folder's entries.

    `folder`: Folder with one TOML file for each entry.

    Examples
    --------
    >>> aliases_in(data_folder("hardware_db") / "hosts")["dgx-h100"]
    'hgx-h100-8'
    """
    aliases: dict[str, str] = {}
    for name in names_in(folder):
        found = _ALIASES.search(read_bytes(folder / f"{name}.toml"))
        if found:
            line = f"aliases = {found[1].decode()}"
            aliases.update({plain_name(alias): name for alias in rtoml.loads(line)["aliases"]})
    return aliases


# Files inside of files: the parts of a zip archive, read in pieces and within limits, and written as they were.

#: what one part of an archive may hold unpacked: a sheet of a million rows has some hundred MB [B]
MOST_OF_A_PART = 2 * int(GIB)
_MOST_OF_AN_ARCHIVE = 256 * 2**20
_PIECE_ARCHIVES = 2**18
_OLD = b"\xd0\xcf\x11\xe0"


@contextmanager
def archive_of(path: str | Path, what: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive for reading.

    Examples
    --------
    >>> with archive_of(__file__, "workbook") as _:
    ...     pass
    Traceback (most recent call last):
    glmplan.errors.SpecError: ...: is no workbook that can be read: ...
    """
    with open_file(path) as (stream, size):
        first = stream.read(4)
        stream.seek(0)
        if first == _OLD:
            raise SpecError(
                f"is protected with a password, or is a {what} of before 2007: open it, and save it without a password "
                "as .xlsx",
                file=path,
            )
        if size > _MOST_OF_AN_ARCHIVE:
            raise SpecError(f"holds more than {_MOST_OF_AN_ARCHIVE >> 20} MiB, the most that is read", file=path)
        try:
            archive = zipfile.ZipFile(stream)
        except (zipfile.BadZipFile, EOFError, ValueError, OSError, RuntimeError) as error:
            words = f"is no {what} that can be read: it is cut off or damaged ({error}); get it again"
            raise SpecError(words, file=path) from None
        archive.filename = str(path)
        with archive, understood(path, what):
            if any(one.flag_bits & 1 for one in archive.infolist()):
                raise SpecError("is protected with a password: save it without one", file=path)
            names = archive.namelist()
            if len(set(names)) != len(names):
                raise SpecError(f"is no {what} that can be read: it holds a part twice", file=path)
            try:
                yield archive
            except (zipfile.BadZipFile, RuntimeError) as error:
                words = f"is damaged inside ({error}): open it, and save it again"
                raise SpecError(words, file=path) from None


def part_pieces(archive: zipfile.ZipFile, name: str, *, most: ByteCount = MOST_OF_A_PART) -> Iterator[bytes]:
    """Read a part piece by piece."""
    if name not in archive.namelist():
        raise SpecError("is not in the file", field=name, file=archive.filename)
    read = 0
    with archive.open(name) as part:
        while piece := part.read(_PIECE_ARCHIVES):
            read += len(piece)
            if read > most:
                raise SpecError(f"unpacks to more than {most >> 20} MiB", field=name, file=archive.filename)
            yield piece


def part_bytes(archive: zipfile.ZipFile, name: str, *, most: ByteCount = 256 * 2**20) -> bytes:
    """Read a part whole."""
    return b"".join(part_pieces(archive, name, most=most))


def put_part(archive: zipfile.ZipFile, part: zipfile.ZipInfo, pieces: Iterable[bytes]) -> None:
    """Write a part under the name, date and packing of another."""
    about = zipfile.ZipInfo(part.filename, part.date_time)
    about.compress_type = part.compress_type
    about.external_attr, about.create_system = part.external_attr, part.create_system
    if part.is_dir():
        archive.writestr(about, b"")
        return
    # the size is not known before: large parts need the long form
    with archive.open(about, "w", force_zip64=part.file_size > GIB) as stream:
        for piece in pieces:
            stream.write(piece)


@contextmanager
def written_whole(path: str | Path) -> Iterator[BinaryIO]:
    """Write a file piece by piece; it takes its place when all is written, and nothing is left if something fails.

    Examples
    --------
    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with written_whole(file) as stream:
    ...     _ = stream.write(b"whole")
    >>> file.read_text()
    'whole'
    """
    path = Path(path)
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
        with os.fdopen(handle, "w+b") as stream:
            yield stream
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError as error:
        raise SpecError(f"cannot be written: {error.strerror or error}", file=path) from None
    finally:
        if temporary is not None and os.path.exists(temporary):
            os.unlink(temporary)
