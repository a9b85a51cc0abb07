// Entry points of rms_norm.h for fp16: rms_norm_fp16_v<vectors a lane>_<quantisation>.
#include <mi300/rms_norm.h>

namespace mi300 {

// C linkage needs the names spelt out, which no template can do.
#define MI300_RMS_NORM(vectors)                                                                    \
  MI300_KERNEL(kMaxThreads<vectors>, kWaves<vectors>) rms_norm_fp16_v##vectors##_plain(RowArgs args) {\
    rms_norm_rows<Dtype::kF16, vectors, Quant::kNone>(args);                                       \
  }                                                                                                \
  MI300_KERNEL(kMaxThreads<vectors>, kWaves<vectors>) rms_norm_fp16_v##vectors##_static(RowArgs args) {\
    rms_norm_rows<Dtype::kF16, vectors, Quant::kStatic>(args);                                     \
  }                                                                                                \
  MI300_KERNEL(kMaxThreads<vectors>, kWaves<vectors>) rms_norm_fp16_v##vectors##_per_token(RowArgs args) {\
    rms_norm_rows<Dtype::kF16, vectors, Quant::kPerToken>(args);                                   \
  }                                                                                                \
  MI300_KERNEL(kMaxThreads<vectors>, kWaves<vectors>) rms_norm_fp16_v##vectors##_per_group(RowArgs args) {\
    rms_norm_rows<Dtype::kF16, vectors, Quant::kPerGroup>(args);                                   \
  }

MI300_RMS_NORM(1)
MI300_RMS_NORM(2)
MI300_RMS_NORM(4)

}  // namespace mi300
