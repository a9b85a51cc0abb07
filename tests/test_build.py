"""The cache and the host build: keys, damage, several processes, compiler errors."""

import ctypes
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from mi300_inductor import build, cache


@pytest.fixture
def directory(tmp_path, monkeypatch):
    path = tmp_path / "cache"
    monkeypatch.setenv(cache.CACHE_VARIABLE, str(path))
    return path


def write(text):
    return lambda out: out.write_text(text)


def refuse(out):
    raise AssertionError(f"built again: {out}")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_directory_is_private(directory):
    assert build.cache_dir() == directory and mode(directory) == 0o700


def test_an_open_directory_is_closed_to_others(directory):
    directory.mkdir(mode=0o755)
    assert mode(build.cache_dir()) == 0o700


def test_a_shared_directory_is_refused_and_left_alone(directory):
    directory.mkdir()
    directory.chmod(0o1777)
    with pytest.raises(RuntimeError, match="is shared; got .* Set MI300_INDUCTOR_CACHE_DIR"):
        build.cache_dir()
    assert mode(directory) == 0o1777


def test_a_file_in_the_way_is_explained(directory):
    directory.write_text("")
    with pytest.raises(RuntimeError, match="cannot be made; got .*, expected a writable"):
        build.cache_dir()


def test_the_default_is_under_home(tmp_path, monkeypatch):
    monkeypatch.delenv(cache.CACHE_VARIABLE, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert build.cache_dir() == tmp_path / ".cache" / "mi300_inductor"


def test_an_artefact_is_built_once(directory):
    first = build.cached(["flags", b"source"], "kernel.o", write("code"))
    assert first.read_text() == "code" and first.name == "kernel.o"
    assert build.cached(["flags", b"source"], "kernel.o", refuse) == first


@pytest.mark.parametrize("other", [["flags", "sourcf"], ["flag", "ssource"], ["flags"]])
def test_other_inputs_make_another_artefact(directory, other):
    first = build.cached(["flags", "source"], "kernel.o", write("one"))
    second = build.cached(other, "kernel.o", write("two"))
    assert first.read_text() == "one" and second.read_text() == "two"


def test_a_file_counts_with_its_contents(directory, tmp_path):
    source = tmp_path / "kernel.cpp"
    source.write_text("int a;")
    first = build.cached([source], "kernel.o", write("a"))
    source.write_text("int b;")
    assert build.cached([source], "kernel.o", write("b")) != first
    source.write_text("int a;")
    assert build.cached([source], "kernel.o", refuse) == first


@pytest.mark.parametrize("damage", [b"", b"cod", b"cobe"])
def test_a_damaged_artefact_is_built_again(directory, damage):
    path = build.cached(["key"], "kernel.o", write("code"))
    path.write_bytes(damage)
    assert build.cached(["key"], "kernel.o", write("code")).read_text() == "code"
    assert not list(directory.glob("tmp-*"))


def test_a_lost_hash_is_damage_too(directory):
    path = build.cached(["key"], "kernel.o", write("code"))
    path.with_name("kernel.o.sha256").unlink()
    assert build.cached(["key"], "kernel.o", write("fresh")).read_text() == "fresh"


def test_a_failed_build_leaves_nothing(directory):
    with pytest.raises(AssertionError, match="built again"):
        build.cached(["key"], "kernel.o", refuse)
    assert [path.suffix for path in directory.iterdir()] == [".lock"]
    assert build.cached(["key"], "kernel.o", write("code")).read_text() == "code"


def test_threads_build_once(directory):
    calls, paths = [], []

    def builder(out):
        calls.append(out)
        out.write_text("code")

    def work():
        paths.append(build.cached(["key"], "kernel.o", builder))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1 and len(paths) == 8 and len(set(paths)) == 1


def test_who_waits_for_another_says_so_once(directory, monkeypatch):
    said, holds, messages = threading.Event(), threading.Event(), []

    def warning(text, *args):
        messages.append(text % args)
        said.set()

    def slow(out):
        holds.set()
        assert said.wait(60)
        out.write_text("code")

    monkeypatch.setattr(cache.log, "warning", warning)
    first = threading.Thread(target=build.cached, args=(["key"], "kernel.o", slow))
    first.start()
    assert holds.wait(60)
    assert build.cached(["key"], "kernel.o", refuse).read_text() == "code"
    first.join()
    assert build.cached(["key"], "kernel.o", refuse).read_text() == "code"
    assert messages == ["waiting for kernel.o, which another process or thread is building"]


def test_processes_build_once(directory):
    program = (
        "import os, sys\n"
        "from mi300_inductor.cache import cached\n"
        "def builder(out):\n"
        "    open(os.environ['LOG'], 'a').write('built ')\n"
        "    out.write_text('code' * 100_000)\n"
        "assert len(cached(['key'], 'kernel.o', builder).read_text()) == 400_000\n"
    )
    log = directory.with_name("log")
    environment = {**os.environ, "LOG": str(log)}
    running = [subprocess.Popen([sys.executable, "-c", program], env=environment) for _ in range(4)]
    assert [process.wait() for process in running] == [0, 0, 0, 0]
    assert log.read_text() == "built "


def test_a_missing_compiler_is_named(directory, monkeypatch):
    with pytest.raises(RuntimeError, match=r"cannot be run; got .*no-such-compiler.*Install g\+\+"):
        build.run_compiler(["no-such-compiler", "--version"])


EXPORTED = 'extern "C" __attribute__((visibility("default"))) '


@pytest.fixture
def small_csrc(tmp_path, monkeypatch):
    """A source tree with one tiny library in `cpu`."""
    folder = tmp_path / "csrc"
    (folder / "cpu").mkdir(parents=True)
    (folder / "include").mkdir()
    (folder / "cpu" / "one.cpp").write_text(EXPORTED + "int one() { return 1; }\n")
    monkeypatch.setattr(build, "csrc_dir", lambda: folder)
    return folder


def test_a_compiler_error_is_shown_in_its_own_words(directory, small_csrc):
    (small_csrc / "cpu" / "two.cpp").write_text("int two() { return misspelt; }\n")
    with pytest.raises(RuntimeError) as caught:
        build.build_cpu()
    text = str(caught.value)
    assert text.startswith("build: the compiler failed; got exit status 1")
    assert "$ g++ " in text and "misspelt" in text and "two.cpp:1" in text


def test_a_warning_is_an_error(directory, small_csrc):
    (small_csrc / "cpu" / "one.cpp").write_text("void one(int unused) {}\n")
    with pytest.raises(RuntimeError, match="unused parameter"):
        build.build_cpu()


def test_a_source_is_found_and_an_edit_builds_again(directory, small_csrc):
    assert ctypes.CDLL(str(build.build_cpu())).one() == 1
    (small_csrc / "cpu" / "two.cpp").write_text(
        "#include <mi300/two.h>\n" + EXPORTED + "int two() { return kTwo; }\n"
    )
    header = small_csrc / "include" / "mi300" / "two.h"
    header.parent.mkdir()
    paths = []
    for value in (2, 22):
        header.write_text(f"constexpr int kTwo = {value};\n")
        paths.append(build.build_cpu())
        library = ctypes.CDLL(str(paths[-1]))
        assert library.one() == 1 and library.two() == value
    assert paths[0] != paths[1]
    (small_csrc / "include" / "mi300" / "other.h").write_text("not included")
    assert build.build_cpu() == paths[1]


def test_every_level_has_its_own_library(directory, small_csrc):
    paths = {build.build_cpu(level) for level in ("default", build.cpu_level())}
    assert len(paths) == len({"default", build.cpu_level()})
    with pytest.raises(RuntimeError, match="unknown level; got sse9, expected one of default"):
        build.build_cpu("sse9")


def test_the_level_is_one_the_cpu_and_torch_have():
    level = build.LEVELS[build.cpu_level()]
    assert level.torch_capability == torch.backends.cpu.get_cpu_capability() or not level.cpu_flags


def test_an_unknown_dispatch_key_is_refused():
    with pytest.raises(RuntimeError, match="got XPU, expected CPU or CUDA"):
        build.load_kernels("XPU")


def test_loading_twice_is_loading_once():
    build.load_kernels("CPU")
    build.load_kernels("CPU")
    x = torch.ones(2, 4)
    expected = torch.full((2, 4), 1.0)
    args = (None, 0.0, 0.0, torch.float32, torch.float32)
    assert torch.equal(torch.ops.mi300.rms_norm(x, *args), expected)


FIRST_CALLS = """
import threading, warnings
warnings.simplefilter("error")
import torch, mi300_inductor.ops
results, x = [], torch.ones(2, 4)
def call():
    results.append(torch.ops.mi300.rms_norm(x, None, 0.0, 0.0, torch.float32, torch.float32))
threads = [threading.Thread(target=call) for _ in range(6)]
[t.start() for t in threads]
[t.join() for t in threads]
assert len(results) == 6 and all(torch.equal(r, x) for r in results), results
print(torch.backends.cpu.get_cpu_capability())
"""


@pytest.mark.parametrize("capability", ["default", "avx2", None])
def test_first_calls_from_threads_at_each_level(capability):
    """At most a notice for each library: no warning when the kernels replace their loaders."""
    environment = {**os.environ, "ATEN_CPU_CAPABILITY": capability or ""}
    if capability is None:
        del environment["ATEN_CPU_CAPABILITY"]
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALLS],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    notice = (
        r"compiling .*(cpu|python) with g\+\+, once; about a minute|"
        r"waiting for mi300_(cpu|python).so, which another process or thread is building"
    )
    said = done.stderr.splitlines()
    assert all(re.fullmatch(notice, line) for line in said) and len(said) <= 2, said


def test_the_sources_are_found():
    assert (build.csrc_dir() / "cpu" / "rms_norm.cpp").is_file()
    assert isinstance(build.csrc_dir(), Path)
