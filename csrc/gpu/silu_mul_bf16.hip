// Entry points of silu_mul.h for bf16: silu_mul_bf16_v<vectors a lane>_<quantisation>.
#include <mi300/silu_mul.h>

namespace mi300 {

// C linkage needs the names spelt out, which no template can do.
#define MI300_SILU_FLAT(vectors)                                                                   \
  MI300_KERNEL(256, 4) silu_mul_bf16_v##vectors##_static(RowArgs args) {                           \
    silu_mul_flat<Dtype::kBf16, vectors, Quant::kStatic>(args);                                    \
  }                                                                                                \
  MI300_KERNEL(256, 4) silu_mul_bf16_v##vectors##_per_group(RowArgs args) {                        \
    silu_mul_flat<Dtype::kBf16, vectors, Quant::kPerGroup>(args);                                  \
  }
#define MI300_SILU_ROW(vectors)                                                                    \
  MI300_KERNEL(kMaxThreads<vectors>, 4) silu_mul_bf16_v##vectors##_per_token(RowArgs args) {       \
    silu_mul_per_token<Dtype::kBf16, vectors>(args);                                               \
  }

MI300_SILU_FLAT(1)
MI300_SILU_FLAT(2)
MI300_SILU_ROW(1)
MI300_SILU_ROW(2)
MI300_SILU_ROW(4)
MI300_SILU_ROW(8)

}  // namespace mi300
