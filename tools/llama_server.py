"""Run llama.cpp's own HTTP server (package xllamacpp) in a process; prints its address, ends with its stdin."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: what a server of random weights takes to start on however busy a machine [s]
_PATIENCE = 300.0


@contextmanager
def llama_server(
    model: Path,
    *,
    slots: int = 4,
    context: int = 4096,
    log: Path | None = None,
    threads: int = 1,
    unified: bool = False,
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """Start the server and yield its base address and its process; it is gone when the block ends."""
    command = [sys.executable, __file__, str(model), f"--slots={slots}", f"--context={context}", f"--threads={threads}"]
    command += ["--unified"] if unified else []
    with open(log or os.devnull, "wb") as heard:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=heard,
            env=os.environ | {"OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": str(threads)},
        )
        assert process.stdout is not None and process.stdin is not None
        late = threading.Timer(_PATIENCE, process.kill)  # one that never listens must not be waited for
        late.start()
        try:
            for line in process.stdout:
                if line.startswith(b"listening "):
                    late.cancel()
                    yield line.split()[1].decode() + "/v1", process
                    break
            else:
                raise RuntimeError(f"the server did not start; see {log}")
        finally:
            late.cancel()
            process.stdin.close()
            process.stdout.close()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def serve(model: Path, slots: int, context: int, threads: int, unified: bool) -> None:
    """Serve until stdin closes."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {"random"} if isinstance(params.model_alias, set) else "random"
    params.n_parallel = slots
    params.n_ctx = context * slots
    params.kv_unified = unified
    params.hostnames = ["127.0.0.1"] if not isinstance(params.hostnames, str) else "127.0.0.1"
    params.port = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    params.n_threads_http = max(4, 2 * slots)  # a stream holds one until its answer ends
    params.endpoint_metrics = params.endpoint_slots = params.endpoint_props = True
    params.cont_batching = True
    params.verbosity = 5  # the memory lines of the log
    server = xllamacpp.Server(params)
    sys.stdout.write(f"listening {server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    os._exit(0)  # the binding's own end waits for streams that nobody reads any more


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--slots", type=int, default=4)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--unified", action="store_true", help="one KV cache for all slots")
    chosen = parser.parse_args()
    serve(chosen.model, chosen.slots, chosen.context, chosen.threads, chosen.unified)
