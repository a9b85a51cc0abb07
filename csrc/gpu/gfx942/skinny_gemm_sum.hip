// Second kernel of a skinny GEMM that was split over k: sums the parts in order and writes the results.
#include <mi300/skinny_gemm.h>

using namespace mi300;

MI300_KERNEL(256, 8) skinny_gemm_sum(SkinnyGemmArgs args) {
  sum_parts(args, group_index() * 256 + thread_index());
}
