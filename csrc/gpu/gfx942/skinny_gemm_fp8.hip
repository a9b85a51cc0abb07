// Skinny GEMM on e4m3fnuz, each wave by itself: one entry per limit of m and number of row tiles.
#include <mi300/skinny_gemm.h>

using namespace mi300;

extern MI300_LDS U32x4 lds[];

MI300_KERNEL(max_threads(16, 1), 1) skinny_gemm_fp8_m16_t1(SkinnyGemmArgs args) {
  run_dense<kNativeFp8, 16, 1>(args, lds);
}

MI300_KERNEL(max_threads(32, 1), 1) skinny_gemm_fp8_m32_t1(SkinnyGemmArgs args) {
  run_dense<kNativeFp8, 32, 1>(args, lds);
}

MI300_KERNEL(max_threads(64, 1), 1) skinny_gemm_fp8_m64_t1(SkinnyGemmArgs args) {
  run_dense<kNativeFp8, 64, 1>(args, lds);
}

// Any alignment of rows and any number of bytes of k, up to 64 rows.
MI300_KERNEL(max_threads(64, 1), 1) skinny_gemm_fp8_unaligned(SkinnyGemmArgs args) {
  run_unaligned<kNativeFp8, u8>(args, lds);
}
