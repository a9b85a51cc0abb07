"""Reports in the portable caches of torch.compiler (`save_cache_artifacts`).

An artifact there is a key and its contents, and a type that says where it is unpacked. A report
takes the type that Inductor uses for its own JSON files, which are unpacked by name into the cache
directory: the very place where `report_store.py` looks. A type of our own would make loading fail
in a process that has not imported this package yet.
"""

from __future__ import annotations

import importlib
import logging
from typing import Any

log = logging.getLogger(__name__)


def record(name: str, data: dict[str, Any]) -> None:
    """Adds a JSON file to the artifacts that `torch.compiler.save_cache_artifacts` returns.

    Args:
        name: Its path below Inductor's cache directory.
        data: Its contents.
    """
    try:
        # Defines the type.
        importlib.import_module("torch._inductor.runtime.autotune_cache")
        manager: Any = importlib.import_module("torch.compiler._cache").CacheArtifactManager
        manager.record_artifact("autotune", name, data)
    except (ImportError, AttributeError, AssertionError) as error:
        # The graph is then compiled once more where the artifacts are loaded.
        log.warning("the report is not part of torch.compiler's artifacts: %s", error)
