"""The generated part of README.md: the table of partitioners, from the registry."""

from __future__ import annotations

from pathlib import Path

from skewless.partitioners import ALL, parameters, summary

README = Path(__file__).parent.parent / "README.md"
MARKS = ("<!-- partitioners: written by `make docs` -->", "<!-- end of partitioners -->")


def generated() -> str:
    lines = ["| name | keys | parameters | what it does |", "|---|---|---|---|"]
    for cls in ALL:
        takes = ", ".join(f"`{name}`" for name in parameters(cls))
        lines.append(f"| `{cls.name}` | {'split' if cls.splits_keys else 'whole'} | {takes} | {summary(cls)} |")
    return "\n".join(lines)


def main() -> None:
    text = README.read_text()
    start, end = MARKS
    before, rest = text.split(start)
    README.write_text(before + start + "\n" + generated() + "\n" + end + rest.split(end)[1])
    print(f"wrote the table of partitioners to {README.name}")


if __name__ == "__main__":
    main()
