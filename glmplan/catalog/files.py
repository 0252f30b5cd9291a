"""Read and write files within limits.

Errors name file, place and remedy; writes are atomic. All input is foreign. Files read here are regular and bounded in
size (also unpacked), text is UTF-8, JSON has bounded depth and numbers of bounded length; everything else is a
`SpecError`. `tests/house` checks that no other module opens files for reading. The catalogue lies inside the installed
package, or in the checkout.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import stat
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from glmplan.errors import GlmplanError, SpecError
from glmplan.units import GIB, ByteCount

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "MOST_COLUMNS",
    "MOST_OF_A_FILE",
    "MOST_OF_A_PART",
    "MOST_OF_RUNS",
    "archive_of",
    "data_folder",
    "entry_file",
    "fits_folder",
    "fits_in",
    "open_file",
    "parse_json",
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
    "temporary_beside",
    "text_lines",
    "toml_key",
    "toml_pairs",
    "toml_value",
    "understood",
    "write_atomically",
    "written_whole",
]


#: most bytes of a config, a table of facts or a dump; the largest published ones have a few MB
MOST_OF_A_FILE = 64 * 2**20
#: most bytes of a file of runs or a log, unpacked: as JSON it takes some twenty times that in memory
MOST_OF_RUNS = 128 * 2**20
#: columns of a spreadsheet program, which a CSV may have too
MOST_COLUMNS = 16_384
#: longest line of a trace [B]
_LONGEST_LINE = 16 * 2**20
#: depth of JSON: published configs and results have ten levels at most
_DEEPEST = 64
#: digits of a whole number: 64 bits have 20
_DIGITS = 25
_LONG_NUMBER = re.compile(rf"[0-9]{{{_DIGITS + 1}}}")
#: digits of other scripts
_OTHER_DIGITS = re.compile(r"(?![0-9])\d")
#: half of a surrogate pair: no text can hold it
_HALF = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)
_PIECE = 2**20

#: errors of the standard library and of parsers on foreign content
_FOREIGN = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, EOFError, MemoryError)


@contextmanager
def understood(file: str | Path, what: str = "file") -> Iterator[None]:
    """Turn every error of a reader into an error that names the file.

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
    """Open a regular file, yield it with its size [B].

    A pipe or a device is refused, never waited for.

    Examples
    --------
    >>> with open_file("/dev/null") as (stream, size):
    ...     pass
    Traceback (most recent call last):
    glmplan.errors.SpecError: /dev/null: is no regular file: write its content to a file and give that
    """
    handle = None
    try:
        # non-blocking: opening a pipe without a writer would hang
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
    """Return the content of a file of bounded size."""
    with open_file(path) as (stream, size):
        if size > most:
            raise _too_large(path, most)
        # files of the kernel have size 0, and files grow: the bytes that are read count
        result = stream.read(size + 1)
        while len(result) > size and (more := stream.read(_PIECE)):
            result += more
            if len(result) > most:
                raise _too_large(path, most)
    return result


def _too_large(path: str | Path, most: int, how: str = "holds") -> SpecError:
    return SpecError(f"{how} more than {most >> 20} MiB, the most that is read; split it or take a part", file=path)


def read_packed(path: str | Path, *, most: ByteCount = MOST_OF_RUNS) -> bytes:
    """Return the content of a file that may be compressed with gzip.

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

    result = bytearray()
    try:
        # gzip allows several members one after another; zeros may fill the end
        while data.strip(b"\0"):
            part = zlib.decompressobj(wbits=31)
            result += part.decompress(data, most + 1 - len(result))
            if len(result) > most:
                raise _too_large(path, most, "unpacks to")
            if not part.eof:
                raise SpecError("is a gzip file that is cut off: copy it again", file=path)
            data = part.unused_data
    except zlib.error:
        raise SpecError("is a gzip file that is broken: copy it again", file=path) from None
    return bytes(result)


def read_text(path: str | Path, *, most: ByteCount = MOST_OF_A_FILE) -> str:
    """Return text in UTF-8 without byte order mark, line ends unchanged.

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
    """Remove digits of other scripts.

    Python accepts them; the programs that wrote these files do not use them.
    """
    return text if text.isascii() else _OTHER_DIGITS.sub("\ufffd", text)


def _no_text(path: str | Path, data: bytes, place: int, line: int = 0) -> SpecError:
    line = line or 1 + data.count(b"\n", 0, place)
    column = place - data.rfind(b"\n", 0, place)
    return SpecError(f"is not text in UTF-8 (line {line}, byte {column}): save it as UTF-8", file=path)


def read_log(path: str | Path, *, most: ByteCount = MOST_OF_RUNS) -> str:
    """Return a log, plain or gzip; bytes that are no UTF-8 become U+FFFD.

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
    """Yield the lines of a text of any length; each line is bounded."""
    with open_file(path) as (stream, _):
        number = 0
        while line := stream.readline(_LONGEST_LINE + 1):
            number += 1
            if len(line) > _LONGEST_LINE:
                most = _LONGEST_LINE >> 20
                raise SpecError(f"line {number} is longer than {most} MiB; a line holds one record", file=path)
            try:
                yield _plain_digits(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise _no_text(path, line, error.start, number) from None


def read_table(path: str | Path, *, most: ByteCount = MOST_OF_RUNS) -> list[list[str]]:
    """Return the cells of a CSV."""
    import csv
    import io

    rows = csv.reader(io.StringIO(read_text(path, most=most), newline=""))
    try:
        cells = list(rows)
        wide = next((number for number, row in enumerate(cells, 1) if len(row) > MOST_COLUMNS), None)
        if wide is not None:
            message = f"row {wide} has {len(cells[wide - 1]):,} cells, at most {MOST_COLUMNS:,}"
            raise SpecError(message, file=path)
        return cells
    except csv.Error as error:
        raise SpecError(f"line {rows.line_num} is not a line of a CSV: {error}", file=path) from None


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """Return the non-empty rows of a CSV by the names of its header.

    Missing cells are empty.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> write_atomically(file, "a,b\\n1,2\\n")
    >>> read_rows(file)
    [{'a': '1', 'b': '2'}]
    """
    header, *lines = read_table(path, most=MOST_OF_RUNS) or [[]]
    for number, line in enumerate(lines, 2):
        if len(line) > len(header):
            raise SpecError(f"line {number} has {len(line)} cells below {len(header)} columns", file=path)
    return [dict(zip(header, line + [""] * (len(header) - len(line)), strict=True)) for line in lines if line]


def parse_json(text: str | bytes, *, file: str | Path | None = None, field: str | None = None) -> Any:
    """Return the value of foreign JSON.

    At most 64 levels deep, whole numbers of at most 25 digits, no half characters.

    Examples
    --------
    >>> parse_json('{"tp": 8}')
    {'tp': 8}
    >>> parse_json("[" * 100_000, file="a.json")
    Traceback (most recent call last):
    glmplan.errors.SpecError: a.json: is not JSON that can be read: it is nested deeper than 64 levels
    """

    def bad(why: str) -> SpecError:
        return SpecError(f"is not JSON that can be read: {why}", file=file, field=field)

    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise bad(f"byte {error.start} is not UTF-8: save it as UTF-8") from None
    text = _plain_digits(text)
    # a hook for each number would be slow, so only with a suspiciously long number
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
        inside = (item.values() if isinstance(item, dict) else item for item in level)
        level = [item for held in inside for item in held if isinstance(item, dict | list)]
    return value


def _number_of_bounded_length(digits: str) -> int:
    if len(digits.lstrip("-")) > _DIGITS:
        raise ValueError(f"a number has {len(digits)} digits; {_DIGITS} are the most that are read")
    return int(digits)


def read_json(path: str | Path, *, most: ByteCount = MOST_OF_A_FILE) -> Any:
    """Read a file of JSON."""
    return parse_json(read_text(path, most=most), file=path)


def toml_key(name: str) -> str:
    """Return a key of a TOML file, in quotes if it needs them."""
    return name if name.replace("_", "").replace("-", "").isalnum() and name.isascii() else json.dumps(name)


def toml_value(value: Any) -> str:
    """Return a value of a TOML file in one line.

    Examples
    --------
    >>> toml_value({"peer": True, "rates": [1.5, 2], "a b": "c"})
    '{ peer = true, rates = [1.5, 2], "a b" = "c" }'
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "{ " + ", ".join(toml_pairs(value)) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def toml_pairs(entry: Mapping[str, Any]) -> list[str]:
    """Return the lines of a table of a TOML file."""
    return [f"{toml_key(key)} = {toml_value(value)}" for key, value in entry.items()]


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file."""
    import rtoml

    text = read_text(path)
    try:
        return rtoml.loads(text)
    except (rtoml.TomlParsingError, RecursionError, ValueError) as error:
        raise SpecError(f"is not valid TOML: {error}", file=path) from None


def read_entries(path: str | Path, table: str, fields: Collection[str]) -> tuple[dict[str, Any], ...]:
    """Return the entries of a table of facts; each must have a source.

    `fields`: allowed besides ``source`` and ``in_view`` (`glmplan.catalog.rule_provenance`).

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "a.toml"
    >>> write_atomically(file, '[[rules]]\\nengine = "vllm"\\nsource = "https://docs.vllm.ai"')
    >>> read_entries(file, "rules", {"engine"})
    ({'engine': 'vllm', 'source': 'https://docs.vllm.ai'},)
    """
    result = tuple(read_toml(path)[table])
    for entry in result:
        for field in entry:
            if field not in (known := {*fields, "source", "in_view"}):
                raise SpecError(f"is not a field of {table}", file=path, value=field, choices=known)
        if not entry.get("source"):
            raise SpecError("has no source", file=path, field=table, value=str(entry))
    return result


def write_atomically(path: str | Path, content: str | bytes | Iterable[bytes]) -> None:
    """Write a file in one step: readers see the old content or the new.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "deep" / "a.txt"
    >>> write_atomically(file, "whole")
    >>> file.read_text()
    'whole'
    """
    data = content.encode(errors="backslashreplace") if isinstance(content, str) else content
    with written_whole(path) as stream:
        stream.writelines((data,) if isinstance(data, bytes) else data)


_FOLDERS = ("calibration", "hardware_db", "model_specs")
_FITS: ContextVar[Path | None] = ContextVar("folder of the fits", default=None)


def data_folder(name: str) -> Path:
    """Return a data folder of the wheel, else of the checkout.

    `glmplan/_data/<name>` or `<checkout>/<name>`.

    Examples
    --------
    >>> data_folder("hardware_db").name
    'hardware_db'
    """
    if name not in _FOLDERS:
        raise SpecError("is not a data folder", value=name, choices=_FOLDERS)
    return _folder(name)


def entry_file(folder: Path, file: str) -> Path | None:
    """Return a data file named after an entry, or None.

    Names come from files of other people: one that is a path, or too long for a file, names no data file.

    Examples
    --------
    >>> models = data_folder("model_specs")
    >>> entry_file(models, "glm-5.1.toml").name, entry_file(models, "../model_specs/glm-5.1.toml")
    ('glm-5.1.toml', None)
    """
    return folder / file if os.path.basename(file) == file and os.path.isfile(folder / file) else None


@lru_cache(maxsize=len(_FOLDERS))
def _folder(name: str) -> Path:
    package = Path(__file__).parents[1]
    for folder in (package / "_data" / name, package.parent / name):
        if os.path.isdir(folder):
            return folder
    raise SpecError("is missing from this installation of glmplan; install it again", value=name)


def fits_folder() -> Path:
    """Return the folder of the fits: that of `fits_in`, else the shipped one."""
    return _FITS.get() or _shipped_fits()


@lru_cache(maxsize=1)
def _shipped_fits() -> Path:
    return data_folder("calibration") / "fits"


@contextmanager
def fits_in(folder: Path) -> Iterator[None]:
    """Read the fits in another folder, such as those without held-out groups.

    Readers cache earlier fits: `glmplan.calibrate.step.crossvalidate` clears their caches.
    """
    token = _FITS.set(folder)
    try:
        yield
    finally:
        _FITS.reset(token)


@lru_cache(maxsize=4096)
def plain_name(name: str) -> str:
    """Return a name as the catalogue compares it: lower case, joined by `-`.

    Examples
    --------
    >>> plain_name(" RTX_PRO_6000 WS ")
    'rtx-pro-6000-ws'
    """
    return re.sub(r"[\s_]+", "-", name.strip().lower())


#: most unpacked bytes of one member of an archive: a sheet of a million rows has some hundred MB
MOST_OF_A_PART = 2 * int(GIB)
#: unpacked bytes for each packed one, beyond `MOST_OF_A_FILE`: sheets of equal rows pack to a hundredth
_MOST_UNPACKED = 200
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
            if any(item.flag_bits & 1 for item in archive.infolist()):
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
    """Yield a member of an archive in pieces.

    More than 64 MiB are unpacked only from a member that is not much smaller in the archive.
    """
    if name not in archive.namelist():
        raise SpecError("is not in the file", field=name, file=archive.filename)
    # the directory may state any packed size; a member is not longer than the file before the directory
    packed = min(archive.getinfo(name).compress_size, archive.start_dir)
    most = min(most, max(MOST_OF_A_FILE, _MOST_UNPACKED * packed))
    read = 0
    with archive.open(name) as part:
        while piece := part.read(_PIECE_ARCHIVES):
            read += len(piece)
            if read > most:
                raise SpecError(f"unpacks to more than {most >> 20} MiB", field=name, file=archive.filename)
            yield piece


def put_part(archive: zipfile.ZipFile, part: zipfile.ZipInfo, pieces: Iterable[bytes]) -> None:
    """Write a member under the name, date and packing of another one."""
    about = zipfile.ZipInfo(part.filename, part.date_time)
    about.compress_type = part.compress_type
    about.external_attr, about.create_system = part.external_attr, part.create_system
    if part.is_dir():
        archive.writestr(about, b"")
        return
    # the size is not known before: large members need the long form
    with archive.open(about, "w", force_zip64=part.file_size > GIB) as stream:
        for piece in pieces:
            stream.write(piece)


def temporary_beside(path: Path) -> tuple[int, Path]:
    """Create an empty file beside a file; return its handle and path.

    The system applies the user's umask, which `tempfile` does not. Raises `OSError`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.parent / f".{path.name[:50]}.{secrets.token_hex(8)}.tmp"
    return os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666), temporary


@contextmanager
def written_whole(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a stream whose file replaces the old one when it is complete.

    An error leaves nothing.

    Examples
    --------
    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with written_whole(file) as stream:
    ...     _ = stream.write(b"whole")
    >>> file.read_text()
    'whole'
    """
    path = Path(path)
    temporary = None
    try:
        handle, temporary = temporary_beside(path)
        with os.fdopen(handle, "w+b") as stream:
            yield stream
        os.replace(temporary, path)
    except OSError as error:
        raise SpecError(f"cannot be written: {error.strerror or error}", file=path) from None
    finally:
        if temporary is not None and os.path.lexists(temporary):
            os.unlink(temporary)
