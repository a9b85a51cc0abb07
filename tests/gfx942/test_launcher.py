"""End to end: the launcher's core, its plan and argument packing drive gfx942 code on host memory.

A stand-in `libamdhip64` in a process of its own hands the few HIP calls of the launcher to the
executor. The core finds it as it finds the real one: among the libraries of the process.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_DRIVER = r"""
typedef int (*Load)(void**, const void*);
typedef int (*Get)(void**, void*, const char*);
typedef int (*Run)(void*, unsigned, unsigned, unsigned, void*);
static Load load;
static Get get;
static Run run;
void stand_in(Load a, Get b, Run c) { load = a, get = b, run = c; }
int hipInit(unsigned flags) { return (int)flags; }
int hipModuleLoadData(void** module, const void* image) { return load(module, image); }
int hipModuleGetFunction(void** f, void* module, const char* name) { return get(f, module, name); }
int hipThreadExchangeStreamCaptureMode(int* mode) { *mode = 0; return 0; }
int hipDrvGetErrorString(int status, const char** text) { *text = "stand-in"; return status * 0; }
int hipModuleLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned lds, void* stream, void** arguments, void** extra) {
  (void)stream;
  return gy * gz * by * bz == 1 && !extra ? run(f, gx, bx, lds, arguments[0]) : 1;
}
"""


def test_launcher_core_drives_the_executor(tmp_path):
    source, library = tmp_path / "driver.c", tmp_path / "libamdhip64.so"
    source.write_text(_DRIVER)
    subprocess.run(["g++", "-x", "c", "-shared", "-fPIC", "-o", library, source], check=True)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.gfx942.stand_in", str(library)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "launches made: " in done.stdout
