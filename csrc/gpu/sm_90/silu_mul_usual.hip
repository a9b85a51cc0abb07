// Entry points of silu_mul_usual.h: silu_mul_<dtype>_usual_w<words a lane>_<quantisation>, per token
// silu_mul_<dtype>_usual_v<vectors a lane>_per_token, and with a row over a cluster of workgroups
// silu_mul_<dtype>_usual_shared_v1_per_token.
#include <mi300/silu_mul_usual.h>

namespace mi300 {

// C linkage needs the names spelt out, which no template can do.
#define MI300_USUAL_SILU(name, type, words)                                            \
  MI300_KERNEL(512, 4) silu_mul_##name##_usual_w##words##_plain(RowArgs args) {        \
    silu_mul_usual<type, words, Quant::kNone>(args);                                   \
  }                                                                                    \
  MI300_KERNEL(512, 4) silu_mul_##name##_usual_w##words##_static(RowArgs args) {       \
    silu_mul_usual<type, words, Quant::kStatic>(args);                                 \
  }                                                                                    \
  MI300_KERNEL(512, 4) silu_mul_##name##_usual_w##words##_per_group(RowArgs args) {    \
    silu_mul_usual<type, words, Quant::kPerGroup>(args);                               \
  }
#define MI300_SHARED_SILU(name, type)                                                  \
  MI300_KERNEL(1024, 8) silu_mul_##name##_usual_shared_v1_per_token(RowArgs args) {    \
    silu_mul_usual_shared<type>(args);                                                 \
  }
// Registers for as many full workgroups a multiprocessor as `groups`.
#define MI300_SILU_ROW(name, type, vectors, groups)                                                \
  MI300_KERNEL_GROUPS(512, 4, groups) silu_mul_##name##_usual_v##vectors##_per_token(RowArgs args) { \
    silu_mul_usual_row<type, vectors>(args);                                                       \
  }
#define MI300_SILU(name, type)     \
  MI300_USUAL_SILU(name, type, 2)  \
  MI300_USUAL_SILU(name, type, 4)  \
  MI300_SHARED_SILU(name, type)    \
  MI300_SILU_ROW(name, type, 1, 4) \
  MI300_SILU_ROW(name, type, 2, 3) \
  MI300_SILU_ROW(name, type, 4, 2)

MI300_SILU(bf16, Dtype::kBf16)
MI300_SILU(fp16, Dtype::kF16)

}  // namespace mi300
