"""Draws the runs of the demo as an SVG picture and as a page that needs no other file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, MARGIN, GAP, ROW, TOP = 1200, 24, 36, 20, 150
HOT, OTHER, INK, MUTED, GOOD = "#d1495b", "#5b8db8", "#1f2328", "#59636e", "#1a7f37"
FONT = "'Segoe UI', 'Helvetica Neue', Helvetica, Arial, 'Liberation Sans', sans-serif"


@dataclass(frozen=True)
class Run:
    """One way to run the job: its seconds from start to end, and of each task on the hot key and on other keys."""

    title: str
    seconds: float
    hot: list[float]
    other: list[float]

    @property
    def tasks(self) -> list[float]:
        return [hot + other for hot, other in zip(self.hot, self.other, strict=True)]


def picture(runs: Sequence[Run], hot_key: str, story: str) -> str:
    """Returns an SVG picture with one panel per run and one bar per task."""
    n_tasks = len(runs[0].tasks)
    height = TOP + ROW * n_tasks + 40
    width = (WIDTH - 2 * MARGIN - GAP * (len(runs) - 1)) / len(runs)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'font-family="{FONT}" font-size="15" fill="{INK}">',
        f"<title>Seconds of work per task: {escape(', '.join(run.title for run in runs))}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
        _text(MARGIN, 34, "The same job three ways: seconds of work per task", size=21, weight=600),
        _text(MARGIN, 60, f"{story} (", fill=MUTED, after=f'<tspan fill="{HOT}" font-weight="600">red</tspan>).'),
    ]
    scale = (width - 100) / max(max(run.tasks) for run in runs)
    for number, run in enumerate(runs):
        left = MARGIN + number * (width + GAP)
        gain = "" if number == 0 else f"{runs[0].seconds / run.seconds:.1f} x as fast"
        parts.append(_text(left, 102, run.title, size=17, weight=600))
        parts.append(
            _text(left, 128, f"{run.seconds:.1f} s  ", after=f'<tspan fill="{GOOD}" font-weight="600">{gain}</tspan>')
        )
        parts += _bars(run, left, scale)
    return "\n".join([*parts, "</svg>", ""])


def page(runs: Sequence[Run], hot_key: str, story: str, code: str) -> str:
    """Returns an HTML page with the picture, the times and the code of the runs."""
    rows = "".join(
        f"<tr><td>{escape(run.title)}<td>{run.seconds:.1f} s<td>{max(run.tasks):.1f} s"
        f"<td>{max(run.tasks) * len(run.tasks) / sum(run.tasks):.1f}<td>{runs[0].seconds / run.seconds:.1f} x"
        for run in runs
    )
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Skewless demo</title>
<style>
body {{ font: 16px/1.5 {FONT}; color: {INK}; max-width: 1200px; margin: 2em auto; padding: 0 1em }}
svg {{ width: 100%; height: auto }}
table {{ border-collapse: collapse; margin: 1em 24px }}
td, th {{ padding: .3em 1.2em .3em 0; text-align: left; border-bottom: 1px solid #d1d9e0 }}
pre {{ background: #f6f8fa; padding: 1em 24px; border-radius: 6px; overflow-x: auto; font-size: 14px }}
p {{ margin: 1em 24px }}
</style>
{picture(runs, hot_key, story)}
<table><tr><th><th>start to end<th>longest task<th>longest / mean<th>gain{rows}</table>
<p>The job ends when its longest task ends. Balancing whole keys gives the task of {escape(hot_key)} no other work.
It cannot be shorter than that, so the other tasks need not be even. Splitting shares the hot key among several tasks
and merges its parts at the end. All three results are equal.</p>
<pre>{escape(code.strip())}</pre>
</html>
"""


def _bars(run: Run, left: float, scale: float) -> Iterator[str]:
    for task, (hot, other) in enumerate(zip(run.hot, run.other, strict=True)):
        y = TOP + ROW * task
        start = left + 28
        yield _text(left + 20, y + 12, str(task), size=13, fill=MUTED, anchor="end")
        yield f'<rect x="{start:.1f}" y="{y}" width="{hot * scale:.1f}" height="14" fill="{HOT}"/>'
        yield f'<rect x="{start + hot * scale:.1f}" y="{y}" width="{other * scale:.1f}" height="14" fill="{OTHER}"/>'
        yield _text(start + (hot + other) * scale + 6, y + 12, f"{hot + other:.1f} s", size=13, fill=MUTED)


def _text(
    x: float,
    y: float,
    words: str,
    *,
    size: int = 15,
    fill: str = INK,
    weight: int = 400,
    anchor: str = "start",
    after: str = "",
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" font-weight="{weight}" '
        f'xml:space="preserve">{escape(words)}{after}</text>'
    )
