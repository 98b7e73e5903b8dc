"""The receiver without Spark: real sockets and files, crashes, and blocks balanced by algorithm 2."""

from __future__ import annotations

from contextlib import closing, suppress
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from skewless import measure, streams
from skewless.ingest.sender import send
from tests.ingest.receiving import listening, raw, rows, values, words

pytestmark = pytest.mark.compiled


def test_lines_of_many_senders_are_received_exactly_once(tmp_path: Path) -> None:
    with closing(listening(tmp_path)) as receiver:
        threads = [
            Thread(target=send, args=(words(3000), receiver.address), kwargs={"name": f"s{i}"}) for i in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        end = receiver.latest(0, None)
        assert values(receiver, 0, end) == sorted(words(3000) * 4)
        assert values(receiver, 0, end, 5) == sorted(words(3000) * 4)
        assert receiver.latest(end, None) == end
        assert receiver.blocks(end, end, 3) == []


@pytest.mark.parametrize("n_workers", [4, 16])
def test_blocks_are_those_of_algorithm_2(tmp_path: Path, n_workers: int) -> None:
    """Equal sizes, equal numbers of keys, few keys in two blocks; accumulated on arrival, or again from the log."""
    lines = words(20_000, 1.4)
    with closing(listening(tmp_path)) as receiver:
        send(lines, receiver.address, name="s")
        end = receiver.latest(0, None)
        gathered = receiver.blocks(0, end, n_workers)
    with closing(listening(tmp_path)) as receiver:
        replayed = receiver.blocks(0, end, n_workers)
        again = receiver.blocks(0, end, n_workers)
    assert [block.rows.tolist() for block in replayed] == [block.rows.tolist() for block in again]
    for blocks in (gathered, replayed):
        found = [[row["value"] for row in rows([block])] for block in blocks]
        assert sorted(value for block in found for value in block) == sorted(lines)
        keys = streams.as_keys([value for block in found for value in block])
        m = measure(keys, np.repeat(np.arange(len(found), dtype=np.int32), [*map(len, found)]), n_workers)
        assert m.imbalance_ratio <= 1.001
        assert m.fragments <= m.keys + 1.5 * n_workers
        assert m.cardinality_imbalance <= 3 + 0.01 * m.cardinality.mean()


def test_a_fast_sender_waits_until_a_batch_is_done(tmp_path: Path) -> None:
    with (
        closing(listening(tmp_path, pending=200_000)) as receiver,
        raw(receiver.address, "s") as (connection, answers),
    ):
        assert next(answers) == b"0\n"
        connection.settimeout(1.0)
        line, sent = b"x" * 999 + b"\n", 0
        with suppress(TimeoutError):
            for _ in range(100_000):  # 100 MB: more than the kernel holds for a connection
                sent += connection.send(line)
        assert 200_000 < receiver.end < 200_000 + 3 * (1 << 18)
        assert sent < 50_000_000
        waiting = receiver.end
        end = receiver.latest(0, None)
        assert receiver.end == waiting  # a batch that was only asked for is not done
        receiver.latest(end, None)
        connection.settimeout(60.0)
        # The socket buffers hold enough lines already.
        assert any(int(answer) > waiting // 1000 + 200 for answer in answers)


def test_a_new_connection_of_a_sender_replaces_its_last_one(tmp_path: Path) -> None:
    with closing(listening(tmp_path)) as receiver, raw(receiver.address, "s") as (first, answers):
        assert next(answers) == b"0\n"
        first.sendall(b"a\nhalf of ")
        assert next(answers) == b"1\n"
        with raw(receiver.address, "s") as (second, again):
            assert next(again) == b"1\n"
            second.sendall(b"b\n")
            assert next(again) == b"2\n"
            assert next(answers, b"") == b""
            assert values(receiver, 0, receiver.latest(0, None)) == ["a", "b"]
