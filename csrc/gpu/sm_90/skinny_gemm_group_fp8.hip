// Skinny GEMM on e4m3fn by four waves together: one entry per limit of m and row tiles a wave.
#include <mi300/skinny_gemm.h>

using namespace mi300;

extern MI300_LDS U32x4 lds[];

MI300_KERNEL(max_threads(8, 1), 1)
skinny_gemm_group_fp8_m8_t1(SkinnyGemmArgs args) {
  run_wave_group<kNativeFp8, 8, 1>(args, lds);
}

MI300_KERNEL(max_threads(16, 1), 1)
skinny_gemm_group_fp8_m16_t1(SkinnyGemmArgs args) {
  run_wave_group<kNativeFp8, 16, 1>(args, lds);
}

MI300_KERNEL(max_threads(16, 2), 1)
skinny_gemm_group_fp8_m16_t2(SkinnyGemmArgs args) {
  run_wave_group<kNativeFp8, 16, 2>(args, lds);
}

MI300_KERNEL(max_threads(32, 1), 1)
skinny_gemm_group_fp8_m32_t1(SkinnyGemmArgs args) {
  run_wave_group<kNativeFp8, 32, 1>(args, lds);
}

MI300_KERNEL(max_threads(32, 2), 1)
skinny_gemm_group_fp8_m32_t2(SkinnyGemmArgs args) {
  run_wave_group<kNativeFp8, 32, 2>(args, lds);
}

MI300_KERNEL(max_threads(64, 1), 1)
skinny_gemm_group_fp8_m64_t1(SkinnyGemmArgs args) {
  run_wave_group<kNativeFp8, 64, 1>(args, lds);
}
