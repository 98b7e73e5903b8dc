"""A sender reports what it cannot send."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from skewless.ingest.sender import send
from tests.ingest.receiving import listening

pytestmark = pytest.mark.compiled


def test_a_sender_reports_errors(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="host:port"):
        send([], "nowhere", name="s")
    with pytest.raises(ValueError, match="name"):
        send([], "127.0.0.1:1", name=" ")
    with pytest.raises(TimeoutError, match="0 lines are acknowledged"):
        send(["a"], "127.0.0.1:1", name="s", patience=0.2)
    with closing(listening(tmp_path)) as receiver:
        with pytest.raises(ValueError, match="one line"):
            send(["a\nb"], receiver.address, name="s")

        def broken() -> Iterator[str]:
            yield "a"
            raise FileNotFoundError("gone")

        with pytest.raises(RuntimeError, match="cannot be read"):
            send(broken(), receiver.address, name="s", patience=0.5)
        send(["a", "b"], receiver.address, name="t")
        with pytest.raises(ValueError, match="lines of t, more than there are records"):
            send(["a"], receiver.address, name="t")
