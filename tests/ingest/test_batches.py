"""Batches of a log: they close early, their blocks are planned by then, and each row is in one of them."""

from __future__ import annotations

import time
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from threading import Thread

import pytest

from skewless.ingest import batches, heartbeat
from skewless.ingest.receiver import Receiver
from skewless.ingest.sender import send
from tests.ingest.receiving import listening, values, words

pytestmark = pytest.mark.compiled


def release(receiver: Receiver, monkeypatch: pytest.MonkeyPatch, planned: bool = True) -> None:
    """Lets the time come at which the arriving batch closes early, and waits until it is planned."""
    now = time.monotonic()
    monkeypatch.setattr(heartbeat.Heartbeat, "closing", property(lambda _: now))
    with receiver._changed:
        receiver._changed.notify_all()
    batches_of = receiver._batches
    while batches_of._last_closing != now or (planned and not any(each.planned_for for each in batches_of._waiting)):
        assert time.monotonic() < now + 60
        time.sleep(0.01)


def test_rows_after_the_early_release_belong_to_the_next_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("the blocks were not ready when Spark asked")

    with closing(listening(tmp_path)) as receiver:
        send(words(50), receiver.address, name="s")
        start = receiver.latest(0, None)
        assert len(values(receiver, 0, start)) == 50
        send(words(80), receiver.address, name="s")
        release(receiver, monkeypatch)
        send(words(100), receiver.address, name="s")
        with monkeypatch.context() as context:
            context.setattr(batches, "divided", refuse)
            end = receiver.latest(start, None)
            assert values(receiver, start, end) == sorted(words(80)[50:])
        assert values(receiver, end, receiver.latest(end, None)) == sorted(words(100)[80:])


def test_a_batch_that_is_due_without_rows_closes_when_spark_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(listening(tmp_path)) as receiver:
        send(words(50), receiver.address, name="s")
        start = receiver.latest(0, None)
        assert len(values(receiver, 0, start)) == 50
        release(receiver, monkeypatch, planned=False)
        for number in (60, 70, 80):
            send(words(number), receiver.address, name="s")
            with receiver._changed:
                receiver._changed.notify_all()
        assert values(receiver, start, receiver.latest(start, None)) == sorted(words(80)[50:])


def test_full_batches_wait_in_order(tmp_path: Path) -> None:
    lines = words(1000)
    with closing(listening(tmp_path, most_rows=300)) as receiver:
        for number in range(100, 1001, 100):
            send(lines[:number], receiver.address, name="s")
        end, found = receiver.begin, []
        while (following := receiver.latest(end, 300)) > end:
            found.append(values(receiver, end, following))
            end = following
    assert found == [sorted(lines[first : first + 300]) for first in range(0, 1000, 300)]


def test_each_row_is_in_one_batch_and_each_batch_can_be_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With heartbeats at even intervals, while rows arrive; batches close early by half an interval."""
    monkeypatch.setattr(heartbeat, "SHARE", 0.5)
    monkeypatch.setattr(heartbeat, "MARGIN", 1e9)
    lines, found, ends, early = words(30_000), list[str](), [0], 0
    with closing(listening(tmp_path)) as receiver:

        def sending() -> None:
            for number in range(500, len(lines) + 1, 500):
                send(lines[:number], receiver.address, name="s")
                time.sleep(0.02)

        thread = Thread(target=sending)
        thread.start()
        while thread.is_alive() or receiver.end > ends[-1]:
            time.sleep(0.1)
            ends.append(receiver.latest(ends[-1], None))
            early += receiver.end > ends[-1]
            found += values(receiver, *ends[-2:])
        assert sorted(found) == sorted(lines)
        again = [value for start, end in pairwise(ends) for value in values(receiver, start, end)]
    assert sorted(again) == sorted(lines)
    assert len(set(ends)) > 8
    assert early > 4
