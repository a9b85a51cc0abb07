// Skinny GEMM on e4m3fnuz with waves of two kinds: one loads weights into a ring of LDS, its partner
// multiplies. Kept for comparison with the dense form, which loads and multiplies in one wave.
#include <mi300/weight_ring.h>

using namespace mi300;

extern MI300_LDS U32x4 lds[];

MI300_KERNEL(kRingThreads, 1) skinny_gemm_ring_fp8_m8_t1(SkinnyGemmArgs args) {
  run_ring<1>(args, lds);
}

MI300_KERNEL(kRingThreads, 1) skinny_gemm_ring_fp8_m16_t1(SkinnyGemmArgs args) {
  run_ring<1>(args, lds);
}
