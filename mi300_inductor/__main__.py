"""The command line: `python -m mi300_inductor info | build | explain | roofline`.

info                                  target, capabilities, compilers, cache
build --arch gfx942 --out D           code objects ahead of time, with a table of resources
build --arch cpu                      the CPU library, into the cache
explain FILE.py:FACTORY [--out D]     what is fused in a model; FACTORY() -> (module, args)
roofline FILE.py:FACTORY [--arch A]   what each operation of it costs, and what bounds it
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import inspect
import json
import platform
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tabulate import tabulate


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns the exit status: 0, or 1 after an error of ours.

    Args:
        argv: The arguments; None means those of the process.
    """
    parser = argparse.ArgumentParser("python -m mi300_inductor", description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(required=True, metavar="info | build | explain | roofline")
    info = commands.add_parser("info", help="target, capabilities, compilers, cache")
    info.set_defaults(run=lambda _: _info())
    build = commands.add_parser("build", help="compile kernels ahead of time")
    build.add_argument("--arch", required=True, help="cpu, gfx942 or sm_90")
    build.add_argument("--out", type=Path, help="directory for the results and resources.json")
    build.set_defaults(run=lambda given: _build(given.arch, given.out))
    explain = commands.add_parser("explain", help="what is fused in a model, and what is not")
    explain.add_argument("factory", metavar="FILE.py:FACTORY", help="FACTORY() -> (module, args)")
    explain.add_argument("--out", type=Path, help="directory for the report's files")
    explain.set_defaults(run=lambda given: _explain(given.factory, given.out))
    roofline = commands.add_parser("roofline", help="what each operation costs, and why")
    roofline.add_argument("factory", metavar="FILE.py:FACTORY", help="FACTORY() -> (module, args)")
    roofline.add_argument("--arch", help="cpu, gfx942 or sm_90; the device at hand if left out")
    roofline.add_argument("--rows", help="sizes of the batch dimension, for example 1,8,32")
    roofline.add_argument("--plot", type=Path, help="a picture, for example roofline.png")
    roofline.set_defaults(run=_roofline)
    given = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], str] = given.run
    try:
        sys.stdout.write(run(given) + "\n")
    except RuntimeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


def _info() -> str:
    """The table of `info`."""
    import torch

    from mi300_inductor import arch, build, cache, toolchain

    spec = arch.detect()
    rows: list[tuple[str, object]] = [
        ("package", importlib.metadata.version("mi300-inductor")),
        ("torch", torch.__version__),
        ("default target", spec.name if spec else arch.unsupported_reason("cuda")),
        ("FP8 format", str(spec.fp8_dtype if spec else "").removeprefix("torch.")),
        ("CPU", f"{platform.machine()}, kernels for {build.cpu_level()}"),
    ]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found = arch.detect(f"cuda:{index}")
        kernels = f"kernels for {found.name}" if found else "no kernels"
        rows.append(
            (
                f"GPU {index}",
                f"{properties.name}, {properties.multi_processor_count} compute units, "
                f"{properties.total_memory / 1e9:.0f} GB, {kernels}",
            )
        )
    try:
        compiler = build.run_compiler([build.COMPILER, "--version"]).splitlines()[0]
    except RuntimeError:
        compiler = f"missing: {build.COMPILER} (needed at the first call, unless it is cached)"
    try:
        clang = f"ziglang {importlib.metadata.version('ziglang')}"
    except importlib.metadata.PackageNotFoundError:
        clang = "missing: pip install 'mi300-inductor[gpu]'"
    rows += [
        ("host compiler", compiler),
        ("GPU compiler", f"{clang} (wanted: {toolchain.PINNED})"),
        ("cache", f"{cache.cache_dir()} (set by {cache.CACHE_VARIABLE})"),
    ]
    return tabulate(rows, tablefmt="plain")


def _build(name: str, out: Path | None) -> str:
    """The table of `build`.

    Raises:
        RuntimeError: for an unknown target, if `out` cannot be written, or if a compiler is missing
            or fails.
    """
    from mi300_inductor import arch, build, toolchain

    if out is not None:
        _make_directory(out, "build")
    if name == "cpu":
        library = build.build_cpu()
        if out is not None:
            library = Path(shutil.copy2(library, out))
        row = {"arch": "cpu", "level": build.cpu_level(), "library": str(library)}
        if out is not None:
            (out / "resources.json").write_text(json.dumps(row, indent=1) + "\n")
        return tabulate([row], headers="keys")
    if name not in arch.GPU_ARCHES:
        raise RuntimeError(
            f"build: unknown target; got {name}, expected cpu, {' or '.join(arch.GPU_ARCHES)}. "
            "Choose one of these."
        )
    if out is None:
        raise RuntimeError(
            f"build: no directory for {name}; got no --out, expected one. Add --out DIRECTORY."
        )
    result = toolchain.build_device(arch.GPU_ARCHES[name], out)
    images = "\n".join(str(path) for path in result.images)
    if not result.kernels:
        rows = [(module, entry) for module, names in result.entries.items() for entry in names]
        return f"{tabulate(rows, headers=['module', 'kernel'])}\n\n{images}"
    return f"{tabulate([asdict(k) for k in result.kernels], headers='keys')}\n\n{images}"


def _explain(factory: str, out: Path | None) -> str:
    """The report of `explain`.

    Raises:
        RuntimeError: if the factory cannot be found or gives something else, or `out` cannot be
            written.
    """
    import mi300_inductor as mi

    if out is not None:
        _make_directory(out, "explain")
    module, args, kwargs = _make(factory, "explain")
    report = mi.explain(module, *args, **kwargs)
    text = str(report)
    return text if out is None else f"{text}\n\n{report.save(out) / 'report.html'}"


def _make_directory(out: Path, command: str) -> None:
    """Makes the directory for results before there are any."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise RuntimeError(
            f"{command}: --out cannot be written; got {error.strerror} for {out}, expected a "
            "directory or a free name. Choose another one."
        ) from error


def _roofline(given: argparse.Namespace) -> str:
    """The table of `roofline`.

    Raises:
        RuntimeError: for a bad factory, target or number of rows, or a picture that cannot be made.
    """
    from mi300_inductor.roofline import roofline

    rows = None
    if given.rows is not None:
        try:
            rows = [int(text) for text in given.rows.split(",")]
        except ValueError:
            rows = []
        if not rows or min(rows) < 1:
            raise RuntimeError(
                f"roofline: --rows is a list of sizes; got {given.rows}, expected for example "
                "1,8,32. Give numbers from 1 up."
            )
    module, args, kwargs = _make(given.factory, "roofline")
    found = roofline(module, args, kwargs, target_name=given.arch, rows=rows)
    if given.plot is None:
        return str(found)
    from mi300_inductor.roofline_plot import draw

    draw(found, given.plot)
    return f"{found}\n\n{given.plot}"


def _make(factory: str, command: str) -> tuple[Callable[..., Any], list[Any], dict[str, Any]]:
    """The module of a factory and its arguments."""
    import torch

    from mi300_inductor.shown import shown

    function = _load_factory(factory, command)
    wanted = [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    if wanted:
        raise RuntimeError(
            f"{command}: the factory takes arguments; got ({', '.join(wanted)}), expected none. "
            "Give them default values."
        )
    with _errors_of(factory, command):
        made = function()
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0])):
        raise RuntimeError(
            f"{command}: the factory gives something else; got {type(made).__name__}, expected "
            "(module, args). Return the module and a tuple of its arguments."
        )
    module, arguments = made
    if isinstance(arguments, dict):
        return module, [], arguments
    if not isinstance(arguments, (torch.Tensor, tuple, list)):
        raise RuntimeError(
            f"{command}: the factory's arguments are something else; got {shown(arguments)}, "
            "expected a tuple, a dict or a tensor. Return (module, args)."
        )
    return module, [arguments] if isinstance(arguments, torch.Tensor) else list(arguments), {}


@contextmanager
def _errors_of(factory: str, command: str) -> Iterator[None]:
    """Says of an error of the user's file what it is and where it comes from.

    Raises:
        RuntimeError: in place of the error.
    """
    try:
        yield
    except Exception as error:
        path = Path(factory.rpartition(":")[0]).resolve()
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path]
        where = f"{path.name}:{lines[-1]}" if lines else path.name
        raise RuntimeError(
            f"{command}: {factory} fails; got {type(error).__name__}: {error}, at {where}, "
            "expected a function that returns (module, args). Correct it."
        ) from error


def _load_factory(text: str, command: str) -> Callable[[], Any]:
    file, _, name = text.rpartition(":")
    path = Path(file)
    if Path(text).is_file():
        raise RuntimeError(
            f"{command}: no factory; got {text}, expected FILE.py:FACTORY. Add the function's name."
        )
    if not file or not path.is_file():
        raise RuntimeError(
            f"{command}: no such file; got {text}, expected FILE.py:FACTORY. Check the path."
        )
    # The file's neighbours can be imported, as if it were run as a script.
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise RuntimeError(
            f"{command}: not a Python file; got {file}, expected FILE.py. Rename it."
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    with _errors_of(text, command):
        spec.loader.exec_module(module)
    factory = getattr(module, name, None)
    if not callable(factory):
        raise RuntimeError(
            f"{command}: {file} has no such function; got {name!r}, expected a function without "
            "arguments that returns (module, args). Check the name."
        )
    found: Callable[[], Any] = factory
    return found


if __name__ == "__main__":
    sys.exit(main())
