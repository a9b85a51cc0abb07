"""One self-contained page of results: tables, pictures and how they were measured."""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from benchmarks.results import Result
from benchmarks.tables import markdown

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 78rem; padding: 0 1rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: 13px; margin: 1rem 0; }
th, td { border-bottom: 1px solid #8885; padding: 3px 10px; text-align: right; }
th { position: sticky; top: 0; background: Canvas; }
th:first-child, td:first-child { text-align: left; }
tbody tr:hover { background: #8882; }
figure { background: white; display: inline-block; margin: 1rem 1rem 1rem 0; max-width: 100%; }
figure svg { max-width: 100%; height: auto; }
pre { background: #8881; padding: .6rem 1rem; overflow-x: auto; }
"""


def write(results: Sequence[Result], pictures: Sequence[Path], path: Path) -> None:
    """Writes the page of some results and their SVG pictures."""
    parts = ["<!doctype html><html lang=en><meta charset=utf-8><title>Benchmarks</title>"]
    parts.append(f"<style>{STYLE}</style>")
    for result in results:
        parts.append(body(markdown(result)))
        mine = [p for p in pictures if p.stem.startswith(f"{result.benchmark}_")]
        parts += [f"<figure>{picture(file)}</figure>" for file in mine]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(parts) + "</html>\n")


def picture(file: Path) -> str:
    """The SVG without its XML header, its identifiers made the page's only ones."""
    text = file.read_text()
    svg = text[text.index("<svg") :]
    return re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{file.stem}-", svg)


def body(page: str) -> str:
    """HTML of the markdown that `tables.markdown` writes, and of nothing more."""
    return "\n".join(block(part) for part in page.strip().split("\n\n"))


def block(text: str) -> str:
    lines = text.split("\n")
    if match := re.match(r"(#+) (.*)", text):
        level = len(match[1])
        return f"<h{level}>{escape(match[2])}</h{level}>"
    if text.startswith("    "):
        return f"<pre>{escape(text.strip())}</pre>"
    if lines[0].startswith("|"):
        head, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        cells = "".join(f"<th>{escape(cell)}</th>" for cell in head)
        filled = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
        )
        table = f"<table><thead><tr>{cells}</tr></thead><tbody>{filled}</tbody></table>"
        return f"<div class=wide>{table}</div>"
    items = [line for line in lines if line.startswith("- ")]
    before = " ".join(line for line in lines if not line.startswith("- "))
    listed = "".join(f"<li>{words(item[2:])}</li>" for item in items)
    return (f"<p>{words(before)}</p>" if before else "") + (f"<ul>{listed}</ul>" if items else "")


def words(text: str) -> str:
    """Text with what stands between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
