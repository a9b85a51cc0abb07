"""The launcher's core without a GPU: clusters, dependent launches, dynamic LDS, several devices.

A stand-in libcuda records what it is asked; the core finds it as it finds the real one.
"""

import subprocess
import sys

from mi300_inductor import plan

STAND_IN = r"""
#include <cstring>
#include <mutex>
#include <string>
namespace {
struct Attribute {
  int id, padding;
  union { unsigned cluster[3]; int flag; char bytes[64]; } value;
};
struct Config {
  unsigned grid[3], block[3], lds; void* stream; Attribute* attributes; unsigned count;
};
std::mutex mutex;
int counts[6];  // loads, lookups, plain launches, extended launches, attribute calls, refuse
int last[8];    // grid, block, LDS, cluster, dependent; then attribute's id and value
}
extern "C" {
int cuInit(unsigned) { return 0; }
int cuModuleLoadData(void** module, const void* image) {
  std::lock_guard lock(mutex);
  ++counts[0];
  *module = const_cast<void*>(image);
  return 0;
}
int cuModuleGetFunction(void** function, void*, const char* name) {
  std::lock_guard lock(mutex);
  *function = reinterpret_cast<void*>(0x1000 + 16 * counts[1]++);
  return name[0] == 'x' ? 500 : 0;
}
int cuLaunchKernel(void*, unsigned gx, unsigned, unsigned, unsigned bx, unsigned, unsigned,
                   unsigned lds, void*, void**, void**) {
  std::lock_guard lock(mutex);
  ++counts[2];
  const int seen[] = {int(gx), int(bx), int(lds), 1, 0};
  std::memcpy(last, seen, sizeof(seen));
  return 0;
}
int cuLaunchKernelEx(const Config* config, void*, void**, void**) {
  std::lock_guard lock(mutex);
  ++counts[3];
  int seen[] = {int(config->grid[0]), int(config->block[0]), int(config->lds), 1, 0};
  for (unsigned i = 0; i < config->count; ++i) {
    if (config->attributes[i].id == 4) seen[3] = config->attributes[i].value.cluster[0];
    if (config->attributes[i].id == 6) seen[4] = config->attributes[i].value.flag;
  }
  std::memcpy(last, seen, sizeof(seen));
  return 0;
}
int cuFuncSetAttribute(void*, int attribute, int value) {
  std::lock_guard lock(mutex);
  ++counts[4];
  last[5] = attribute;
  last[6] = value;
  return counts[5];
}
int cuThreadExchangeStreamCaptureMode(int* mode) { *mode = 0; return 0; }
int cuGetErrorString(int, const char** text) { *text = "stand-in error"; return 0; }
void refuse_attributes(int status) { counts[5] = status; }
void read(int* out) { std::memcpy(out, counts, 20); std::memcpy(out + 5, last, 28); }
}
"""

# Runs in a process of its own: the driver that a process has loaded cannot be taken back.
SCRIPT = """
import ctypes, sys, threading
from mi300_inductor import plan
from mi300_inductor.arch import SM90

driver = ctypes.CDLL(sys.argv[1])
core = plan.core()
info = plan.device_info(SM90)
args = plan.RowArgs()

def read():
    out = (ctypes.c_int * 12)()
    driver.read(out)
    return list(out)

def launch(entry, lds=0, cluster=1, dependent=False, device=0):
    what = plan.Launch(b"rows", entry, 24, 128, cluster, lds, dependent)
    status = core.mi300_launch(device, ctypes.byref(what), ctypes.byref(args), None)
    return core.mi300_last_error().decode() if status else ""

for device in range(3):
    plan.check(core, core.mi300_add_device(device, ctypes.byref(info)))
    plan.check(core, core.mi300_add_image(device, b"rows", b"image", 5))

# The limit on dynamic LDS is raised when a launch first needs it, be it the first launch or not.
assert launch(b"first") == "" and read()[4] == 0
assert launch(b"first", lds=70000) == ""
limit = SM90.lds_per_group - 4096
assert read()[:5] == [1, 1, 2, 0, 1] and read()[10:] == [8, limit], read()
assert launch(b"first", lds=90000) == "" and launch(b"first") == "" and read()[4] == 1
assert launch(b"first", lds=70000, device=1) == "" and read()[4] == 2  # each device has its own

driver.refuse_attributes(1)
message = launch(b"second", lds=70000)
assert "the LDS size is refused; got CUDA status 1 (stand-in error)" in message, message
assert launch(b"second") == ""  # without dynamic LDS it may run
driver.refuse_attributes(0)
assert launch(b"second", lds=70000) == "" and read()[5:8] == [24, 128, 70000]

before = read()
assert launch(b"first", cluster=8) == "" and read()[5:10] == [24, 128, 0, 8, 0]
assert launch(b"first", dependent=True) == "" and read()[5:10] == [24, 128, 0, 1, 1]
assert launch(b"first", cluster=4, dependent=True) == "" and read()[5:10] == [24, 128, 0, 4, 1]
assert read()[3] == before[3] + 3 and read()[2] == before[2]

# Several threads on several devices: one module a device, one look-up of each kernel there.
before, results = read(), []
def work(index):
    for turn in range(200):
        name = b"kernel%d" % (turn % 5)
        results.append(launch(name, lds=(turn % 2) * 60000, device=(index + turn) % 3))
threads = [threading.Thread(target=work, args=(index,)) for index in range(6)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
after = read()
assert results == [""] * 1200
assert after[0] == 3 and after[1] - before[1] == 15 and after[4] - before[4] == 15, (before, after)
assert after[2] - before[2] == 1200
print("all checked")
"""


def test_the_core_drives_the_loaded_cuda_driver(tmp_path):
    source, library = tmp_path / "stand_in.cpp", tmp_path / "libcuda.so.1"
    source.write_text(STAND_IN)
    subprocess.run(
        ["g++", "-std=c++20", "-shared", "-fPIC", "-o", str(library), str(source)], check=True
    )
    plan.build_core()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(library)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "all checked" in done.stdout, done.stdout + done.stderr
