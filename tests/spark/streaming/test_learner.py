"""Plans that are learned from batches, and found again in files. No Spark is started."""

from __future__ import annotations

from base64 import b64encode
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import skewless
from skewless import streams
from skewless.histogram import Histogram
from skewless.partitioners import ALL
from skewless.partitioners.level import Level
from skewless.planning.planner import Planner
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.learner import Lesson, TableLearner
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
        if not p.splits_keys:  # a split key has no single worker to stay on
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


@pytest.mark.parametrize(("p", "is_found"), [(0.5, True), (0.6, False)])
def test_a_plan_of_an_older_version_that_had_fewer_parameters_is_found(
    tmp_path: Path, p: float, is_found: bool
) -> None:
    files = Checkpoint(str(tmp_path))
    learner = TableLearner(files, skewless.partitioner("lm", 8))
    learner.plan(0, 8)
    learner.learn(0, Lesson(histogram=histogram_of(streams.zipf(20_000, 2_000, 1.2))))
    reason = learner.plan(1, 8).reason
    learner.close()
    saved: Any = files.read("tables/1.json")
    files.write("tables/1.json", saved | {"by": saved["by"].replace(", p=0.5)", ")")})
    assert files.read("tables/1.json") != saved
    again = TableLearner(files, skewless.partitioner("lm", 8, p=p)).plan(1, 8)
    assert again.reason == (reason if is_found else "lm from now on")


@pytest.mark.parametrize("name", [cls.name for cls in ALL])
def test_plans_are_learned_and_found_again(tmp_path: Path, name: str) -> None:
    files = Checkpoint(str(tmp_path))
    learner = TableLearner(files, skewless.partitioner(name, 4))
    plain = learner.plan(0, 4)
    assert plain.reason.startswith("hashed")
    keys = streams.zipf(20_000, 1_000, 1.5)
    learner.learn(0, Lesson(histogram=histogram_of(keys)))
    plan = learner.plan(1, 4)
    assert isinstance(plan.router, RoutingTable)
    ratio = skewless.measure(keys, plan.router.route(keys), 4).imbalance_ratio
    exact = skewless.partitioner(name, 4)
    if exact.plans_ahead:
        exact.observe(keys)
        exact.adopt(exact.merge([exact.snapshot()]))
    if name not in ("cm", "am", "lm"):  # these even out keys, not tuples
        assert ratio < 1.1 * skewless.measure(keys, exact.route(keys), 4).imbalance_ratio + 0.1
    again = TableLearner(files, skewless.partitioner(name, 4))
    found = again.plan(1, 4)
    assert isinstance(found.router, RoutingTable)
    assert same(found.router, plan.router)
    assert found.reason == plan.reason
    # A crash before the next plan was written: the last one serves once more.
    late = TableLearner(files, skewless.partitioner(name, 4)).plan(2, 4)
    assert isinstance(late.router, RoutingTable)
    assert same(late.router, plan.router)
    other = TableLearner(files, skewless.partitioner("hash", 4, seed=1))
    assert other.plan(2, 4).reason == "hash from now on"
    more = TableLearner(files, skewless.partitioner("hash", 6, seed=1))
    assert more.plan(2, 6).reason == "6 workers instead of 4"
    for one in (learner, again, other, more):
        one.close()


class Dying(Checkpoint):
    """A checkpoint that raises an error, as if its process died, instead of writing one file more than `left`."""

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
    learner = TableLearner(Checkpoint(str(tmp_path)), skewless.partitioner("kip", 4))
    learner.plan(0, 4)
    learner.learn(0, Lesson(histogram=histogram_of(keys)))
    learner.plan(1, 4)
    dying = TableLearner(Dying(str(tmp_path), left), skewless.partitioner("kip", 4))
    with suppress(InterruptedError):  # before the first file, or the second, if there is one
        dying.plan(1, 7)
    again = TableLearner(Checkpoint(str(tmp_path)), skewless.partitioner("kip", 4))
    found = again.plan(1, 4).router
    again.learn(1, Lesson(histogram=histogram_of(keys)))
    table = again.plan(2, 4).router
    assert isinstance(found, RoutingTable)
    assert isinstance(table, RoutingTable)
    assert (table.route(keys) == found.route(keys)).mean() > 0.95, "keys stay on their workers"
    for one in (learner, dying, again):
        one.close()


def test_a_table_that_was_given_stays(tmp_path: Path) -> None:
    table = RoutingTable.hashed(3)
    learner = TableLearner(Checkpoint(str(tmp_path)), table)
    for batch in range(2):
        plan = learner.plan(batch, 3)
        assert plan.router is table
        learner.learn(batch, Lesson(histogram=histogram_of(streams.zipf(1000, 10, 1.0))))
    learner.close()


def test_reasons_name_keys_by_their_ranks_only(tmp_path: Path) -> None:
    learner = TableLearner(Checkpoint(str(tmp_path)), skewless.partitioner("level", 4))
    learner.plan(0, 4)
    histogram = Histogram(np.array([77, 78, 79], np.uint64), np.array([60.0, 30.0, 10.0]))
    learner.learn(0, Lesson(histogram=histogram))
    reason = learner.plan(1, 4).reason
    assert reason.startswith("level; split key #1 over 3 workers: 60% of rows")
    assert "77" not in reason
    learner.close()


def test_a_replay_follows_the_plan_that_was_made_from_the_rows_of_its_batch(tmp_path: Path) -> None:
    """It is not made again, which would learn the batch twice; the plan of the next batch may be."""
    files, lesson = Checkpoint(str(tmp_path)), Lesson(histogram=histogram_of(streams.zipf(20_000, 1_000, 1.5)))
    first = TableLearner(files, skewless.partitioner("kip", 4))
    assert not first.plan(0, 4).from_own_rows
    plan = first.replan(0, lesson)
    first.close()
    replay = TableLearner(files, skewless.partitioner("kip", 4))
    resumed = replay.plan(0, 4)
    assert resumed.from_own_rows
    assert isinstance(plan.router, RoutingTable)
    assert isinstance(resumed.router, RoutingTable)
    assert same(resumed.router, plan.router)
    assert not replay.plan(1, 4).from_own_rows
    replay.close()


def test_a_partitioner_with_a_parameter_for_each_worker_plans_and_resumes(tmp_path: Path) -> None:
    """To match a saved plan, no partitioner for another number of workers is made: the speeds would not fit it."""
    files, lesson = Checkpoint(str(tmp_path)), Lesson(histogram=histogram_of(streams.zipf(20_000, 1_000, 1.0)))
    for batch in range(2):
        learner = TableLearner(files, Level(4, speeds=(1.0, 1.0, 1.0, 3.0)))
        plan = learner.plan(batch, 4)
        learner.learn(batch, lesson)
        learner.close()
    assert isinstance(plan.router, RoutingTable)
    assert plan.reason.startswith("level")
    loads = np.bincount(plan.router.route(streams.zipf(20_000, 1_000, 1.0)), minlength=4)
    assert loads[3] > 2 * loads[:3].max()


def test_a_snapshot_that_cannot_be_read_is_learned_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files, keys = Checkpoint(str(tmp_path)), streams.zipf(20_000, 1_000, 1.5)
    learner = TableLearner(files, skewless.partitioner("kip", 4))
    learner.plan(0, 4)
    learner.learn(0, Lesson(histogram=histogram_of(keys)))
    plan = learner.plan(1, 4)
    learner.close()
    content = files.read("tables/1.json")
    files.write("tables/1.json", content | {"learned": b64encode(b"of another version").decode()})
    again = TableLearner(files, skewless.partitioner("kip", 4))
    resumed = again.plan(1, 4)
    assert "kip starts to learn anew" in caplog.text
    assert isinstance(plan.router, RoutingTable)
    assert isinstance(resumed.router, RoutingTable)
    assert same(resumed.router, plan.router)
    again.learn(1, Lesson(histogram=histogram_of(keys)))
    assert again.plan(2, 4).reason.startswith("kip")
    again.close()
