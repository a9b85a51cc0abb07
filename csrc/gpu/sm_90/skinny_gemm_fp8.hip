// Skinny GEMM on e4m3fn whose rows no asynchronous copy takes, each wave by itself.
#include <mi300/skinny_gemm.h>

using namespace mi300;

extern MI300_LDS U32x4 lds[];

// Any alignment of rows and any number of bytes of k, up to 64 rows.
MI300_KERNEL(max_threads(64, 1), 1) skinny_gemm_fp8_unaligned(SkinnyGemmArgs args) {
  run_unaligned<kNativeFp8, u8>(args, lds);
}
