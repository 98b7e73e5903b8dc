"""Panes and the windows that they are part of."""

from __future__ import annotations

import pytest

from skewless.spark.streaming.panes import Span

pytestmark = pytest.mark.compiled


@pytest.mark.parametrize(("size", "slide"), [(60, 60), (60, 20), (50, 20), (7, 3)])
def test_every_pane_is_in_the_windows_that_it_says(size: int, slide: int) -> None:
    span = Span(size, slide)
    starts = range(-40 * slide, 100 * slide, slide)
    for pane in range(-3 * size // span.pane_size * span.pane_size, 4 * size, span.pane_size):
        having = [start for start in starts if start <= pane and pane + span.pane_size <= start + size]
        assert (span.first(pane), span.last(pane)) == (having[0], having[-1])
    for watermark in range(-20, 200):
        assert span.first_open(watermark) == next(start for start in starts if start + size > watermark)
