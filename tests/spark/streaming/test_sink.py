"""A sink directory belongs to one query."""

from __future__ import annotations

from pathlib import Path

import pytest

from skewless.spark.streaming.sink import claim

pytestmark = pytest.mark.compiled


def test_a_sink_belongs_to_one_query_even_if_that_died_while_it_claimed_it(tmp_path: Path) -> None:
    (tmp_path / "_skewless.tmp").write_text("mi")
    for _ in range(2):
        claim(str(tmp_path), "mine")
    with pytest.raises(ValueError, match="has the output of another query"):
        claim(str(tmp_path), "yours")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    with pytest.raises(ValueError, match="is not empty"):
        claim(str(tmp_path / "other"), "mine")
