// Skinny GEMM on e4m3fnuz, up to 8 rows: the activations as 4:2 sparse rows, half the matrix cycles.
#include <mi300/skinny_gemm.h>

using namespace mi300;

extern MI300_LDS U32x4 lds[];

MI300_KERNEL(max_threads(8, 1), 1) skinny_gemm_sparse_fp8_m8_t1(SkinnyGemmArgs args) {
  run_sparse<1>(args, lds);
}
