"""Lines become rows of the schema, or are refused."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from skewless.ingest.sender import send
from tests.ingest.receiving import EVENTS, listening, raw, rows

pytestmark = pytest.mark.compiled


def test_json_becomes_rows_of_the_schema(tmp_path: Path) -> None:
    records: list[dict[str, Any]] = [
        {"k": "a", "n": 1, "ts": "2026-01-01T00:00:00Z", "other": [1]},
        {"n": -5, "k": "ü"},
        {"k": None},
    ]
    with closing(listening(tmp_path, EVENTS)) as receiver:
        assert send(records, receiver.address, name="s") == 3
        found = rows(receiver.blocks(0, receiver.latest(0, None), 1), EVENTS)
    assert [(row["k"], row["n"]) for row in found] == [("a", 1), ("ü", -5), (None, None)]
    assert found[0]["ts"].isoformat() == "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    "bad", ["no json", '{"k": 1}', '{"n": "x"}', "", '{"k": "a"} {"k": "b"}', '["k"]', '{"n": 1.5}', '{"k":']
)
def test_a_line_that_cannot_be_read_is_refused_and_all_before_it_are_kept(tmp_path: Path, bad: str) -> None:
    good = [json.dumps({"k": f"k{i}", "n": i}) for i in range(700)]
    with closing(listening(tmp_path, EVENTS)) as receiver:
        with pytest.raises(ValueError, match="line 701 cannot be read"):
            send([*good, bad, *good], receiver.address, name="s")
        found = rows(receiver.blocks(0, receiver.latest(0, None), 2), EVENTS)
        assert sorted(row["n"] for row in found) == [*range(700)]
        assert send([*good, *good], receiver.address, name="s") == 1400


def test_invalid_text_and_invalid_names_are_refused(tmp_path: Path) -> None:
    with closing(listening(tmp_path)) as receiver:
        for name, line, why in (
            ("s", b"\xff\xfe\n", b"cannot be read"),
            ("n" * 500, b"x\n", b"name"),
            ("", b"", b"name"),
        ):
            with raw(receiver.address, name) as (connection, answers):
                connection.sendall(line)
                assert why in b"".join(answers)
        assert receiver.latest(0, None) == 0
        assert receiver.blocks(0, receiver.end, 2) == []
