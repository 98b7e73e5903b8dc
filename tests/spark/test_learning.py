"""What lies between the batches of a stream: plans that are learned, and files that keep them. No Spark is started."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skewless
from skewless import streams
from skewless.histogram import Histogram
from skewless.partitioners import ALL
from skewless.partitioners.planner import Planner
from skewless.spark import checkpoint
from skewless.spark.checkpoint import Checkpoint
from skewless.spark.exact import Sourced, Sources
from skewless.spark.learn import Cooperation, Learner, Lesson
from skewless.spark.panes import Span
from skewless.spark.sink import claim
from skewless.spark.stream import duration
from skewless.spark.windows import reducing
from skewless.table import RoutingTable

pytestmark = pytest.mark.compiled


def histogram_of(keys: np.ndarray, most: int = 4096) -> Histogram:
    distinct, counts = np.unique(keys, return_counts=True)
    order = np.lexsort((distinct, -counts))[:most]
    return Histogram(distinct[order], counts[order].astype(float), float(keys.size - counts[order].sum()))


def same(one: RoutingTable, other: RoutingTable) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in ("hosts", "keys", "workers", "parts")
    )


@pytest.mark.parametrize("name", ["level", "kip", "auto", "prompt", "mixed"])
def test_counting_for_a_planner_is_as_good_as_its_own_counting(name: str) -> None:
    keys = streams.zipf(20_000, 2_000, 1.2)
    counted, told = (skewless.partitioner(name, 8) for _ in range(2))
    assert isinstance(counted, Planner)
    assert isinstance(told, Planner)
    for _ in range(2):
        counted.observe(keys)
        told.count(histogram_of(keys))
        for p in (counted, told):
            p.adopt(p.merge([p.snapshot()]))
        assert same(counted.table(), told.table())


@pytest.mark.parametrize("name", ["kip", "level", "auto", "mixed"])
def test_a_planner_for_other_workers_knows_as_much(name: str) -> None:
    keys = streams.zipf(50_000, 5_000, 1.0)
    p = skewless.partitioner(name, 8)
    assert isinstance(p, Planner)
    p.count(histogram_of(keys))
    p.adopt(p.merge([p.snapshot()]))
    for n in (12, 5):
        other = p.resized(n)
        assert other.n_workers == n
        if not p.splits_keys:  # a split key has no one place where it could stay
            stays = p.table().route(keys) == other.table().route(keys)
            assert stays.mean() > 0.9 * min(n, 8) / max(n, 8)
        assert set(np.unique(other.route(keys)).tolist()) <= set(range(n))
        fresh = skewless.partitioner(name, n)
        assert isinstance(fresh, Planner)
        for planner in (other, fresh):
            planner.count(histogram_of(keys))
            planner.adopt(planner.merge([planner.snapshot()]))
        ratios = [skewless.measure(keys, planner.route(keys), n).imbalance_ratio for planner in (other, fresh)]
        assert ratios[0] < 1.05 * ratios[1]
        largest = np.bincount(keys.astype(np.int64)).max() / keys.size
        if name != "mixed":  # which gives up more balance for fewer moves
            assert ratios[0] < 1.05 * (1.0 if p.splits_keys else max(1.0, n * largest))


@pytest.mark.parametrize("name", [cls.name for cls in ALL])
def test_plans_are_learned_and_found_again(tmp_path: Path, name: str) -> None:
    files = Checkpoint(str(tmp_path))
    learner = Learner(files, skewless.partitioner(name, 4))
    plain = learner.plan(0, 4)
    assert plain.reason.startswith("hashed")
    assert learner.ignorant
    keys = streams.zipf(20_000, 1_000, 1.5)
    learner.later(0, Lesson(histogram_of(keys)))
    plan = learner.plan(1, 4)
    assert not learner.ignorant
    assert isinstance(plan.table, RoutingTable)
    ratio = skewless.measure(keys, plan.table.route(keys), 4).imbalance_ratio
    exact = skewless.partitioner(name, 4)
    if exact.plans_ahead:
        exact.observe(keys)
        exact.adopt(exact.merge([exact.snapshot()]))
    if name not in ("cm", "am", "lm"):  # these even out keys, not tuples
        assert ratio < 1.1 * skewless.measure(keys, exact.route(keys), 4).imbalance_ratio + 0.1
    again = Learner(files, skewless.partitioner(name, 4))
    found = again.plan(1, 4)
    assert isinstance(found.table, RoutingTable)
    assert same(found.table, plan.table)
    assert found.reason == plan.reason
    # A crash before the next plan was written: the last one serves once more.
    late = Learner(files, skewless.partitioner(name, 4)).plan(2, 4)
    assert isinstance(late.table, RoutingTable)
    assert same(late.table, plan.table)
    other = Learner(files, skewless.partitioner("hash", 4, seed=1))
    assert other.plan(2, 4).reason == "hash from now on"
    more = Learner(files, skewless.partitioner("hash", 6, seed=1))
    assert more.plan(2, 6).reason == "6 workers instead of 4"
    for one in (learner, again, other, more):
        one.close()


class Dying(Checkpoint):
    """Dies when it has written so many files."""

    def __init__(self, directory: str, left: int) -> None:
        super().__init__(directory)
        self.left = left

    def write(self, name: str, content: Any) -> None:
        if self.left == 0:
            raise InterruptedError("dead")
        self.left -= 1
        super().write(name, content)


@pytest.mark.parametrize("left", [0, 1])
def test_a_query_that_dies_while_it_is_rescaled_has_its_plan_and_what_it_knew(tmp_path: Path, left: int) -> None:
    keys = streams.zipf(20_000, 1_000, 1.5)
    learner = Learner(Checkpoint(str(tmp_path)), skewless.partitioner("kip", 4))
    learner.plan(0, 4)
    learner.later(0, Lesson(histogram_of(keys)))
    learner.plan(1, 4)
    dying = Learner(Dying(str(tmp_path), left), skewless.partitioner("kip", 4))
    with suppress(InterruptedError):  # before the first file, or the second, if there is one
        dying.plan(1, 7)
    again = Learner(Checkpoint(str(tmp_path)), skewless.partitioner("kip", 4))
    found = again.plan(1, 4).table
    again.later(1, Lesson(histogram_of(keys)))
    table = again.plan(2, 4).table
    assert isinstance(found, RoutingTable)
    assert isinstance(table, RoutingTable)
    assert (table.route(keys) == found.route(keys)).mean() > 0.95, "it knows where things are"
    for one in (learner, dying, again):
        one.close()


def test_a_table_that_was_given_stays(tmp_path: Path) -> None:
    table = RoutingTable.hashed(3)
    learner = Learner(Checkpoint(str(tmp_path)), table)
    for batch in range(2):
        plan = learner.plan(batch, 3)
        assert plan.table is table
        learner.later(batch, Lesson(histogram_of(streams.zipf(1000, 10, 1.0))))
    learner.close()


def test_reasons_name_keys_by_their_ranks_only(tmp_path: Path) -> None:
    learner = Learner(Checkpoint(str(tmp_path)), skewless.partitioner("level", 4))
    learner.plan(0, 4)
    histogram = Histogram(np.array([77, 78, 79], np.uint64), np.array([60.0, 30.0, 10.0]))
    learner.later(0, Lesson(histogram))
    reason = learner.plan(1, 4).reason
    assert reason.startswith("level; split key #1 over 3 workers: 60% of rows")
    assert "77" not in reason
    learner.close()


def test_sources_agree_between_batches_and_go_on_after_a_crash(tmp_path: Path) -> None:
    files, p = Checkpoint(str(tmp_path)), skewless.partitioner("dalton", 4)
    cooperation = Cooperation(files, p)
    first = cooperation.plan(0, 4).table
    assert isinstance(first, Sourced)
    assert first.sources == Sources()
    left = {}
    for number in range(2):
        source = skewless.partitioner("dalton", 4)
        source.route(streams.zipf(5_000, 100, 1.5, seed=number))
        left[number] = skewless.arrays.to_bytes(source.snapshot())
    cooperation.later(0, Lesson(None, Sources(None, left), 0, 1.0))
    after = cooperation.plan(1, 4).table
    assert isinstance(after, Sourced)
    assert after.sources.policy is not None
    assert set(after.sources.snapshots) == {0, 1}
    again = Cooperation(files, p).plan(1, 4).table
    assert isinstance(again, Sourced)
    assert again.sources == after.sources
    cooperation.close()


def test_parts_of_split_keys_are_merged_on_workers_in_turn() -> None:
    keys = np.repeat(np.arange(6, dtype=np.uint64), 4)
    table = RoutingTable.distill(keys, np.tile(np.arange(4, dtype=np.int32), 6), 4)
    merging = reducing(table)
    assert table.splits_keys
    assert not merging.splits_keys
    assert np.bincount(merging.places_of(merging.keys), minlength=4).max() == 2
    assert np.array_equal(merging.hosts, table.hosts)


@pytest.mark.parametrize(("size", "slide"), [(60, 60), (60, 20), (50, 20), (7, 3)])
def test_every_pane_is_in_the_windows_that_it_says(size: int, slide: int) -> None:
    span = Span(size, slide)
    starts = range(-40 * slide, 100 * slide, slide)
    for pane in range(-3 * size // span.pane * span.pane, 4 * size, span.pane):
        having = [start for start in starts if start <= pane and pane + span.pane <= start + size]
        assert (span.first(pane), span.last(pane)) == (having[0], having[-1])
    for watermark in range(-20, 200):
        assert span.first_open(watermark) == next(start for start in starts if start + size > watermark)


def test_lengths_of_time() -> None:
    assert duration("x", "10 seconds") == 10_000_000
    assert duration("x", "1 minute 30 seconds") == 90_000_000
    assert duration("x", "5 milliseconds") == 5_000
    for wrong in ("", "ten seconds", "10", "10 years", "10 seconds ago", 10):
        with pytest.raises(ValueError, match="x is a length of time"):
            duration("x", wrong)  # type: ignore[arg-type]


def test_files_of_a_checkpoint_are_whole_or_refused(tmp_path: Path) -> None:
    files = Checkpoint(str(tmp_path))
    assert files.read("a/1.json") is None
    files.write("a/1.json", {"x": 1})
    assert files.read("a/1.json") == {"x": 1}
    (tmp_path / "skewless/a/2.json.tmp").write_text("half")
    assert files.numbered("a") == [1]
    place = tmp_path / "skewless/a/1.json"
    place.write_bytes(place.read_bytes()[:-1])
    with pytest.raises(OSError, match=r"a/1\.json is damaged"):
        files.read("a/1.json")
    files.forget("a", [1, 7], ".json")
    assert files.numbered("a") == []
    place.mkdir()
    with pytest.raises(OSError, match=r"cannot write .*a/1\.json"):
        files.write("a/1.json", 1)


def test_records_survive_torn_lines_and_do_not_pile_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Checkpoint(str(tmp_path))
    monkeypatch.setattr(checkpoint, "KEPT", 5)
    monkeypatch.setattr(checkpoint, "_LENGTH", 20)
    for batch in range(30):
        files.record({"batch": batch})
    place = tmp_path / "skewless/batches.jsonl"
    with place.open("a") as file:
        file.write('\n{"batch": 3')
    files.record({"batch": 30})
    batches = [record["batch"] for record in files.records()]
    assert batches[-5:] == [26, 27, 28, 29, 30]
    assert len(batches) < 25
    assert all(json.loads(line) for line in place.read_text().splitlines() if line and not line.endswith(": 3"))


def test_a_checkpoint_belongs_to_one_query_and_one_format(tmp_path: Path) -> None:
    files = Checkpoint(str(tmp_path))
    name = files.identify({"key": "a", "window": "10"})
    assert files.identify({"key": "a", "window": "10"}) == name
    with pytest.raises(ValueError, match="window was 10, and is 20 now"):
        files.identify({"key": "a", "window": "20"})
    known = files.read("query.json")
    files.write("query.json", known | {"format": 99})
    with pytest.raises(ValueError, match="has format 99; this version of skewless reads 3"):
        files.identify({"key": "a", "window": "10"})


def test_a_sink_belongs_to_one_query_even_if_that_died_while_it_claimed_it(tmp_path: Path) -> None:
    (tmp_path / "_skewless.tmp").write_text("mi")
    for _ in range(2):
        claim(str(tmp_path), "mine")
    with pytest.raises(ValueError, match="has the output of another query"):
        claim(str(tmp_path), "yours")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(ValueError, match="is not empty"):
        claim(str(tmp_path / "other"), "mine")
