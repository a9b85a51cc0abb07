// Skinny GEMM on bf16 whose rows no asynchronous copy takes, each wave by itself.
#include <mi300/skinny_gemm.h>

using namespace mi300;

extern MI300_LDS U32x4 lds[];

// Any alignment of rows and any number of bytes of k, up to 64 rows.
MI300_KERNEL(max_threads(64, 1), 1) skinny_gemm_bf16_unaligned(SkinnyGemmArgs args) {
  run_unaligned<Dtype::kBf16, u16>(args, lds);
}
