"""Files inside of files: the parts of a zip archive, read in pieces and within limits, and written as they were."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from glmplan.errors import SpecError
from glmplan.facts.files import open_file, understood
from glmplan.units import GIB

__all__ = ["MOST_OF_A_PART", "archive_of", "part_bytes", "part_pieces", "put_part", "written_whole"]

#: what one part of an archive may hold unpacked: a sheet of a million rows has some hundred MB [B]
MOST_OF_A_PART = 2 * int(GIB)
_MOST_OF_AN_ARCHIVE = 256 * 2**20
_PIECE = 2**18
_OLD = b"\xd0\xcf\x11\xe0"


@contextmanager
def archive_of(path: str | Path, what: str) -> Iterator[zipfile.ZipFile]:
    """Open a zip archive for reading.

    Parameters
    ----------
    path : path
        The file.
    what : str
        What it should be, for messages.

    Yields
    ------
    ZipFile
        The archive.

    Raises
    ------
    SpecError
        If it is none, is broken, is protected with a password, or is too large.

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


def part_pieces(archive: zipfile.ZipFile, name: str, *, most: int = MOST_OF_A_PART) -> Iterator[bytes]:
    """Read a part piece by piece.

    Parameters
    ----------
    archive : ZipFile
        The archive.
    name : str
        The part.
    most : int, optional
        What it may hold at most, unpacked, [B]

    Yields
    ------
    bytes
        Pieces of a quarter of a MiB.

    Raises
    ------
    SpecError
        If it is not there or holds more.
    """
    if name not in archive.namelist():
        raise SpecError("is not in the file", field=name, file=archive.filename)
    read = 0
    with archive.open(name) as part:
        while piece := part.read(_PIECE):
            read += len(piece)
            if read > most:
                raise SpecError(f"unpacks to more than {most >> 20} MiB", field=name, file=archive.filename)
            yield piece


def part_bytes(archive: zipfile.ZipFile, name: str, *, most: int = 256 * 2**20) -> bytes:
    """Read a part whole.

    Parameters
    ----------
    archive : ZipFile
        The archive.
    name : str
        The part.
    most : int, optional
        What it may hold at most, unpacked, [B]

    Returns
    -------
    bytes
        Its content.
    """
    return b"".join(part_pieces(archive, name, most=most))


def put_part(archive: zipfile.ZipFile, part: zipfile.ZipInfo, pieces: Iterable[bytes]) -> None:
    """Write a part under the name, date and packing of another.

    Parameters
    ----------
    archive : ZipFile
        Where it goes.
    part : ZipInfo
        The other.
    pieces : iterable of bytes
        Its content.
    """
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

    Parameters
    ----------
    path : path
        The file; missing parent folders are made.

    Yields
    ------
    stream
        To be written to.

    Raises
    ------
    SpecError
        If the file cannot be written.

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
