"""Reports beside Inductor's cache: written when a graph is compiled, read when it is cached."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from dataclasses import asdict
from pathlib import Path

from mi300_inductor import inductor
from mi300_inductor.report import GraphReport

log = logging.getLogger(__name__)


def _path(key: str) -> Path:
    return inductor.report_directory() / f"{key}.json"


def store_report(key: str, report: GraphReport) -> None:
    """Stores a report under the key of the compiled graph; whole or not at all.

    A cache that cannot be written costs a compilation later, so it is a warning and no error.
    """
    path = _path(key)
    try:
        inductor.record_artifact(f"{path.parent.name}/{path.name}", asdict(report))
    except (RuntimeError, ImportError, AssertionError) as error:
        # The graph is then compiled once more where the artifacts are loaded.
        log.warning("report %s is not in torch.compiler's artifacts: %s", report.name, error)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
        with os.fdopen(descriptor, "w") as file:
            json.dump(asdict(report), file)
        os.replace(temporary, path)
    except OSError as error:
        log.warning("the report of graph %s is not stored: %s", report.name, error)


def load_report(key: str) -> GraphReport | None:
    """The report stored under a key, or None if there is none that can be read."""
    path = _path(key)
    try:
        return GraphReport.from_dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.warning("the stored report %s is not usable: %s", path, error)
        return None
