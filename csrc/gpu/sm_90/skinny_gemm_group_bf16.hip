// Skinny GEMM on bf16 by four waves together: one entry per limit of m.
#include <mi300/skinny_gemm.h>

using namespace mi300;

alignas(1024) extern MI300_LDS U32x4 lds[];  // the swizzle repeats every 1024 bytes

MI300_KERNEL(max_threads(8, 1), 1)
skinny_gemm_group_bf16_m8_t1(SkinnyGemmArgs args) {
  run_wave_group<Dtype::kBf16, 8, 1>(args, lds);
}

MI300_KERNEL(max_threads(16, 1), 1)
skinny_gemm_group_bf16_m16_t1(SkinnyGemmArgs args) {
  run_wave_group<Dtype::kBf16, 16, 1>(args, lds);
}

MI300_KERNEL(max_threads(32, 1), 1)
skinny_gemm_group_bf16_m32_t1(SkinnyGemmArgs args) {
  run_wave_group<Dtype::kBf16, 32, 1>(args, lds);
}

MI300_KERNEL(max_threads(64, 1), 1)
skinny_gemm_group_bf16_m64_t1(SkinnyGemmArgs args) {
  run_wave_group<Dtype::kBf16, 64, 1>(args, lds);
}
