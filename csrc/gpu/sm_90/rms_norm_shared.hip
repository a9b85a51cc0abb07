// Entry points of rms_norm_usual.h, a row over a cluster of workgroups:
// rms_norm_<dtype>_usual_shared_v<vectors a lane>_<quantisation>.
#include <mi300/rms_norm_usual.h>

namespace mi300 {

// C linkage needs the names spelt out, which no template can do.
#define MI300_SHARED_NORM(name, type, vectors)                                             \
  MI300_KERNEL(512, 4) rms_norm_##name##_usual_shared_v##vectors##_plain(RowArgs args) {   \
    rms_norm_usual<type, vectors, Quant::kNone, true>(args);                               \
  }                                                                                        \
  MI300_KERNEL(512, 4) rms_norm_##name##_usual_shared_v##vectors##_static(RowArgs args) {  \
    rms_norm_usual<type, vectors, Quant::kStatic, true>(args);                             \
  }                                                                                        \
  MI300_KERNEL(512, 4) rms_norm_##name##_usual_shared_v##vectors##_per_token(RowArgs args) { \
    rms_norm_usual<type, vectors, Quant::kPerToken, true>(args);                           \
  }                                                                                        \
  MI300_KERNEL(512, 4) rms_norm_##name##_usual_shared_v##vectors##_per_group(RowArgs args) { \
    rms_norm_usual<type, vectors, Quant::kPerGroup, true>(args);                           \
  }

MI300_SHARED_NORM(bf16, Dtype::kBf16, 1)
MI300_SHARED_NORM(bf16, Dtype::kBf16, 2)
MI300_SHARED_NORM(bf16, Dtype::kBf16, 4)
MI300_SHARED_NORM(fp16, Dtype::kF16, 1)
MI300_SHARED_NORM(fp16, Dtype::kF16, 2)
MI300_SHARED_NORM(fp16, Dtype::kF16, 4)

}  // namespace mi300
