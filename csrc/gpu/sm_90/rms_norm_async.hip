// Entry points of rms_norm.h for many rows: rms_norm_<dtype>_async_<quantisation>.
//
// A ring of three rows in LDS, filled by copies that need no registers, keeps the memory busy while a
// row is reduced. A lane owns two vectors of the row. Dynamic LDS: kStages rows of every input.
#include <mi300/rms_norm.h>

namespace mi300 {

constexpr u32 kRingStages = 3;

template <Dtype kType, Quant kQuant>
MI300_DEVICE void rms_norm_async(const RowArgs& args) {
  extern MI300_LDS U32x4 ring[];
  rms_norm_rows<kType, 2, kQuant, kRingStages>(args, ring);
}

// C linkage needs the names spelt out, which no template can do.
#define MI300_RMS_NORM_ASYNC(name, type)                             \
  MI300_KERNEL(1024, 8) rms_norm_##name##_async_plain(RowArgs args) {    \
    rms_norm_async<type, Quant::kNone>(args);                            \
  }                                                                      \
  MI300_KERNEL(1024, 8) rms_norm_##name##_async_static(RowArgs args) {   \
    rms_norm_async<type, Quant::kStatic>(args);                          \
  }                                                                      \
  MI300_KERNEL(1024, 8) rms_norm_##name##_async_per_token(RowArgs args) { \
    rms_norm_async<type, Quant::kPerToken>(args);                        \
  }                                                                      \
  MI300_KERNEL(1024, 8) rms_norm_##name##_async_per_group(RowArgs args) { \
    rms_norm_async<type, Quant::kPerGroup>(args);                        \
  }

MI300_RMS_NORM_ASYNC(bf16, Dtype::kBf16)
MI300_RMS_NORM_ASYNC(fp16, Dtype::kF16)

}  // namespace mi300
