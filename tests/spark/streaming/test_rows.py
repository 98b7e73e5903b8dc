"""The parameters of a stream are checked, and its key has the names that users see. No Spark is started."""

from __future__ import annotations

from typing import Any

import pytest

import skewless
import skewless.spark as sl
from skewless.spark.streaming.rows import KeyedRows, StreamKey

pytestmark = pytest.mark.compiled

FRAME: Any = None  # these checks do not look at the rows
ROWS = KeyedRows(FRAME, StreamKey.plain("k"))


def test_an_added_column_is_known_by_the_name_that_results_show() -> None:
    key = StreamKey(columns=("K", "key 2"), shown=("k", "a"), added=("key 2",))
    assert key.names == ["K", "a"]
    assert key.renames() == {"K": "k", "key 2": "a"}


def test_limits_are_those_of_a_number_of_workers_that_follows_the_load() -> None:
    assert ROWS.routed_by("auto", (2, 8), "last").limits == (2, 8)
    assert ROWS.routed_by("auto", 4, 0.5).limits is None


@pytest.mark.parametrize(
    ("n_workers", "statistics", "sentence"),
    [
        (0, "last", "n_workers is at least 1, not 0"),
        ((4, 2), "last", "n_workers is at least 4, not 2"),
        ((1, 2, 3), "last", r"n_workers is a number, or \(least, most\), not \(1, 2, 3\)"),
        (None, "next", 'statistics is "last", "present" or a share of rows, not \'next\''),
        (None, 0.0, "more than 0 and at most 1, not 0.0"),
        (None, 1.5, "more than 0 and at most 1, not 1.5"),
    ],
)
def test_bad_parameters_are_refused(n_workers: Any, statistics: Any, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ROWS.routed_by("auto", n_workers, statistics)


@pytest.mark.parametrize(
    ("partitioner", "named"),
    [
        (skewless.partitioner("kip", 8), "kip"),
        (sl.Exact(skewless.partitioner("pkg", 8)), "pkg"),
        (skewless.RoutingTable.hashed(8), "the table"),
    ],
)
def test_a_partitioner_for_another_number_of_workers_is_refused(partitioner: Any, named: str) -> None:
    with pytest.raises(ValueError, match=f"{named} is for 8 workers, not for 4"):
        ROWS.routed_by(partitioner, 4, "last")
    if named == "the table":
        with pytest.raises(ValueError, match="a routing table has a fixed number of workers"):
            ROWS.routed_by(partitioner, (2, 16), "last")
    else:
        assert ROWS.routed_by(partitioner, (2, 16), "last").limits == (2, 16)


def test_what_is_no_partitioner_is_refused() -> None:
    partitioner: Any = 5
    with pytest.raises(TypeError, match="a partitioner is a name, an instance, a RoutingTable or an Exact, not 5"):
        ROWS.routed_by(partitioner, None, "last")
