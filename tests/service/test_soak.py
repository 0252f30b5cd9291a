"""Some thousand mixed questions, as `make soak` asks a hundred thousand: all answered rightly, memory flat."""

from __future__ import annotations

import importlib.util
import threading
from collections import Counter
from pathlib import Path
from urllib.parse import urlsplit

TOOL = Path(__file__).resolve().parents[2] / "tools/soak.py"


def test_some_thousand_mixed_questions_are_answered_rightly_and_take_no_memory(address):
    spec = importlib.util.spec_from_file_location("soak", TOOL)
    soak = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(soak)
    port, found = urlsplit(address).port, Counter()

    def ask(count, first):
        threads = [
            threading.Thread(target=soak.client, args=(port, count // 3, first + seed, 0.002, found, [0]))
            for seed in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    ask(900, 0)  # what is kept for the next one is kept now
    before = soak.memory(port)["quick"]
    ask(2100, 100)
    assert set(found) == {"right"}, found
    assert found["right"] == 3000
    # [MiB]: a leak of ten kilobytes for each question would show
    assert soak.memory(port)["quick"] - before < 40
