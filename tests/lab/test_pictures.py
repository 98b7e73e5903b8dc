"""The pictures of docs/partitioners.md: their partitioners, their measures, and that the files are up to date."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from lab import pictures
from lab.drawing import STEPS, Panel, colour, levels, picture
from lab.families import FAMILIES, MEMBERS, STREAM, Member, Stream
from lab.pictures import Run
from skewless import Keys, RoutingTable, measure, partitioner
from skewless.cooperation.protocol import exchange
from skewless.partitioners import ALL

pytestmark = pytest.mark.compiled

SMALL = Stream(n_workers=4, n_keys=500, batch=1000, n_batches=6, every=3)


@cache
def batches() -> list[Keys]:
    return STREAM.batches()


@cache
def small(member_key: str) -> Run:
    member = next(member for member in MEMBERS if member.key == member_key)
    return pictures.run(member, SMALL, SMALL.batches())


def test_every_partitioner_is_in_a_family() -> None:
    lacking = [cls.name for cls in ALL if cls.name not in {member.name for member in MEMBERS}]
    assert not lacking, (
        f"no picture shows {', '.join(lacking)}: add a Member to one of the FAMILIES in lab/families.py, describe it "
        "in lab/partitioners.md, and run make pictures"
    )


def test_keys_and_labels_are_unique() -> None:
    assert len({member.key for member in MEMBERS}) == len({member.label for member in MEMBERS}) == len(MEMBERS)
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)


@pytest.mark.parametrize("key", [member.key for member in MEMBERS])
def test_runs_have_a_row_per_batch_that_sums_to_its_tuples(key: str) -> None:
    run = small(key)
    assert run.load.shape == (6, 4)
    assert (run.load.sum(axis=1) == SMALL.batch).all()
    assert run.keys.tolist() == [np.unique(batch).size for batch in SMALL.batches()]
    assert (run.fragments >= run.keys).all()
    assert (run.moves >= 0).all()
    assert (run.moves <= 1).all()
    assert run.moves[0] == 0


def test_partitioners_that_do_not_plan_route_the_stream_in_order() -> None:
    workers = partitioner("pkg", 4).route(np.concatenate(SMALL.batches()))
    run = small("pkg")
    for number, (keys, part) in enumerate(zip(SMALL.batches(), np.split(workers, 6), strict=True)):
        m = measure(keys, part, 4)
        assert run.ratios[number] == pytest.approx(m.imbalance_ratio)
        assert run.splits[number] == pytest.approx(m.key_split_ratio)
    assert run.ratio == pytest.approx(run.ratios.mean())


@pytest.mark.parametrize("name", ["level", "kip", "prompt"])
def test_a_planner_routes_a_batch_by_the_table_of_earlier_ones(name: str) -> None:
    p, run = partitioner(name, 4), small(name)
    for number, keys in enumerate(SMALL.batches()):
        m = measure(keys, p.table().route(keys), 4)
        assert run.load[number].tolist() == m.load.tolist()
        assert run.fragments[number] == m.fragments
        p.observe(keys)
        exchange([p])


def test_off_greedy_observes_the_whole_stream_first() -> None:
    keys = np.concatenate(SMALL.batches())
    p = partitioner("off_greedy", 4)
    p.observe(keys)
    exchange([p])
    assert small("off_greedy").load.sum(axis=0).tolist() == measure(keys, p.route(keys), 4).load.tolist()


def test_moved_is_the_share_of_tuples_routed_differently() -> None:
    first, second, *_ = SMALL.batches()
    p = partitioner("kip", 4)
    before = p.table()
    p.observe(first)
    exchange([p])
    elsewhere = float((before.route(second) != p.table().route(second)).mean())
    assert elsewhere > 0
    assert pictures.moved(before, p.table(), second) == pytest.approx(elsewhere)
    assert pictures.moved(before, before, second) == 0


def test_moved_counts_what_is_new_on_a_worker_of_a_split_key() -> None:
    keys = np.zeros(8, np.uint64)
    halves, quarter = (
        RoutingTable.distill(keys, np.array(workers, np.int32), 2)
        for workers in ([0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1, 1])
    )
    assert pictures.moved(halves, quarter, keys) == pytest.approx(0.25)


def test_after_and_settled_are_the_first_and_the_last_batches_of_a_period() -> None:
    assert list(SMALL.changes) == [3]
    load = np.array([[2, 2], [2, 2], [3, 1], [4, 0], [2, 2], [1, 3]])
    ones = np.ones(6, np.int64)
    run = Run(SMALL, load, ones, ones, np.array([0.0, 1, 0, 0, 0, 0]))
    assert (run.after, run.settled, run.moved) == (2.0, 1.5, 0.2)


def test_a_window_is_one_batch() -> None:
    assert "Window(size=1000, slide=100)" in repr(Member("dalton").make(SMALL))
    assert "window" not in repr(Member("pkg").make(SMALL))


@pytest.mark.parametrize("key", ["cm", "am", "cam", "lm"])
def test_partitioners_by_cardinality_start_again_with_every_batch(key: str) -> None:
    alone = pictures.run(Member(key), SMALL, SMALL.batches()[4:5])
    assert alone.load[0].tolist() == small(key).load[4].tolist()


def test_colours_are_centred_on_the_mean_and_end_at_a_quarter_and_four() -> None:
    assert levels(np.array([0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 9.0])).tolist() == [-16, -16, -8, 0, 8, 16, 16]
    assert len({colour(level) for level in range(-STEPS, STEPS + 1)}) == 2 * STEPS + 1


def test_a_picture_shows_the_figures_of_each_panel() -> None:
    load, fragments = np.array([[2.0, 0.0], [1.0, 1.0]]), np.array([1.0, 1.5])
    svg = picture("A & B", ["how"], [Panel("one", load, fragments), Panel("two", load, fragments)], [1])
    words = [element.text for element in ElementTree.fromstring(svg).iter() if element.tag.endswith("text")]
    assert words[:2] == ["A & B", "how"]
    assert words.count("max / mean 1.50") == words.count("1.250 fragments per key") == 2


def linked(page: Path) -> list[str]:
    return re.findall(r"\]\((pictures/[^)]+)\)", page.read_text())


def test_the_pages_show_every_picture_and_no_other() -> None:
    docs = pictures.PAGE.parent
    links = sorted(link for page in docs.glob("*.md") for link in linked(page))
    assert links == sorted(f"pictures/{path.name}" for path in (docs / "pictures").iterdir())
    of_families = re.findall(r"\]\(([^)]+)\)", pictures.PAGE.read_text())
    assert sorted(of_families) == sorted(f"pictures/{family.name}.svg" for family in FAMILIES)
    for path in links:
        assert (docs / path).stat().st_size < 250_000


def test_the_page_and_its_pictures_are_up_to_date() -> None:
    runs = pictures.load()
    assert set(runs) == {member.key for member in MEMBERS}, "run make pictures"
    for path, content in pictures.files(runs).items():
        assert path.read_text() == content, f"{path.name} is out of date: run make pictures"


@pytest.mark.parametrize("member", [pytest.param(member, id=member.label) for member in MEMBERS])
def test_the_results_are_up_to_date(member: Member) -> None:
    stored, now = pictures.load()[member.key], pictures.run(member, STREAM, batches())
    assert now.keys.tolist() == stored.keys.tolist(), "the stream is another one now: run make pictures"
    for name, within in (("ratio", 0.02), ("after", 0.05), ("settled", 0.02), ("split", 0.001), ("moved", 0.01)):
        assert getattr(now, name) == pytest.approx(getattr(stored, name), abs=within), f"{name}: run make pictures"


def test_the_claims_of_the_page_hold() -> None:
    assert [claim for claim, holds in pictures.claims(pictures.load()).items() if not holds] == []
