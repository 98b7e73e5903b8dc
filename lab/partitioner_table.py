"""Writes the table of docs/partitioner-table.md from the registry of partitioners: `make docs`."""

from __future__ import annotations

from pathlib import Path

from skewless.partitioners import ALL, parameters, summary

PAGE = Path(__file__).parent.parent / "docs" / "partitioner-table.md"
MARKS = ("<!-- partitioners: written by `make docs` -->", "<!-- end of partitioners -->")


def generated() -> str:
    """Returns the table in Markdown: one row per partitioner."""
    lines = ["| name | keys | parameters | what it does |", "|---|---|---|---|"]
    for cls in ALL:
        takes = ", ".join(f"`{name}`" for name in parameters(cls))
        lines.append(f"| `{cls.name}` | {'split' if cls(1).splits_keys else 'whole'} | {takes} | {summary(cls)} |")
    return "\n".join(lines)


def main() -> None:
    text = PAGE.read_text()
    start, end = MARKS
    before, rest = text.split(start)
    PAGE.write_text(before + start + "\n" + generated() + "\n" + end + rest.split(end)[1])
    print(f"wrote the table of partitioners to {PAGE.name}")


if __name__ == "__main__":
    main()
