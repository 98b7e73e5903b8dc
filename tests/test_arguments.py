"""Arguments that are not allowed get an error that says what is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from skewless.arguments import require, require_format, whole


def test_a_condition_that_does_not_hold_is_an_error_with_the_message() -> None:
    require(True, "not raised")
    with pytest.raises(ValueError, match="give more"):
        require(False, "give more")


@pytest.mark.parametrize("value", [3, np.int64(3), np.uint8(3)])
def test_whole_numbers_of_any_kind_are_taken(value: Any) -> None:
    number = whole("n", value, 1, 3)
    assert number == 3
    assert type(number) is int


@pytest.mark.parametrize(
    ("value", "most", "kind", "sentence"),
    [
        (0, None, ValueError, "n is at least 1, not 0"),
        (9, 8, ValueError, "n is between 1 and 8, not 9"),
        (2.0, None, TypeError, "n is a whole number, not 2.0"),
        (True, None, TypeError, "n is a whole number, not True"),
        ("2", None, TypeError, "n is a whole number, not '2'"),
    ],
)
def test_other_values_are_refused(value: Any, most: int | None, kind: type[Exception], sentence: str) -> None:
    with pytest.raises(kind, match=sentence):
        whole("n", value, 1, most)


def test_another_format_is_refused_with_both_formats() -> None:
    require_format("the file", 2, 2)
    with pytest.raises(ValueError, match="the file has format 3; this version of skewless reads 2"):
        require_format("the file", 3, 2)
