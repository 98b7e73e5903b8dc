"""The environment of the Spark sessions that tests start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

SETTINGS = {
    "PYSPARK_PYTHON": sys.executable,
    "PYTHONPATH": str(Path(__file__).parent.parent),  # workers import the partitioners that tests define
    "SPARK_LOCAL_IP": "127.0.0.1",
    # Tests run many short queries: to optimize their code takes a third of the CPU time, and does not pay.
    "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=512m -XX:+UseSerialGC",
}


def environment() -> dict[str, str]:
    """Returns the environment for a new process, without the variables that Spark sessions of this process have set.

    After a session over Connect, these variables would make every later session one over Connect, too.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("SPARK_")} | SETTINGS
