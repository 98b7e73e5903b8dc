"""A background thread runs one job at a time, and hands over its result or its error. No Spark is started."""

from __future__ import annotations

from threading import Event, Thread

import pytest

from skewless.spark.streaming.background import Background

pytestmark = pytest.mark.compiled


def test_a_result_is_taken_once_it_is_there() -> None:
    background: Background[int] = Background("test")
    assert not background.is_busy
    may_end = Event()
    background.submit(lambda: 7 if may_end.wait(60) else 0)
    assert background.is_busy
    assert not background.is_done
    with pytest.raises(AssertionError, match="take the result of the last job first"):
        background.submit(lambda: 8)
    may_end.set()
    assert background.result() == 7
    assert not background.is_busy
    background.close()


def test_an_error_is_raised_where_the_result_is_taken_and_the_next_job_runs() -> None:
    background: Background[int] = Background("test")

    def fail() -> int:
        raise OSError("the disk is full")

    background.submit(fail)
    with pytest.raises(OSError, match="the disk is full"):
        background.result()
    background.submit(lambda: 8)
    assert background.result() == 8
    background.close()


def test_closing_waits_for_the_job_that_is_running() -> None:
    background: Background[None] = Background("test")
    begun, may_end, ended = Event(), Event(), Event()

    def work() -> None:
        begun.set()
        assert may_end.wait(60)
        ended.set()

    background.submit(work)
    assert begun.wait(60)
    closing = Thread(target=background.close)
    closing.start()
    closing.join(timeout=0.2)
    assert closing.is_alive()
    assert not ended.is_set()
    may_end.set()
    closing.join(timeout=60)
    assert not closing.is_alive()
    assert ended.is_set()
