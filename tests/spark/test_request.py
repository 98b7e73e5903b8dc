"""Requests are checked before any job runs, and say which partitioner routes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

import skewless.spark as sl
from skewless import RoutingTable, partitioner
from skewless.partitioners.level import Level
from skewless.spark.keys import keyed
from skewless.spark.request import Request, chosen

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]
SPLITTING = RoutingTable.hashed(2).with_hot_keys(
    np.array([7], np.uint64), np.array([0, 2]), np.array([0, 1]), np.ones(2)
)


def request_of(spark: SparkSession, operator: Any, **params: Any) -> Request:
    return Request(operator, (keyed(spark.range(1), ["id"]),), **params)


@pytest.mark.parametrize(
    ("operator", "params", "sentence"),
    [
        ("repartition", {"n_workers": 0}, "n_workers is at least 1, not 0"),
        ("join", {"partitioner": sl.Exact("pkg")}, "a join takes no Exact"),
        ("repartition", {"partitioner": 7}, "a partitioner .*, not 7"),
        ("repartition", {"partitioner": partitioner("kip", 3), "n_workers": 4}, "kip is for 3 workers, not for 4"),
        ("over", {"partitioner": SPLITTING}, "this table splits keys, but over needs each key whole"),
        ("applyInPandas", {"partitioner": "pkg"}, "pkg splits keys, but each is needed whole"),
        ("agg", {"partitioner": "pgk"}, "there is no partitioner 'pgk'"),
    ],
)
def test_contradictions_are_refused(spark: SparkSession, operator: Any, params: dict[str, Any], sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        request_of(spark, operator, **params).checked()


def test_spark_may_keep_the_rows_unless_the_user_asks_for_more(spark: SparkSession) -> None:
    assert request_of(spark, "agg").checked().may_leave
    for asked in ({"n_workers": 2}, {"partitioner": "level"}, {"numbered": True}):
        assert not request_of(spark, "agg", **asked).checked().may_leave


def test_keys_are_split_only_where_the_operator_allows_it(spark: SparkSession) -> None:
    assert request_of(spark, "agg", partitioner=SPLITTING).checked().planner is SPLITTING
    splits = [
        request_of(spark, operator, partitioner="auto").partitioner_for(4).splits_keys for operator in ("agg", "over")
    ]
    assert splits == [True, False]
    assert request_of(spark, "agg", partitioner=sl.Exact("pkg")).partitioner_for(4).name == "pkg"


def test_level_spares_moves_only_where_they_cost(spark: SparkSession) -> None:
    whole = request_of(spark, "over", partitioner="level").partitioner_for(4)
    assert isinstance(whole, Level)
    assert (whole.split, whole.even) == (False, True)
    with_state = chosen("level", 4, False, (1.0, 1.0, 0.1))
    assert isinstance(with_state, Level)
    assert (with_state.split, with_state.even) == (False, False)
