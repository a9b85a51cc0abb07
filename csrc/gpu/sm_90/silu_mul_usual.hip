// Entry points of silu_mul_usual.h: silu_mul_<dtype>_usual_w<words a lane>_<quantisation>.
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
  MI300_KERNEL(1024, 8) silu_mul_##name##_usual_w4_per_token(RowArgs args) {           \
    silu_mul_usual_per_token<type, 4>(args);                                           \
  }

MI300_USUAL_SILU(bf16, Dtype::kBf16, 2)
MI300_USUAL_SILU(bf16, Dtype::kBf16, 4)
MI300_USUAL_SILU(fp16, Dtype::kF16, 2)
MI300_USUAL_SILU(fp16, Dtype::kF16, 4)
MI300_SHARED_SILU(bf16, Dtype::kBf16)
MI300_SHARED_SILU(fp16, Dtype::kF16)

}  // namespace mi300
