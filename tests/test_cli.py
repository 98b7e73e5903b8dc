"""The command as users run it, in its own process."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from skewless.partitioners import ALL


def skewless(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from skewless.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_list_names_all() -> None:
    shown = skewless("list").stdout
    assert all(cls.name in shown for cls in ALL)
    described = json.loads(skewless("list", "--json").stdout)
    assert [entry["name"] for entry in described] == [cls.name for cls in ALL]
    assert next(e for e in described if e["name"] == "pkg")["parameters"] == {"choices": "2"}


def test_simulate_ranks_and_plots(tmp_path: Path) -> None:
    picture = tmp_path / "out.html"
    names = "hash,shuffle,pkg:choices=3,cam:cardinality=hll:window=5000/500"
    done = skewless(
        "simulate", "--stream", "zipf:1.2", "--workers", "64", "--tuples", "20000", "--partitioners", names,
        "--plot", str(picture),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    at = [done.stdout.index(name) for name in ("shuffle", "pkg:choices=3", "hash")]
    assert at == sorted(at)
    assert "20,000 tuples" in done.stdout
    assert "Imbalance" in picture.read_text()


def test_simulate_prints_json() -> None:
    done = skewless("simulate", "--json", "--tuples", "30000", "--batch", "10000", "--partitioners", "pkg,hash")
    records = json.loads(done.stdout)["records"]
    assert [(r["partitioner"], r["tuples"]) for r in records] == [
        (p, n) for p in ("pkg", "hash") for n in (10000, 20000, 30000)
    ]
    assert all(sum(r["load"]) == r["tuples"] for r in records)


@pytest.mark.parametrize(
    "stream", ["uniform", "matched:0.2", "lognormal:1.7,2.3", "drifting:1.2,1000", "alternating:1.2,1000", "words"]
)
def test_streams_by_name(stream: str) -> None:
    done = skewless("simulate", "--stream", stream, "--tuples", "5000", "--partitioners", "hash")
    assert "5,000 tuples" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--stream", "zip:1"], "there is no stream 'zip:1'; there are uniform,"),
        (["--stream", "zipf:hot"], "a stream's parameters are numbers, not 'hot'"),
        (["--stream", "trace:/no/such/file"], "there is no file /no/such/file"),
        (["--partitioners", "pgk"], "there is no partitioner 'pgk'"),
        (["--partitioners", "pkg:choices"], "a parameter is written param=value, not 'choices'"),
        (["--partitioners", "cm:window=a"], "a window is SIZE or SIZE/SLIDE, not 'a'"),
        (["--workers", "0"], "n_workers is between 1"),
        (["--sync-every", "often"], "always or never, not 'often'"),
        (["--plot", "out.png"], "an .html file, not out.png"),
        (["--tuples", "0"], "--tuples is at least 1, not 0"),
        (["--partitioners", "pkg:choices=x"], "choices is a whole number, not 'x'"),
        (["--partitioners", "pkg:choices=-1"], "choices is at least 1, not -1"),
        (["--stream", "drifting:1,inf"], "infinity"),
    ],
)
def test_bad_input_prints_an_error_and_exits_with_2(arguments: list[str], sentence: str) -> None:
    done = skewless("simulate", "--partitioners", "hash", *arguments)
    assert done.returncode == 2
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
