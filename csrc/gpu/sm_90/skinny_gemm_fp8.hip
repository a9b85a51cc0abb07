// Skinny GEMM on e4m3fn, each wave by itself: one entry per limit of m and number of row tiles.
#include <mi300/skinny_gemm.h>

using namespace mi300;

extern MI300_LDS U32x4 lds[];

MI300_KERNEL(max_threads(8, 1), 1) skinny_gemm_fp8_m8_t1(SkinnyGemmArgs args) {
  run_dense<kNativeFp8, 8, 1>(args, lds);
}

MI300_KERNEL(max_threads(8, 2), 1) skinny_gemm_fp8_m8_t2(SkinnyGemmArgs args) {
  run_dense<kNativeFp8, 8, 2>(args, lds);
}

// Any alignment of rows and any number of bytes of k, up to 64 rows.
MI300_KERNEL(max_threads(64, 1), 1) skinny_gemm_fp8_unaligned(SkinnyGemmArgs args) {
  run_unaligned<kNativeFp8, u8>(args, lds);
}
