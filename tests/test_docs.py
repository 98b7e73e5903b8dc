"""The README and the pages of docs: their examples run, their links lead somewhere, their tables are up to date."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from lab.partitioner_table import MARKS, PAGE, generated
from tests.environment import environment

ROOT = Path(__file__).parent.parent
WITHOUT_SPARK = ("CONTRIBUTING.md", "docs/simulator.md")
WITH_SPARK = ("README.md", "docs/batch.md", "docs/state.md", "docs/streams.md")
PAGES = sorted(str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
FILES = """
import numpy as np, pandas as pd, pyarrow as pa, pyarrow.parquet as pq
rng = np.random.default_rng(0)
ts = pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 600, 1000), "s")
customer = np.where(rng.random(1000) < 0.5, "c1", [f"c{n}" for n in rng.integers(2, 50, 1000)])
amount = rng.integers(1, 100, 1000).astype(float)
frames = {
    "orders": pd.DataFrame({"customer": customer, "amount": amount, "ts": ts}),
    "customers": pd.DataFrame({"customer": [f"c{n}" for n in range(1, 50)], "country": "NO"}),
    "events": pd.DataFrame({"user": rng.integers(0, 20, 1000), "page": "home", "price": amount, "ts": ts}),
}
import pathlib
for name, frame in frames.items():
    pathlib.Path(name).mkdir()
    pq.write_table(pa.Table.from_pandas(frame), f"{name}/part.parquet", coerce_timestamps="us")
from pyspark.sql import SparkSession, functions as F
CHECKSUMS = "spark.sql.shuffle.orderIndependentChecksum"
builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
builder = builder.config(f"{CHECKSUMS}.enabled", "true").config(f"{CHECKSUMS}.enableFullRetryOnMismatch", "true")
spark = builder.config("spark.sql.shuffle.partitions", "2").getOrCreate()
# All tables here are tiny. As they are, the verbs would leave them to Spark, and the examples would balance nothing.
from skewless.spark import decision
assert decision.TINY < decision.SMALL
decision.TINY = decision.SMALL = 0
import socket
with socket.create_server(("127.0.0.1", 0)) as free:
    port = free.getsockname()[1]
orders, customers = spark.read.parquet("orders"), spark.read.parquet("customers")
score = lambda rows: rows.groupby("customer", as_index=False).agg(total=("amount", "sum"))
"""


# Runs each page with names of its own, statement by statement, and collects every DataFrame that is made: before that,
# a mistake in a function or a schema would not show.
RUNNER = """
import ast, json, pathlib, sys
names = dict(globals())
for page, examples in json.loads(pathlib.Path("examples.json").read_text()).items():
    print("running the examples of", page, file=sys.stderr)
    own = dict(names)
    for node in ast.parse(examples).body:
        if isinstance(node, ast.Expr):
            made = [eval(compile(ast.Expression(node.value), page, "eval"), own)]
        else:
            exec(compile(ast.Module([node], []), page, "exec"), own)
            made = [own[name.id] for name in getattr(node, "targets", ()) if isinstance(name, ast.Name)]
        for value in made:
            if hasattr(value, "isStreaming") and not value.isStreaming:
                value.collect()
"""


def run(pages: Sequence[str], directory: Path, before: str = "") -> None:
    """Runs the Python examples of pages, one after the other, in a process of its own."""
    texts = {page: (ROOT / page).read_text() for page in pages}
    examples = {page: "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL)) for page, text in texts.items()}
    assert all(examples.values())
    (directory / "examples.json").write_text(json.dumps(examples))
    (directory / "run.py").write_text(before + RUNNER)
    done = subprocess.run([sys.executable, "run.py"], capture_output=True, text=True, cwd=directory, env=environment())
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", WITHOUT_SPARK)
def test_the_examples_of_a_page_run(page: str, tmp_path: Path) -> None:
    run([page], tmp_path)


@pytest.mark.compiled
@pytest.mark.xdist_group("batch")
def test_the_spark_examples_run(tmp_path: Path) -> None:
    """In one process: starting Spark takes longer than most pages."""
    run(WITH_SPARK, tmp_path, FILES)


def test_every_page_with_examples_is_run() -> None:
    with_examples = [page for page in PAGES if "```python\n" in (ROOT / page).read_text()]
    assert with_examples == sorted((*WITHOUT_SPARK, *WITH_SPARK))


def test_the_table_of_partitioners_is_up_to_date() -> None:
    text, (start, end) = PAGE.read_text(), MARKS
    assert text[text.index(start) + len(start) : text.index(end)].strip() == generated().strip(), "run make docs"


@pytest.mark.parametrize("page", PAGES)
def test_links_to_files_lead_somewhere(page: str) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", (ROOT / page).read_text())
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150
