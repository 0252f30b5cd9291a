"""Write one JSON line for each event, so that a crash loses nothing."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from glmplan.catalog.files import open_file, parse_json, read_bytes
from glmplan.errors import SpecError
from glmplan.measure.redaction import Outside

__all__ = ["Journal"]

#: ten million requests of about 200 B [B]
_LARGEST = 1 << 31
#: every line begins so
_BEGIN = b'{"kind": "'


class Journal:
    """Append lines to a file; each line is complete or absent.

    On a full disk, lines stay in memory, the fault is counted (`faults`, `last_fault`) and writing is retried. Without
    a path nothing is kept; `outside` redacts every line. An unwritable file, or one in use by another run, raises
    `SpecError`.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "j.jsonl"
    >>> journal = Journal(file)
    >>> journal.write("step", users=4)
    >>> journal.close()
    >>> Journal.read(file)
    [{'kind': 'step', 'users': 4}]
    """

    def __init__(self, path: Path | None, outside: Outside | None = None) -> None:
        self.path, self.faults, self.last_fault = path, 0, ""
        #: False after a signal: a busy disk takes seconds, and written lines outlive the process without it
        self.flushes = True
        self._outside = outside or Outside()
        self._unwritten: list[bytes] = []
        self._handle: int | None = None
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
                self._lock(path)
                self._end_torn_line(path)
            except OSError as error:
                raise SpecError(f"cannot be written: {error.strerror}", file=path) from None

    @property
    def unwritten(self) -> int:
        """Return the number of lines only in memory."""
        return len(self._unwritten)

    def write(self, kind: str, **values: Any) -> None:
        """Append one line."""
        if self._handle is not None:
            line = self._outside.plain({"kind": kind, **values})
            self._unwritten.append(json.dumps(line, allow_nan=False).encode() + b"\n")
            self._try()

    def sync(self) -> None:
        """Write the lines in memory and flush to disk."""
        self._try()
        if self.flushes and self._handle is not None and not self._unwritten:
            try:
                os.fsync(self._handle)
            except OSError as error:
                # pipes and /dev/full cannot be synced; a full disk reports delayed errors here
                self._note(error)

    def close(self) -> None:
        """Write the rest and close the file."""
        self.sync()
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    @staticmethod
    def read(path: Path) -> list[dict[str, Any]]:
        """Return the lines of a journal without incomplete ones.

        Each kill or power failure may leave one: the begin of a line, also filled with zeros. A step whose line is
        lost is measured again.
        """
        lines = read_bytes(path, most=_LARGEST).split(b"\n")
        lines_read: list[dict[str, Any]] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                value = parse_json(line)
            except SpecError:
                value = None
            if isinstance(value, dict) and "kind" in value:
                lines_read.append(value)
            elif value is not None or not _BEGIN.startswith(line.rstrip(b"\0")[: len(_BEGIN)]):
                raise SpecError(f"line {number}: expected a line of a journal", file=path)
        return lines_read

    def _try(self) -> None:
        while self._unwritten and self._handle is not None:
            line = self._unwritten[0]
            try:
                done = os.write(self._handle, line)
            except OSError as error:
                self._note(error)
                return
            if done < len(line):
                # half a line reached a nearly full disk: remove it and keep the whole line
                try:
                    os.ftruncate(self._handle, os.fstat(self._handle).st_size - done)
                except OSError as error:
                    self._unwritten[0] = line[done:]
                    self._note(error)
                    return
                self.faults += 1
                self.last_fault = "no space left for a whole line"
                return
            del self._unwritten[0]

    def _note(self, error: OSError) -> None:
        self.faults += 1
        self.last_fault = error.strerror or str(error)

    def _end_torn_line(self, path: Path) -> None:
        """End a line torn by a crash, so that later lines are complete."""
        if os.path.isfile(path) and os.path.getsize(path) and self._handle is not None:
            with open_file(path) as (stream, size):
                stream.seek(size - 1)
                if stream.read(1) != b"\n":
                    os.write(self._handle, b"\n")

    def _lock(self, path: Path) -> None:
        """Lock the file against other runs while it is open.

        A killed run leaves no lock.
        """
        try:
            import fcntl
        except ImportError:  # a system without file locks
            return
        assert self._handle is not None
        if not stat.S_ISREG(os.fstat(self._handle).st_mode):
            # devices (/dev/null, /dev/full) and pipes hold no lines to mix up, and a lock would block unrelated runs
            return
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._handle)
            self._handle = None
            raise SpecError(
                "is being written by another run: wait for it, or choose another folder", file=path
            ) from None
        except OSError as error:
            self._note(error)  # a file system without locks: continue and note it
