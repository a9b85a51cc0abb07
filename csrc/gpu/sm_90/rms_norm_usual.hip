// Entry points of rms_norm_usual.h, one workgroup a row:
// rms_norm_<dtype>_usual_v<vectors a lane>_<quantisation>.
#include <mi300/rms_norm_usual.h>

namespace mi300 {

// C linkage needs the names spelt out, which no template can do. Two full workgroups share a
// multiprocessor where registers allow: one loads its row while the other reduces.
#define MI300_USUAL_NORM(name, type, vectors, groups)                                              \
  MI300_KERNEL_GROUPS(512, 4, groups) rms_norm_##name##_usual_v##vectors##_plain(RowArgs args) {   \
    rms_norm_usual<type, vectors, Quant::kNone, false>(args);                                      \
  }                                                                                                \
  MI300_KERNEL_GROUPS(512, 4, groups) rms_norm_##name##_usual_v##vectors##_static(RowArgs args) {  \
    rms_norm_usual<type, vectors, Quant::kStatic, false>(args);                                    \
  }                                                                                                \
  MI300_KERNEL_GROUPS(512, 4, groups) rms_norm_##name##_usual_v##vectors##_per_token(RowArgs args) { \
    rms_norm_usual<type, vectors, Quant::kPerToken, false>(args);                                  \
  }                                                                                                \
  MI300_KERNEL_GROUPS(512, 4, groups) rms_norm_##name##_usual_v##vectors##_per_group(RowArgs args) { \
    rms_norm_usual<type, vectors, Quant::kPerGroup, false>(args);                                  \
  }

MI300_USUAL_NORM(bf16, Dtype::kBf16, 1, 2)
MI300_USUAL_NORM(bf16, Dtype::kBf16, 2, 2)
MI300_USUAL_NORM(bf16, Dtype::kBf16, 4, 2)
MI300_USUAL_NORM(fp16, Dtype::kF16, 1, 2)
MI300_USUAL_NORM(fp16, Dtype::kF16, 2, 2)
MI300_USUAL_NORM(fp16, Dtype::kF16, 4, 2)

}  // namespace mi300
