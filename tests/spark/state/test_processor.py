"""Processors written for transformWithState: their output equals that of Spark's own operator, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor

import skewless.spark as sl
from tests.spark.batches import BEGIN, batch_of, output_of, read, run_to_end, write

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]
OUTPUT = "k string, what string, at long, said string"
ROCKS = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


_OUTPUT_OF_SPARK: dict[str, Counter[tuple[Any, ...]]] = {}


def by_spark(spark: SparkSession, folder: Path, name: str, result: Callable[[], DataFrame]) -> Counter[tuple[Any, ...]]:
    """Returns the output of Spark's own operator, which runs once per name, for the same rows.

    result: makes the DataFrame of Spark's operator.
    """
    if name not in _OUTPUT_OF_SPARK:
        _OUTPUT_OF_SPARK[name] = run_on_spark(spark, folder, result)
    return _OUTPUT_OF_SPARK[name]


def run_on_spark(spark: SparkSession, folder: Path, result: Callable[[], DataFrame]) -> Counter[tuple[Any, ...]]:
    settings = {
        "spark.sql.streaming.stateStore.providerClass": ROCKS,
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    before = {name: str(spark.conf.get(name)) for name in settings}
    for name, value in settings.items():
        spark.conf.set(name, value)
    try:
        writer = result().writeStream.format("parquet").outputMode("append").trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(folder / "of spark")).start(str(folder / "by spark"))
        assert query.awaitTermination(300)
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)
    return output_of(spark, folder / "by spark")


def remembering() -> Any:
    """Returns a processor with a value, a list, a map and timers, of a nested class: Spark pickles it by value."""

    class Remembering(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "n long, last timestamp, seen array<string>")
            self.recent = handle.getListState("recent", "v long, ts timestamp")
            self.parts = handle.getMapState("parts", "sign string, odd boolean", "n long, most long")

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
            assert list(self.recent.get()) or not self.recent.exists()
            frame = pd.concat(list(rows))
            n, _, seen = self.total.get() if self.total.exists() else (0, None, [])
            latest = frame["ts"].max()
            self.total.update((n + len(frame), latest, [*seen, str(len(frame))]))
            values = [int(v) if v == v and v is not None else None for v in frame["v"]]
            self.recent.appendValue((values[0], frame["ts"].iloc[0]))
            if len(values) > 1:
                self.recent.appendList(list(zip(values[1:], frame["ts"].iloc[1:], strict=True)))
            for value in values:
                part = ("none", None) if value is None else ("+" if value >= 0 else "-", value % 2 == 1)
                most: Any
                stored: Any = self.parts.getValue(part)
                assert (stored is not None) == self.parts.containsKey(part)
                count, most = (stored.n, stored.most) if stored is not None else (0, value)
                self.parts.updateValue(part, (count + 1, None if value is None else max(most, value)))
            end = int(latest.timestamp() * 1000)
            for delay in (0, 4_000, 4_001, 11_000):
                self.handle.registerTimer(end + delay)
            self.handle.registerTimer(timerValues.getCurrentWatermarkInMs())
            if len(frame) % 3 == 0:
                self.handle.deleteTimer(end + 4_001)
                self.handle.deleteTimer(-1)
            yield self.row(key, "rows", timerValues.getCurrentWatermarkInMs())

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
            at = expiredTimerInfo.getExpiryTimeInMs()
            yield self.row(key, f"timer {timerValues.getCurrentWatermarkInMs()}", at)
            left = sorted(self.handle.listTimers())
            if at > 0 and at % 5 == 0:
                self.handle.registerTimer(at - 1_000_003)  # expired already: handled in the next batch
                self.handle.registerTimer(at)
                self.handle.deleteTimer(left[-1])
            if at % 7 == 0:
                self.total.clear()
                self.recent.put(sorted(self.recent.get(), key=str)[:2] or [(at, None)])
                for part in sorted(self.parts.keys(), key=str)[: 1 if at % 2 else None]:
                    self.parts.removeKey(part)
            if left == [at]:
                self.total.clear()
                self.recent.clear()
                self.parts.clear()

        def row(self, key: Any, what: str, at: int) -> pd.DataFrame:
            collections = self.recent.get(), self.parts.iterator(), self.parts.values()
            contents = [sorted(map(repr, items)) for items in collections]
            said = repr((self.total.get(), self.recent.exists(), self.parts.exists(), sorted(self.handle.listTimers())))
            return pd.DataFrame({"k": list(key), "what": what, "at": at, "said": f"{said} {contents}"})

        def close(self) -> None:
            del self.handle

    return Remembering()


def test_a_processor_has_the_output_it_has_on_spark_across_a_restart_and_a_rescale(
    spark: SparkSession, tmp_path: Path
) -> None:
    batches = [batch_of(40, number, late=0.2) for number in range(4)]
    source = write(tmp_path / "in", batches[:2])
    stream = sl.stream(read(spark, source), "k", time="ts", watermark="5 seconds", partitioner="kip", n_workers=2)
    job = stream.transformWithStateInPandas(remembering(), OUTPUT, "EventTime")
    run_to_end(job, str(tmp_path / "out"), tmp_path / "checkpoint")
    write(tmp_path / "in", batches[2:])
    query = job.start(str(tmp_path / "out"), str(tmp_path / "checkpoint"), available_now=True)
    query.rescale(3)
    assert query.awaitTermination(300)
    records = query.recent()
    assert [records[0]["workers"], records[-1]["workers"]] == [2, 3]
    assert [record["batch"] for record in records] == [0, 1, 2, 3]
    assert records[-1]["late"] > 0

    def result() -> DataFrame:
        events = read(spark, source).withWatermark("ts", "5 seconds").groupBy("k")
        return events.transformWithStateInPandas(remembering(), OUTPUT, "append", "EventTime")

    output = output_of(spark, tmp_path / "out")
    assert output == by_spark(spark, tmp_path, "event time", result)
    expired = [at for _, what, at, _ in output if what.startswith("timer")]
    assert len(expired) > 50
    assert 0 < min(filter(None, expired)) < BEGIN.timestamp() * 1000 - 900_000 < max(expired)
    states = sl.read_state(spark, str(tmp_path / "checkpoint")).collect()
    assert states
    assert all(row.timeout == (min(row.timers) if row.timers else None) for row in states)
    assert all(row.total or row.recent or row.parts or row.timers for row in states)


def alarmed() -> Any:
    """Returns a processor of rows with timers in processing time; its output does not depend on the time of day."""

    class Alarmed(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.handle = handle
            self.set = handle.getValueState("set", "n long, at long")

        def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:  # noqa: N802, N803
            n, _ = self.set.get() or (0, 0)
            self.set.update((n + initialState.n, timerValues.getCurrentProcessingTimeInMs()))
            self.handle.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)

        def handleInputRows(self, key: Any, rows: Iterator[Row], timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803
            now = timerValues.getCurrentProcessingTimeInMs()
            n, _ = self.set.get() or (0, 0)
            n += sum(1 for row in rows if row.ts is not None and row.k == key[0])
            self.set.update((n, now))
            for delay in (0, 1, 10**12):  # expires in this batch, in the next, never
                self.handle.registerTimer(now + delay)
            said = f"{len(list(self.handle.listTimers()))} {timerValues.getCurrentWatermarkInMs()}"
            yield Row(k=key[0], what="rows", at=n, said=said)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:  # noqa: N802, N803
            left = sorted(self.handle.listTimers())
            assert left[0] == expiredTimerInfo.getExpiryTimeInMs() <= timerValues.getCurrentProcessingTimeInMs()
            yield Row(k=key[0], what="timer", at=self.set.get()[0], said=str(len(left)))

    return Alarmed()


def test_rows_initial_states_and_processing_time_are_as_on_spark(spark: SparkSession, tmp_path: Path) -> None:
    source = write(tmp_path / "in", [batch_of(20, number) for number in range(2)])
    begin = spark.createDataFrame([("k1", 100), ("k1", 7), ("gone", 1), (None, 5)], "k string, n long")
    mode: Any = "processingtime"
    job = sl.stream(read(spark, source), "k", n_workers=2).transformWithState(alarmed(), OUTPUT, mode, begin)
    run_to_end(job, str(tmp_path / "out"), tmp_path / "checkpoint")

    def result() -> DataFrame:
        events, states = read(spark, source).groupBy("k"), begin.groupBy("k")
        return events.transformWithState(alarmed(), OUTPUT, "append", "ProcessingTime", states)

    assert output_of(spark, tmp_path / "out") == by_spark(spark, tmp_path, "processing time", result)


def counting(kind: str = "n long", **options: Any) -> Any:
    class Counting(StatefulProcessor):
        def init(self, handle: Any) -> None:
            self.n = handle.getValueState("n", kind, **options)

        def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # noqa: N802, N803
            return iter([])

    return Counting()


def test_bad_processors_are_refused_before_anything_runs(spark: SparkSession, tmp_path: Path) -> None:
    class Stateless(StatefulProcessor):
        def init(self, handle: Any) -> None:
            handle.deleteIfExists("n")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:  # noqa: N802, N803
            return iter([])

    stream = sl.stream(read(spark, write(tmp_path / "in", [])), "k", n_workers=2)
    for processor, mode, message in (
        (print, "None", "an instance of a StatefulProcessor, not"),
        (type(counting()), "None", "an instance of a StatefulProcessor, not"),
        (Stateless(), "None", "declares no state"),
        (counting(), "Update", "timeMode is one of None, ProcessingTime, EventTime, not 'Update'"),
        (counting(), "EventTime", "need the time of rows"),
        (counting(ttlDurationMs=1000), "ProcessingTime", "ttlDurationMs of 1000"),
        (counting("n interval year"), "None", "cannot have fields of type interval year"),
    ):
        with pytest.raises(ValueError, match=message):
            stream.transformWithStateInPandas(processor, OUTPUT, mode)  # type: ignore[arg-type]
    run_to_end(stream.transformWithStateInPandas(counting(), OUTPUT), str(tmp_path / "out"), tmp_path / "checkpoint")
    changed = stream.transformWithStateInPandas(counting("n double"), OUTPUT)
    with pytest.raises(
        ValueError, match=r"state was struct<n:struct<n:bigint>>, and is struct<n:struct<n:double>> now"
    ):
        changed.start(str(tmp_path / "out"), str(tmp_path / "checkpoint"))
