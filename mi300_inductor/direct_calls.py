"""Calls of the operators from Python that go to their kernels without pybind11's conversions.

torch takes 0.3 us to convert a number for a custom operator and more for a list: 5 us for the
twenty arguments of the longest. `install` puts a `DirectCall` of `csrc/python` in front of torch's
caller of each operator; it does plain calls itself and leaves every other one to torch, see its
file for what is plain. It needs Python's headers, as Inductor's own C++ code does; without them
nothing is replaced.
"""

from __future__ import annotations

import importlib.util
import logging
import sysconfig
from importlib.machinery import ExtensionFileLoader
from pathlib import Path
from types import ModuleType

from mi300_inductor import build
from mi300_inductor.op_schemas import NAMESPACE, SCHEMAS, overload

_MODULE = "mi300_python"

log = logging.getLogger(__name__)


def install() -> bool:
    """Replaces torch's caller of every operator; returns whether that was possible."""
    try:
        path = library()
    except RuntimeError as error:  # the operators work all the same, only slower
        log.warning("operators are called through torch's own conversions: %s", error)
        return False
    if path is None:
        return False
    direct_call = load(path).direct_call
    for op in SCHEMAS:
        found = overload(op)
        found._op = direct_call(f"{NAMESPACE}::{op}", found._op)
    return True


def library() -> Path | None:
    """Builds the module of `csrc/python` or takes it from the cache; None without Python's headers.

    Raises:
        RuntimeError: as `build.build_library`.
    """
    include = Path(sysconfig.get_paths()["include"])
    if not (include / "Python.h").is_file():
        log.info("no Python.h in %s: operators are called through torch's own conversions", include)
        return None
    return build.build_library("python", [f"-isystem{include}"], ["-ltorch_python"])


def load(path: Path) -> ModuleType:
    """Loads the module that `library` built; it has `direct_call(name, usual)`."""
    loader = ExtensionFileLoader(_MODULE, str(path))
    spec = importlib.util.spec_from_loader(_MODULE, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
