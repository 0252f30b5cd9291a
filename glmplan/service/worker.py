"""Worker process, one per concurrent answer.

Called as ``python -m glmplan.service.worker MEMORY [CALIBRATION]``: address space in bytes, calibration file of a site.
Input: a line of JSON per question, with its name, fields and limits. Output: lines of JSON with the progress, then one
with status and length of the answer, then the answer. The dispatcher kills the process at the time limit, so a slow
question does not block others and its memory is released.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO

from pydantic import ValidationError

from glmplan.errors import GlmplanError, Infeasible
from glmplan.prediction.step_models import site_calibration
from glmplan.service.answers import ANSWERS, QUESTIONS
from glmplan.service.questions import infeasible_record, invalid_record, refusal_record

__all__ = ["answered", "main"]

#: time between two progress reports [s]
_REPORT = 0.2
#: warm-up question: reads the data files before the first real question
_WARM = {"model": "llama-3.1-8b-bf16", "on": "1xh100-sxm"}
_LOG = logging.getLogger("glmplan.service.worker")


def answered(ask: str, question: Mapping[str, Any], limits: Mapping[str, Any], report: Any) -> tuple[int, bytes]:
    """Return the HTTP status and the answer of a question.

    Status 200 for an answer, 422 for an invalid question, 500 for a defect of glmplan. `report` is called with the
    finished and the total work.

    Examples
    --------
    >>> answered("fit", {"model": "glm-9", "on": "8xh100-sxm"}, {}, print)[0]
    422
    """
    try:
        record = ANSWERS[ask](QUESTIONS[ask].model_validate(question), report, limits)
        status = 200
    except Infeasible as answer:
        status, record = 200, infeasible_record(answer)
    except GlmplanError as error:
        status, record = 422, refusal_record(error)
    except ValidationError as error:
        status, record = 422, invalid_record(error.errors(), QUESTIONS[ask])
    except MemoryError:
        text = "exceeds the memory limit of an answer: reduce the question"
        status, record = 422, {"error": {"kind": "TooLarge", "message": text}}
    except Exception:
        # the question is not logged: it may hold private names
        _LOG.exception("fault in %s", ask)
        text = "glmplan failed on this question, which is a defect: see the log of the service"
        status, record = 500, {"error": {"kind": "Fault", "message": text}}
    return status, json.dumps(record, ensure_ascii=False, allow_nan=False, default=_plain).encode()


def _plain(value: Any) -> Any:
    """Return a numpy number as a Python number."""
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def _bound(memory: int) -> None:
    """Limit the address space of this process, if the system supports it."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))


def _end_with(service: int) -> None:
    """End this process soon after a killed service, whatever it computes."""
    while os.getppid() == service:
        time.sleep(1.0)
    os._exit(1)


def main() -> None:
    """Answer questions until the input ends."""
    lines, out = sys.stdin.buffer, os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    # output that a library prints must not be read as an answer
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    arguments = dict(enumerate(sys.argv))
    _bound(int(arguments.get(1, 1 << 62)))
    with site_calibration(arguments.get(2) or None):
        _answer_all(lines, out)


def _answer_all(lines: BinaryIO, out: BinaryIO) -> None:
    answered("fit", _WARM, {}, lambda done, total: None)
    # data files stay in memory: exclude them from garbage collection
    gc.collect()
    gc.freeze()
    _send(out, {"ready": True})
    for line in lines:
        _answer(line, out)


def _answer(line: bytes, out: BinaryIO) -> None:
    asked = json.loads(line)
    last = [time.monotonic()]

    def report(done: int, total: int) -> None:
        now = time.monotonic()
        if now - last[0] >= _REPORT:
            last[0] = now
            _send(out, {"done": done, "total": total})

    status, body = answered(asked["ask"], asked["question"], asked["limits"], report)
    _send(out, {"status": status, "size": len(body)}, body)


def _send(out: BinaryIO, head: dict[str, Any], body: bytes = b"") -> None:
    out.write(json.dumps(head).encode() + b"\n" + body)
    out.flush()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt, BrokenPipeError):
        main()
