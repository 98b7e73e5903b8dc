"""Draws partitioners side by side as SVG: a heat map of worker loads above a line of fragments per key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

WIDTH, LEFT, RIGHT, GAP = 1200, 96, 24, 24
HEAT, CELL, LINE = 164, 11, 84  # top of the heat maps, height of a worker, height of the line chart
INK, GREY, FAINT = "#1f2328", "#59636e", "#d1d9e0"
FONT = "'Segoe UI', 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"

# Blue is less than the mean and orange more, which colour-blind people can tell apart; darker is further from it.
LESS = ((247, 247, 245), (198, 219, 236), (120, 172, 212), (45, 112, 173), (8, 48, 107))
MORE = ((247, 247, 245), (253, 214, 168), (243, 146, 64), (201, 74, 12), (110, 28, 4))
STEPS, REACH = 16, 2.0  # colours on either side; the last one stands for 2 ** REACH times the mean
TOPS = (1.02, 1.05, 1.1, 1.25, 1.5, 2, 3, 5, 10, 20, 50, 100, 1000)  # allowed upper ends of the axis of fragments


@dataclass(frozen=True, eq=False)
class Panel:
    """What is drawn of one partitioner."""

    title: str
    load: NDArray[np.float64]  # [batch, worker]: as a multiple of the batch's mean
    fragments: NDArray[np.float64]  # [batch]: per key


def picture(title: str, captions: Sequence[str], panels: Sequence[Panel], changes: Sequence[int]) -> str:
    """Returns an SVG. The colours mean the same in all pictures, the axes are the same in all panels of one.

    changes: batches to mark.
    """
    n_workers = panels[0].load.shape[1]
    line = HEAT + n_workers * CELL + 46
    height = line + LINE + 36
    width = (WIDTH - LEFT - RIGHT - GAP * (len(panels) - 1)) / len(panels)
    most = max(float(panel.fragments.max()) for panel in panels)
    top = next((top for top in TOPS if top >= most), most)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" font-family="{FONT}" font-size="15" fill="{INK}">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        text(24, 34, title, size=21, bold=True),
        *(text(24, 62 + 21 * number, caption, fill=GREY) for number, caption in enumerate(captions)),
        *_scale(WIDTH - RIGHT - 260, 18),
        text(LEFT - 8, HEAT + 11, "worker 0", anchor="end", fill=GREY),
        text(LEFT - 8, HEAT + n_workers * CELL, str(n_workers - 1), anchor="end", fill=GREY),
        text(LEFT - 8, line + 5, f"{top:g}", anchor="end", fill=GREY),
        text(LEFT - 8, line + LINE + 5, "1", anchor="end", fill=GREY),
        text(LEFT - 14, line + LINE + 22, "batch", anchor="end", fill=GREY),
    ]
    for number, panel in enumerate(panels):
        parts += _column(panel, LEFT + number * (width + GAP), line, width, top, changes)
    return "\n".join([*parts, "</svg>", ""])


def text(
    x: float, y: float, words: str, *, size: int = 15, bold: bool = False, anchor: str = "start", fill: str = INK
) -> str:
    """Returns an SVG text element."""
    style = f'font-size="{size}" text-anchor="{anchor}" fill="{fill}"' + (' font-weight="600"' if bold else "")
    return f'<text x="{x:g}" y="{y:g}" {style}>{escape(words)}</text>'


def levels(load: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the colour level of loads, as multiples of the mean: 0 at the mean, opposite levels for 1/2 and 2."""
    powers = np.log2(np.clip(load, 2.0**-REACH, 2.0**REACH))
    return np.rint(powers * STEPS / REACH).astype(np.int64)


def colour(level: int) -> str:
    """Returns the colour of a level as #rrggbb."""
    palette, shade = (LESS, MORE)[level > 0], abs(level) / STEPS * (len(LESS) - 1)
    low = min(int(shade), len(palette) - 2)
    mixed = (a + (b - a) * (shade - low) for a, b in zip(palette[low], palette[low + 1], strict=True))
    return "#" + "".join(f"{round(part):02x}" for part in mixed)


def _column(panel: Panel, x: float, line: float, width: float, top: float, changes: Sequence[int]) -> Iterator[str]:
    """Yields the drawing of one panel."""
    n_batches, n_workers = panel.load.shape
    step, bottom = width / n_batches, HEAT + n_workers * CELL
    yield text(x, HEAT - 38, panel.title, size=16, bold=True)
    yield text(x, HEAT - 17, f"max / mean {panel.load.max(axis=1).mean():.2f}")
    yield f'<g transform="translate({x:.2f} {HEAT}) scale({step:.5f} {CELL})" shape-rendering="crispEdges">'
    yield f'<path d="M0 0h{n_batches}v{n_workers}H0z" fill="{colour(0)}"/>'
    yield from _cells(levels(panel.load))
    yield "</g>"
    yield f'<rect x="{x:.2f}" y="{HEAT}" width="{width:.2f}" height="{bottom - HEAT}" fill="none" stroke="{FAINT}"/>'
    yield text(x, line - 13, f"{panel.fragments.mean():.3f} fragments per key")
    for y in (line, line + LINE):
        yield f'<path d="M{x:.2f} {y}h{width:.2f}" stroke="{FAINT}"/>'
    for change in changes:
        mark = x + change * step
        yield f'<path d="M{mark:.2f} {HEAT - 2}l-5 -8h10z" fill="{INK}"/>'
        yield f'<path d="M{mark:.2f} {HEAT}V{bottom}M{mark:.2f} {line}v{LINE}" stroke="{INK}" stroke-dasharray="2 3"/>'
    heights = line + LINE * (1 - (panel.fragments - 1) / (top - 1))
    points = " ".join(f"{x + (batch + 0.5) * step:.1f},{y:.1f}" for batch, y in enumerate(heights))
    yield f'<polyline points="{points}" fill="none" stroke="{INK}" stroke-width="2.5" stroke-linejoin="round"/>'
    for batch in (0, *changes):
        yield text(x + batch * step, line + LINE + 22, str(batch), anchor="middle", fill=GREY)


def _cells(colour_levels: NDArray[np.int64]) -> Iterator[str]:
    """Yields one path for each colour; adjacent batches of one colour are one rectangle."""
    pieces: dict[int, list[str]] = {}
    for worker, row in enumerate(colour_levels.T):
        starts = np.flatnonzero(np.diff(row, prepend=row[0] - 1))
        for start, end in zip(starts, [*starts[1:], row.size], strict=True):
            pieces.setdefault(int(row[start]), []).append(f"M{start} {worker}h{end - start}v1h-{end - start}z")
    for level, paths in sorted(pieces.items()):
        if level != 0:
            yield f'<path d="{"".join(paths)}" fill="{colour(level)}"/>'


def _scale(x: float, y: float) -> Iterator[str]:
    """Yields the legend of the colours."""
    yield text(x - 14, y + 13, "load of a worker in a batch", anchor="end", fill=GREY)
    width = 250 / (2 * STEPS + 1)
    for level in range(-STEPS, STEPS + 1):
        left = x + (level + STEPS) * width
        yield f'<path d="M{left:.2f} {y}h{width + 0.3:.2f}v16h-{width + 0.3:.2f}z" fill="{colour(level)}"/>'
    for power, words in zip((-2, -1, 0, 1, 2), ("≤ ¼", "½", "mean", "2", "≥ 4"), strict=True):
        yield text(x + (power * STEPS / REACH + STEPS + 0.5) * width, y + 34, words, anchor="middle", fill=GREY)
