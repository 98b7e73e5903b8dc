"""The demo runs with few readings, and its page and picture show what it measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from examples.demo import WAYS
from examples.demo_page import HOT, Run, page, picture
from tests.environment import environment

SVG = "{http://www.w3.org/2000/svg}"
SLOTS = 4
SMALL_DEMO = f"from examples import demo; demo.READINGS, demo.SLOTS = 400, {SLOTS}; demo.main()"
RUNS = [Run("Plain", 4.0, [3.0, 0.0], [0.5, 0.5]), Run("Split <both>", 2.0, [1.5, 1.5], [0.5, 0.5])]


def hot_bars(svg: str) -> list[list[bool]]:
    """Returns for each panel and task of a picture whether it worked on the hot key."""
    bars = [bar for bar in ElementTree.fromstring(svg).iter(f"{SVG}rect") if bar.get("fill") == HOT]
    by_panel: dict[int, list[bool]] = {}
    for bar in bars:
        by_panel.setdefault(int(float(bar.attrib["x"])), []).append(float(bar.attrib["width"]) > 0)
    return [by_panel[x] for x in sorted(by_panel)]


@pytest.mark.compiled
@pytest.mark.xdist_group("batch")
def test_the_demo_splits_the_hot_key_and_writes_a_page_and_a_picture(tmp_path: Path) -> None:
    command = [sys.executable, "-c", SMALL_DEMO, "picture.svg"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stdout + done.stderr[-3000:]
    assert "The three results are equal." in done.stdout
    svg = (tmp_path / "picture.svg").read_text()
    plain, whole, split = hot_bars(svg)
    assert [sum(plain), sum(whole)] == [1, 1]
    assert sum(split) > 1
    assert len(plain) == len(whole) == len(split) == SLOTS
    written = (tmp_path / "out/demo.html").read_text()
    assert svg.strip() in written
    assert all(title in written for title in WAYS)
    assert "def split(df: DataFrame)" in written


def test_the_picture_has_a_panel_for_each_run_and_a_bar_for_each_task() -> None:
    svg = picture(RUNS, "sensor-1", "a <story>")
    assert hot_bars(svg) == [[True, False], [True, True]]
    words = " ".join(text for text in ElementTree.fromstring(svg).itertext())
    assert "a <story>" in words
    assert "Split <both>" in words
    assert "2.0 x as fast" in words


def test_the_page_has_times_tasks_and_gains_of_each_run() -> None:
    html = page(RUNS, "sensor-1", "a story", "code <here>")
    assert picture(RUNS, "sensor-1", "a story") in html
    assert "<tr><td>Plain<td>4.0 s<td>3.5 s<td>1.8<td>1.0 x" in html
    assert "<tr><td>Split &lt;both&gt;<td>2.0 s<td>2.0 s<td>1.0<td>2.0 x" in html
    assert "<pre>code &lt;here&gt;</pre>" in html
