"""Keys are split only where Spark notices a retried task that routes its rows differently."""

from __future__ import annotations

import pyspark
import pytest
from pyspark.sql import SparkSession

from skewless.spark import checksums
from skewless.spark.checksums import check_splitting
from tests.spark.changing import setting

pytestmark = [pytest.mark.compiled, pytest.mark.filterwarnings("ignore"), pytest.mark.xdist_group("batch")]
CHECKSUM = "spark.sql.shuffle.orderIndependentChecksum.enabled"


def test_a_checksum_that_is_off_is_named(spark: SparkSession) -> None:
    check_splitting(spark.range(1))
    with (
        setting(spark, CHECKSUM, "false"),
        pytest.raises(ValueError, match=f"splitting keys needs {CHECKSUM} set to true"),
    ):
        check_splitting(spark.range(1))


@pytest.mark.smoke
def test_the_default_of_the_checksum_is_that_of_spark(spark: SparkSession) -> None:
    """It is off in 4.1 and on since 4.2; asked with a default of our own, it would seem to be on."""
    with setting(spark, CHECKSUM, None):
        if tuple(int(part) for part in pyspark.__version__.split(".")[:2]) < (4, 2):
            with pytest.raises(ValueError, match=CHECKSUM):
                check_splitting(spark.range(1))
        else:
            check_splitting(spark.range(1))


def test_a_setting_that_spark_does_not_have_counts_as_off(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked with a default of our own, any version of Spark would return that."""
    monkeypatch.setattr(checksums, "_CHECKSUMS", ("spark.sql.shuffle.noSuchChecksum",))
    with pytest.raises(ValueError, match="noSuchChecksum set to true"):
        check_splitting(spark.range(1))


@pytest.mark.smoke
def test_a_foreign_shuffle_manager_is_refused(spark: SparkSession) -> None:
    manager = "org.apache.spark.shuffle.celeborn.SparkShuffleManager"
    with (
        setting(spark, "spark.sql.legacy.setCommandRejectsSparkCoreConfs", "false"),
        setting(spark, "spark.shuffle.manager", manager),
        pytest.raises(ValueError, match=r"celeborn.SparkShuffleManager, which has no checksums"),
    ):
        check_splitting(spark.range(1))
