"""The GPU operator takes measured plans, the library among them; see tuned_operator.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

STAND_IN = r"""
#include <stdio.h>
#include <string.h>
static char log_text[4096], taken[4096];
int hipInit(unsigned flags) { return (int)flags; }
int hipModuleLoadData(void** module, const void* image) { *module = (void*)image; return 0; }
int hipModuleGetFunction(void** function, void* module, const char* name) {
  (void)module;
  *function = strdup(name);
  return 0;
}
int hipThreadExchangeStreamCaptureMode(int* mode) { *mode = 0; return 0; }
int hipDrvGetErrorString(int status, const char** text) { *text = "stand-in"; return status * 0; }
int hipModuleLaunchKernel(void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                          unsigned by, unsigned bz, unsigned lds, void* stream, void** arguments,
                          void** extra) {
  const size_t used = strlen(log_text);
  (void)bx, (void)lds, (void)stream, (void)arguments;
  snprintf(log_text + used, sizeof log_text - used, "%s %u\n", (char*)function, gx);
  return gy * gz * by * bz == 1 && !extra ? 0 : 1;
}
const char* stand_in_take(void) {
  strcpy(taken, log_text);
  log_text[0] = 0;
  return taken;
}
int aoti_torch_get_current_cuda_stream(int device, void** stream) {
  *stream = 0;
  return device == -1 ? 0 : 1;
}
"""


def test_the_operator_takes_measured_plans_and_a_second_process_too(tmp_path: Path) -> None:
    source = tmp_path / "stand_in.c"
    source.write_text(STAND_IN)
    for name in ("libamdhip64.so", "libtorch_hip.so"):
        command = ["g++", "-x", "c", "-shared", "-fPIC", "-o", str(tmp_path / name), str(source)]
        subprocess.run(command, check=True)
    root = Path(__file__).parents[2]
    for what in ("first", "second"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.gpu.tuned_operator", str(tmp_path), what],
            cwd=root,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0 and "all checked" in done.stdout, done.stderr[-3000:]
