"""Sources share what they have learned between batches, and after a crash. No Spark is started."""

from __future__ import annotations

from pathlib import Path

import pytest

import skewless
from skewless import streams
from skewless.partitioners import described
from skewless.spark.exact import Sourced, Sources
from skewless.spark.streaming.checkpoint import Checkpoint
from skewless.spark.streaming.learner import Lesson
from skewless.spark.streaming.sources import SavedSources, SourceLearner

pytestmark = pytest.mark.compiled


def test_sources_agree_between_batches_and_go_on_after_a_crash(tmp_path: Path) -> None:
    files, p = Checkpoint(str(tmp_path)), skewless.partitioner("dalton", 4)
    learner = SourceLearner(files, p)
    plan = learner.plan(0, 4)
    assert plan.reason == "dalton: new sources route each row"
    first = plan.router
    assert isinstance(first, Sourced)
    assert first.sources == Sources()
    left = {}
    for number in range(2):
        source = skewless.partitioner("dalton", 4)
        source.route(streams.zipf(5_000, 100, 1.5, seed=number))
        left[number] = skewless.arrays.to_bytes(source.snapshot())
    learner.learn(0, Lesson(sources=Sources(None, left), seconds=1.0))
    plan = learner.plan(1, 4)
    assert plan.reason == "dalton: 2 sources route each row; they agreed after the last batch"
    after = plan.router
    assert isinstance(after, Sourced)
    assert after.sources.policy is not None
    assert set(after.sources.snapshots) == {0, 1}
    again = SourceLearner(files, p).plan(1, 4).router
    assert isinstance(again, Sourced)
    assert again.sources == after.sources
    learner.close()


@pytest.mark.parametrize(("p", "is_found"), [(0.5, True), (0.6, False)])
def test_sources_of_an_older_version_that_had_fewer_parameters_are_found(
    tmp_path: Path, p: float, is_found: bool
) -> None:
    files, source = Checkpoint(str(tmp_path)), skewless.partitioner("lm", 4)
    source.route(streams.zipf(5_000, 100, 1.5))
    sources = Sources(None, {0: skewless.arrays.to_bytes(source.snapshot())})
    owner = described(source).replace(', "p": 0.5', "")
    assert owner != described(source)
    files.write("sources/3.json", SavedSources(owner=owner, sources=sources).to_json())
    learner = SourceLearner(files, skewless.partitioner("lm", 4, p=p))
    router = learner.plan(3, 4).router
    assert isinstance(router, Sourced)
    assert router.sources == (sources if is_found else Sources())
    learner.close()


@pytest.mark.parametrize("owner", ['{"class": "nowhere.at_all:Mine", "n_workers": 4}', '{"class": "gone", "x": 1}'])
def test_sources_of_a_class_that_is_gone_are_not_ours(tmp_path: Path, owner: str) -> None:
    files, p = Checkpoint(str(tmp_path)), skewless.partitioner("dalton", 4)
    files.write("sources/3.json", SavedSources(owner=owner).to_json())
    learner = SourceLearner(files, p)
    assert learner.plan(3, 4).reason == "dalton: new sources route each row"
    learner.close()


def test_snapshots_that_cannot_be_read_are_learned_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files, p = Checkpoint(str(tmp_path)), skewless.partitioner("dalton", 4)
    saved = SavedSources(owner=described(p), sources=Sources(None, {0: b"of another version"}))
    files.write("sources/3.json", saved.to_json())
    learner = SourceLearner(files, p)
    router = learner.plan(3, 4).router
    assert isinstance(router, Sourced)
    assert router.sources == Sources()
    assert "dalton starts to learn anew" in caplog.text
    learner.close()
