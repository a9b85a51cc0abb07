"""The launcher's core on a machine without a GPU: a stand-in libamdhip64 records what it is asked.

The stand-in is a shared library of that name, loaded before the core looks for its driver; the core
has no branch for it.
"""

import ctypes
import subprocess
import sys

from mi300_inductor import plan

STAND_IN = r"""
#include <cstring>
#include <mutex>
namespace {
std::mutex mutex;
int loads, launches, failing_status, mode_changes;
char entry[64];
unsigned geometry[8];
unsigned char bytes[256];
void* last_stream;
}
extern "C" {
int hipInit(unsigned) { return 0; }
int hipModuleLoadData(void** module, const void* image) {
  std::lock_guard lock(mutex);
  ++loads;
  *module = const_cast<void*>(image);
  return std::strcmp(static_cast<const char*>(image), "broken") == 0 ? 200 : 0;
}
int hipModuleGetFunction(void** function, void*, const char* name) {
  if (std::strcmp(name, "absent") == 0) return 500;
  *function = std::strcpy(entry, name);
  return 0;
}
int hipModuleLaunchKernel(void*, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned lds, void* stream, void** arguments, void** extra) {
  std::lock_guard lock(mutex);
  ++launches;
  const unsigned seen[] = {gx, gy, gz, bx, by, bz, lds, extra != nullptr};
  std::memcpy(geometry, seen, sizeof(seen));
  std::memcpy(bytes, arguments[0], ARGUMENT_BYTES);
  last_stream = stream;
  return failing_status;
}
int hipThreadExchangeStreamCaptureMode(int* mode) {
  ++mode_changes;
  *mode = 0;
  return 0;
}
int hipDrvGetErrorString(int, const char** text) { *text = "stand-in error"; return 0; }
void stand_in_fail(int status) { failing_status = status; }
void stand_in_read(int* counts, unsigned* seen, void* copied, void** stream, char* name) {
  counts[0] = loads; counts[1] = launches; counts[2] = mode_changes;
  std::memcpy(seen, geometry, sizeof(geometry));
  std::memcpy(copied, bytes, ARGUMENT_BYTES);
  *stream = last_stream;
  std::strcpy(name, entry);
}
}
"""

# Runs in a process of its own: the driver that a process has loaded cannot be taken back.
SCRIPT = """
import ctypes, sys, threading
from mi300_inductor import plan
from mi300_inductor.arch import GFX942

driver = ctypes.CDLL(sys.argv[1])
core = plan.core()
info = plan.device_info(GFX942)

def read():
    counts, seen = (ctypes.c_int * 3)(), (ctypes.c_uint * 8)()
    copied, stream = (ctypes.c_ubyte * ctypes.sizeof(plan.RowArgs))(), ctypes.c_void_p()
    name = ctypes.create_string_buffer(64)
    driver.stand_in_read(counts, seen, copied, ctypes.byref(stream), name)
    return list(counts), list(seen), bytes(copied), stream.value, name.value

def launch(entry, args, device=0, module=b"rows", grid=7, block=256, lds=512, stream=0x1234):
    what = plan.Launch(module, entry, grid, block, 1, lds, False)
    status = core.mi300_launch(device, ctypes.byref(what), ctypes.byref(args), stream)
    return core.mi300_last_error().decode() if status else ""

args = plan.RowArgs(first=0x1000, rows=3, hidden=64, eps=1e-5, group=128)
message = launch(b"some_kernel", args)
assert "no code; got device 0" in message or "device 0" in message, message
for device in (0, 1):
    plan.check(core, core.mi300_add_device(device, ctypes.byref(info)))
    plan.check(core, core.mi300_add_image(device, b"rows", b"image", 5))
    plan.check(core, core.mi300_add_image(device, b"bad", b"broken", 6))

assert launch(b"some_kernel", args) == ""
counts, seen, copied, stream, name = read()
assert counts == [1, 1, 2], counts  # one load, in the relaxed capture mode and back
assert seen == [7, 1, 1, 256, 1, 1, 512, 0], seen
assert copied == bytes(args) and stream == 0x1234 and name == b"some_kernel"

assert launch(b"some_kernel", args) == "" and read()[0][:2] == [1, 2]  # the module is kept
assert launch(b"other_kernel", args) == "" and read()[0][:2] == [1, 3]
assert launch(b"some_kernel", args, device=1) == "" and read()[0][:2] == [2, 4]  # one per device
assert launch(b"some_kernel", args, grid=0) == "" and read()[0][1] == 4  # nothing to do

results = []
def work():
    results.extend(launch(b"threaded_kernel", args) for _ in range(200))
threads = [threading.Thread(target=work) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert results == [""] * 800 and read()[0][:2] == [2, 804]

message = launch(b"absent", args)
assert "the kernel is missing; got HIP status 500 (stand-in error)" in message, message
assert "absent of rows on device 0 (grid 7, workgroup 256, cluster 1, LDS 512" in message, message
message = launch(b"some_bad", args, module=b"bad")
assert "the device code is refused; got HIP status 200" in message, message
message = launch(b"x", args, module=b"nowhere")
assert "no device code; got none named nowhere" in message, message
driver.stand_in_fail(719)
message = launch(b"some_kernel", args)
assert "the launch failed; got HIP status 719" in message, message
print("all checked")
"""


def test_the_core_drives_the_loaded_hip_driver(tmp_path):
    source = tmp_path / "stand_in.cpp"
    source.write_text(STAND_IN)
    library = tmp_path / "libamdhip64.so.6"
    size = f"-DARGUMENT_BYTES={ctypes.sizeof(plan.RowArgs)}"
    subprocess.run(
        ["g++", "-std=c++20", size, "-shared", "-fPIC", "-o", str(library), str(source)], check=True
    )
    plan.build_core()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(library)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "all checked" in done.stdout, done.stdout + done.stderr


def test_python_mirrors_the_structs():
    sizes = (ctypes.c_uint * 6)()
    plan.core().mi300_struct_sizes(sizes)
    mirrored = (plan.DeviceInfo, plan.RowProblem, plan.RowLaunch, plan.Launch)
    assert list(sizes)[:4] == [ctypes.sizeof(struct) for struct in mirrored]
