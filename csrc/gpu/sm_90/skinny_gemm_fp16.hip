// Skinny GEMM on fp16, each wave by itself: one entry per limit of m and number of row tiles.
#include <mi300/skinny_gemm.h>

using namespace mi300;

extern MI300_LDS U32x4 lds[];

MI300_KERNEL(max_threads(8, 1), 1) skinny_gemm_fp16_m8_t1(SkinnyGemmArgs args) {
  run_dense<Dtype::kF16, 8, 1>(args, lds);
}

MI300_KERNEL(max_threads(8, 2), 1) skinny_gemm_fp16_m8_t2(SkinnyGemmArgs args) {
  run_dense<Dtype::kF16, 8, 2>(args, lds);
}

// Any alignment of rows and any number of bytes of k, up to 64 rows.
MI300_KERNEL(max_threads(64, 1), 1) skinny_gemm_fp16_unaligned(SkinnyGemmArgs args) {
  run_unaligned<Dtype::kF16, u16>(args, lds);
}
