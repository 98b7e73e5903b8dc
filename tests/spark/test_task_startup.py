"""The start-up of Python tasks; no Spark runs here."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import cloudpickle

from skewless.spark.task_startup import quick_start, with_quick_start
from skewless.spark.verbs.fold import _each


def test_aggregates_run_where_this_library_is_not(tmp_path: Path) -> None:
    """Three tasks of one process: from the second on, imported modules are frozen."""

    def total(rows: pa.Table) -> pa.Table:
        return pa.table({"n": [rows.num_rows]})

    rows = pa.record_batch({"k": [1, 1, 2], "begins": [True, False, True]})
    call = _each("begins", ["k"], [], total, pa.schema({"n": pa.int64()}))
    (tmp_path / "call").write_bytes(cloudpickle.dumps((call, rows)))  # type: ignore[no-untyped-call]
    script = f"""import gc, sys
sys.modules["skewless"] = None
from pyspark import cloudpickle
for _ in range(3):
    call, rows = cloudpickle.loads(open({str(tmp_path / "call")!r}, "rb").read())
    print([batch.to_pydict() for batch in call(iter([rows]))], gc.get_freeze_count() > 0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    found = "[{'k': [1], 'n': [2]}, {'k': [2], 'n': [1]}]"
    assert done.stdout.splitlines() == [f"{found} False", f"{found} True", f"{found} True"], done.stderr


@pytest.mark.skipif(not hasattr(socket, "TCP_QUICKACK"), reason="only Linux has TCP_QUICKACK")
def test_quick_start_acknowledges_at_once(tmp_path: Path) -> None:
    listening = socket.create_server(("127.0.0.1", 0))
    spark = socket.create_connection(listening.getsockname())
    task, _ = listening.accept()
    with listening, spark, task, (tmp_path / "file").open("w") as file:
        task.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        is_open = sorted(Path("/proc/self/fd").iterdir())
        quick_start()
        assert task.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1
        assert sorted(Path("/proc/self/fd").iterdir()) == is_open
        task.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        call = cloudpickle.loads(cloudpickle.dumps(with_quick_start(lambda: "called")))  # type: ignore[no-untyped-call]
        assert task.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK) == 1
        assert call() == "called"
        file.write("still open")
