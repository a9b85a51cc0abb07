// A streaming kernel for comparison: moves a fused operator's bytes and computes next to nothing.
#include <mi300/memory.h>

namespace mi300 {

struct StreamArgs {
  const void* a;   // read 16 bytes a lane
  const void* b;   // likewise, or null
  void* wide;      // written 16 bytes a lane, or null
  void* narrow;    // written 8 bytes a lane, or null
  i64 vectors;
};

MI300_KERNEL(256, 4) stream(StreamArgs args) {
  const i64 index = (i64)group_index() * 512 + thread_index();
  U32x4 values[2], others[2];
  for (u32 i = 0; i < 2; ++i) {
    const i64 at = index + i * 256;
    if (at >= args.vectors) return;
    values[i] = load<U32x4>(args.a, at);
    others[i] = args.b != nullptr ? load<U32x4>(args.b, at) : values[i];
  }
  for (u32 i = 0; i < 2; ++i) {
    const i64 at = index + i * 256;
    const U32x4 sum = values[i] + others[i];
    if (args.wide != nullptr) store<U32x4>(args.wide, at, sum);
    if (args.narrow != nullptr) store<U32x2>(args.narrow, at, U32x2{sum.x + sum.z, sum.y + sum.w});
  }
}

}  // namespace mi300
