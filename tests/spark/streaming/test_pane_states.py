"""The rows of a batch become one state for each key and pane, whatever routes them."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import skewless.spark as sl
from skewless import partitioner, streams
from skewless.spark.exact import Sourced
from skewless.spark.streaming.pane_states import PaneAggregation
from skewless.spark.streaming.panes import PANE
from skewless.spark.streaming.rows import StreamKey
from skewless.spark.verbs.fold import fold_of
from skewless.table import RoutingTable
from tests.spark.frames import skewed

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("streams")]
N = 4


@pytest.mark.parametrize("spark", ["classic"], indirect=True)
@pytest.mark.parametrize("router", ["Spark", "whole", "split", "row by row"])
def test_states_of_panes_are_those_of_plain_groups(spark: SparkSession, router: str) -> None:
    rows = skewed(spark).withColumn(PANE, F.col("v") % 3)
    hot = streams.as_keys([row["k"] for row in rows.groupBy("k").count().orderBy(F.desc("count")).take(2)])
    routers = {
        "Spark": None,
        "whole": RoutingTable.hashed(N),
        "split": RoutingTable.distill(hot.repeat(N), np.tile(np.arange(N, dtype=np.int32), 2), N),
        "row by row": Sourced(partitioner("shuffle", N)),
    }
    fold = fold_of(("k",), (), {"n": sl.count(), "s": sl.sum("v")})
    aggregation = PaneAggregation(StreamKey.plain("k"), fold, fold.schema(rows))
    made = aggregation.states(rows, routers[router], 0)
    found = Counter((row["k"], row[PANE], row["n n"]) for row in made.states.collect())
    plain = rows.groupBy("k", PANE).agg(F.count(F.lit(1)).alias("n")).collect()
    assert found == Counter((row["k"], row[PANE], row["n"]) for row in plain)
    facts, record = made.facts(), made.record()
    assert (facts["first"], facts["last"]) == (0, 2)
    assert (facts["fragments"] > len(plain)) == (router in ("split", "row by row"))
    assert record == {} if router == "Spark" else sum(record["loads"]) == rows.count()
    assert (made.sources() is not None) == (router == "row by row")
