"""What the service does at most, and what it answers with: everything that is said when it starts, in one place."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of the service.

    Attributes
    ----------
    body : int
        Body of a request, [B]
    points : int
        Points of a sweep, [-]
    requests : int
        Requests of a simulation, all replications together, [-]
    rows : int
        Rows of a table to predict, [-]
    quick_seconds, long_seconds, job_seconds : float
        Time for an answer at once (`fit`, `predict`, `compare`), for one that computes longer, and for a job, [s]
    quick_workers, long_workers : int
        Processes for either kind, [-]
    waiting : int
        Questions that wait for a process of either kind, [-]
    jobs : int
        Jobs that wait, run or are kept with their answers, [-]
    kept_seconds : float
        Time for which the answer of a job is kept, [s]
    memory : int
        Address space of a process that computes, [B]
    answers : int
        Answers that are kept to be given again, [-]
    calibration : str
        Path of a site's calibration, which every prediction applies; empty for none.
    """

    body: int = 256 * 1024
    points: int = 20_000
    requests: int = 50_000
    rows: int = 1_000
    quick_seconds: float = 20.0
    long_seconds: float = 60.0
    job_seconds: float = 900.0
    quick_workers: int = min(4, os.cpu_count() or 1)
    long_workers: int = 1
    waiting: int = 64
    jobs: int = 100
    kept_seconds: float = 3600.0
    memory: int = 4_000_000_000
    answers: int = 512
    calibration: str = ""
