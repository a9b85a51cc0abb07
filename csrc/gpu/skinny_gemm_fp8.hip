// Skinny GEMM on FP8 in the target's own format: e4m3fnuz on gfx942, e4m3fn on sm_90: one entry per limit of m and number of row tiles a wave.
#include <mi300/skinny_gemm.h>
#include <mi300/fp8.h>

using namespace mi300;

extern MI300_LDS U32x4 lds[];

MI300_KERNEL(max_threads(8, 1), 1) skinny_gemm_fp8_m8_t1(SkinnyGemmArgs args) {
  run_dense<kNativeFp8, 8, 1>(args, lds);
}

MI300_KERNEL(max_threads(8, 2), 1) skinny_gemm_fp8_m8_t2(SkinnyGemmArgs args) {
  run_dense<kNativeFp8, 8, 2>(args, lds);
}

MI300_KERNEL(max_threads(16, 1), 1) skinny_gemm_fp8_m16_t1(SkinnyGemmArgs args) {
  run_dense<kNativeFp8, 16, 1>(args, lds);
}

MI300_KERNEL(max_threads(16, 2), 1) skinny_gemm_fp8_m16_t2(SkinnyGemmArgs args) {
  run_dense<kNativeFp8, 16, 2>(args, lds);
}

MI300_KERNEL(max_threads(32, 1), 1) skinny_gemm_fp8_m32_t1(SkinnyGemmArgs args) {
  run_dense<kNativeFp8, 32, 1>(args, lds);
}

MI300_KERNEL(max_threads(32, 2), 1) skinny_gemm_fp8_m32_t2(SkinnyGemmArgs args) {
  run_dense<kNativeFp8, 32, 2>(args, lds);
}

MI300_KERNEL(max_threads(64, 1), 1) skinny_gemm_fp8_m64_t1(SkinnyGemmArgs args) {
  run_dense<kNativeFp8, 64, 1>(args, lds);
}

// Any alignment of rows and any number of bytes of k, up to 64 rows.
MI300_KERNEL(max_threads(64, 1), 1) skinny_gemm_fp8_unaligned(SkinnyGemmArgs args) {
  run_unaligned<kNativeFp8, u8>(args, lds);
}
