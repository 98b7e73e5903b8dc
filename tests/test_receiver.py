"""The receiver without Spark: real sockets and files, crashes, and blocks that keep algorithm 2's promises."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from skewless import journal, measure, streams
from skewless.journal import Frame, Journal, Pages
from skewless.receiver import Receiver
from skewless.records import Block, Lines, read
from skewless.sender import send

pytestmark = pytest.mark.compiled

TEXT = Lines(pa.schema([("value", pa.string())]), "value", text=True)
EVENTS = Lines(pa.schema([("k", pa.string()), ("n", pa.int64()), ("ts", pa.timestamp("us", "UTC"))]), "k", text=False)


def listening(log: Path, lines: Lines = TEXT, **params: Any) -> Receiver:
    return Receiver(log, lines, ("127.0.0.1", 0), **{"pending": 1 << 30, "most_rows": None, **params})


def rows(blocks: list[Block], lines: Lines = TEXT) -> list[dict[str, Any]]:
    return [row for block in blocks for records in read(block, lines.schema) for row in records.to_pylist()]


def values(receiver: Receiver, start: int, end: int, n_workers: int = 3) -> list[str]:
    return sorted(row["value"] for row in rows(receiver.blocks(start, end, n_workers)))


def words(n: int, exponent: float = 1.2) -> list[str]:
    return [f"w{key}" for key in streams.zipf(n, 500, exponent)]


def frames(log: Path, end: int) -> list[Frame]:
    with Pages(log) as pages:
        return [*pages.frames(0, end)]


@contextmanager
def raw(address: str, name: str) -> Iterator[tuple[socket.socket, Iterator[bytes]]]:
    """A connection as anybody might make one, and the lines that are heard."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port))) as connection, connection.makefile("rb") as answers:
        connection.sendall(f"{name}\n".encode())
        yield connection, iter(answers)


def test_lines_of_many_senders_come_out_once(tmp_path: Path) -> None:
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


def test_json_becomes_rows_of_the_schema(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"k": "a", "n": 1, "ts": "2026-01-01T00:00:00Z", "other": [1]},
        {"n": -5, "k": "ü"},
        {"k": None},
    ]
    with closing(listening(tmp_path, EVENTS)) as receiver:
        assert send(records, receiver.address, name="s") == 3
        found = rows(receiver.blocks(0, receiver.latest(0, None), 1), EVENTS)
    assert [(row["k"], row["n"]) for row in found] == [("a", 1), ("ü", -5), (None, None)]
    assert found[0]["ts"].isoformat() == "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    "bad", ["no json", '{"k": 1}', '{"n": "x"}', "", '{"k": "a"} {"k": "b"}', '["k"]', '{"n": 1.5}', '{"k":']
)
def test_a_line_that_cannot_be_read_is_refused_and_all_before_it_are_kept(tmp_path: Path, bad: str) -> None:
    good = [json.dumps({"k": f"k{i}", "n": i}) for i in range(700)]
    with closing(listening(tmp_path, EVENTS)) as receiver:
        with pytest.raises(ValueError, match="line 701 cannot be read"):
            send([*good, bad, *good], receiver.address, name="s")
        found = rows(receiver.blocks(0, receiver.latest(0, None), 2), EVENTS)
        assert sorted(row["n"] for row in found) == [*range(700)]
        assert send([*good, *good], receiver.address, name="s") == 1400


def test_bytes_that_are_no_text_long_names_and_no_names_are_refused(tmp_path: Path) -> None:
    with closing(listening(tmp_path)) as receiver:
        for name, line, why in (
            ("s", b"\xff\xfe\n", b"cannot be read"),
            ("n" * 500, b"x\n", b"name"),
            ("", b"", b"name"),
        ):
            with raw(receiver.address, name) as (connection, answers):
                connection.sendall(line)
                assert why in b"".join(answers)
        assert receiver.latest(0, None) == 0
        assert receiver.blocks(0, receiver.end, 2) == []


def test_an_acknowledged_line_is_on_the_disk_and_one_cut_off_is_not_taken_for_true(tmp_path: Path) -> None:
    with closing(listening(tmp_path)) as receiver, raw(receiver.address, "s") as (connection, answers):
        assert next(answers) == b"0\n"
        for number in range(1, 4):
            connection.sendall(f"line {number}\n".encode())
            assert next(answers) == b"%d\n" % number
            assert [frame.notes["tally"] for frame in frames(tmp_path, receiver.end)] == [*range(1, number + 1)]
    (file,) = tmp_path.glob("*.log")
    size = file.stat().st_size
    last = frames(tmp_path, size)[-1].address
    for cut in (*range(last, size, 17), size - 1):
        content = file.read_bytes()
        os.truncate(file, cut)
        with closing(listening(tmp_path)) as receiver:
            assert values(receiver, 0, receiver.latest(0, None)) == ["line 1", "line 2"]
            assert send(["line 1", "line 2", "line 3"], receiver.address, name="s") == 3
            assert values(receiver, 0, receiver.end) == ["line 1", "line 2", "line 3"]
        file.write_bytes(content)


def test_damage_names_the_file(tmp_path: Path) -> None:
    with closing(listening(tmp_path)) as receiver:
        for number in range(3):
            send([f"line {number}"], receiver.address, name=f"s{number}")
        middle = frames(tmp_path, receiver.end)[1].address
        end = receiver.latest(0, None)
        (file,) = tmp_path.glob("*.log")
        content = bytearray(file.read_bytes())
        content[middle + 30] ^= 1
        file.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{file.name} is damaged at byte {middle}"):
            rows(receiver.blocks(0, end, 1))
    with pytest.raises(ValueError, match=rf"{file.name} is damaged at byte {middle}"):
        listening(tmp_path)


def test_files_that_are_done_with_go_and_senders_are_remembered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "SEGMENT", 20_000)
    lines = words(20_000)
    with closing(listening(tmp_path, most_rows=500)) as receiver:
        send(lines, receiver.address, name="s")
        start, found = 0, list[str]()
        assert len([*tmp_path.glob("*.log")]) > 5
        while (end := receiver.latest(start, 500)) > start:
            batch = values(receiver, start, end)
            assert 0 < len(batch) <= 500
            found += batch
            start = end
            receiver.forget(end)
        assert sorted(found) == sorted(lines)
        assert len([*tmp_path.glob("*.log")]) == 1
        for ask in (lambda: receiver.latest(0, None), lambda: receiver.blocks(start, start + 5000, 2)):
            with pytest.raises(ValueError, match="is not the log of this checkpoint"):
                ask()
    with closing(listening(tmp_path)) as receiver:
        assert send(lines, receiver.address, name="s") == 20_000
        assert receiver.latest(start, None) == start == receiver.end


def test_a_file_that_was_cut_off_at_its_very_beginning_is_no_file(tmp_path: Path) -> None:
    with closing(listening(tmp_path)) as receiver:
        send(["a"], receiver.address, name="s")
        end = receiver.end
    for content in (b"", b"\x10\x00\x00"):
        (tmp_path / f"{end:020d}.log").write_bytes(content)
        with closing(listening(tmp_path)) as receiver:
            assert receiver.end == end
            assert values(receiver, 0, receiver.latest(0, None)) == ["a"]


def test_another_log_or_a_log_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "PATIENCE", 0.2)
    with closing(listening(tmp_path)), pytest.raises(ValueError, match="in use by another receiver"):
        listening(tmp_path)
    with pytest.raises(ValueError, match="take another one"):
        listening(tmp_path, EVENTS)
    (file,) = tmp_path.glob("*.log")
    file.write_bytes(file.read_bytes())
    with closing(listening(tmp_path)):
        pass


@pytest.mark.parametrize("n_workers", [4, 16])
def test_blocks_are_those_of_algorithm_2(tmp_path: Path, n_workers: int) -> None:
    """Equal sizes, equal numbers of keys, few keys in two blocks; gathered as they come, or again from the log."""
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
        assert receiver.end == waiting  # a batch that is being worked at is not done
        receiver.latest(end, None)
        connection.settimeout(60.0)
        # Enough lines are on their way already, in what the kernel holds.
        assert any(int(answer) > waiting // 1000 + 200 for answer in answers)


def test_who_comes_again_supersedes_his_last_connection(tmp_path: Path) -> None:
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


RUN = """
import sys, pyarrow as pa
from skewless.receiver import Lines, Receiver
lines = Lines(pa.schema([("value", pa.string())]), "value", text=True)
r = Receiver(sys.argv[1], lines, ("127.0.0.1", int(sys.argv[2])), pending=1 << 30, most_rows=None)
print(r.address, flush=True)
sys.stdin.read()
"""


def test_no_line_is_lost_or_doubled_when_the_receiver_is_killed(tmp_path: Path) -> None:
    def run(port: str) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-c", RUN, str(tmp_path), port], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        return process, process.stdout.readline().strip()

    def kill() -> None:
        with process:
            process.send_signal(signal.SIGKILL)

    process, address = run("0")
    lines = [f"line {number}" for number in range(60_000)]

    def records() -> Iterator[str]:
        """Kills the receiver now and then, while lines are on their way."""
        nonlocal process
        for number, line in enumerate(lines):
            if number in (20_000, 41_000):
                kill()
                process, again = run(address.split(":")[1])
                assert again == address
            yield line

    assert send(records(), address, name="s") == 60_000
    kill()
    with closing(listening(tmp_path)) as receiver:
        assert values(receiver, 0, receiver.latest(0, None)) == sorted(lines)


def test_a_sender_says_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="host:port"):
        send([], "nowhere", name="s")
    with pytest.raises(ValueError, match="name"):
        send([], "127.0.0.1:1", name=" ")
    with pytest.raises(TimeoutError, match="0 lines are safe"):
        send(["a"], "127.0.0.1:1", name="s", patience=0.2)
    with closing(listening(tmp_path)) as receiver:
        with pytest.raises(ValueError, match="one line"):
            send(["a\nb"], receiver.address, name="s")

        def broken() -> Iterator[str]:
            yield "a"
            raise FileNotFoundError("gone")

        with pytest.raises(RuntimeError, match="cannot be had"):
            send(broken(), receiver.address, name="s", patience=0.5)
        send(["a", "b"], receiver.address, name="t")
        with pytest.raises(ValueError, match="more lines of t than there are"):
            send(["a"], receiver.address, name="t")


def test_a_journal_that_cannot_be_written_says_so_from_then_on(tmp_path: Path) -> None:
    log = Journal(tmp_path, {})
    log._file.close()
    with Path("/dev/full").open("wb", buffering=0) as full:
        log._file = full
        for _ in range(2):
            with pytest.raises(ValueError, match=r"0+\.log cannot be written: .*No space"):
                log.append(b"x", 1, 0, "s", 1)
    assert log.tallies == {}
    log.close()
