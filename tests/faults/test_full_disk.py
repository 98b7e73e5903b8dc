"""A query on a full disk fails and names the file that could not be written; with more room it continues."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.claims import judged
from tests.faults.full_disk import can_mount, measured

pytestmark = [pytest.mark.compiled, pytest.mark.xdist_group("streams")]


def test_errors_on_a_full_disk_name_the_file_and_leave_nothing_half_written(tmp_path: Path) -> None:
    """Needs unprivileged user namespaces. CI allows them, so that this test is never skipped there."""
    if not can_mount():
        refused = "a small disk cannot be mounted here: unprivileged user namespaces are refused"
        pytest.fail(refused) if os.environ.get("CI") else pytest.skip(refused)
    assert judged("streams on a full disk", measured(tmp_path))
