// Arguments of the skinny GEMM kernels, one layout for device and host: out[m, n] = a[m, k] w[n, k]^T.
#pragma once

namespace mi300 {

struct SkinnyGemmArgs {
  const void* weight;      // [n, k]
  const void* activation;  // [m, k]
  void* out;               // [m, n], contiguous
  const float* scale_a;    // 1 or m values, or null for 1
  const float* scale_b;    // 1 or n values, or null for 1
  const void* bias;        // [n] or null
  const void* addend;      // [m, n] or [n], or null
  float* partial;          // [splits, m, n] when the splits are summed by the second kernel, else null
  long weight_stride;      // bytes from row to row
  long activation_stride;  // bytes from row to row
  long addend_stride;      // elements from row to row; 0 for one row
  unsigned n, m;
  unsigned row_bytes;       // bytes of k
  unsigned row_groups;      // groups of weight rows that a workgroup takes at a time
  unsigned splits;          // parts of k; part i is workgroup % splits
  unsigned split_stages;    // stages (128 bytes of k) of a part
  unsigned waves;           // of a workgroup
  unsigned k_waves;         // of these share the rows and split k
  unsigned chunk;           // iterations (k_waves stages) whose activations are in LDS at a time
  unsigned groups_in_grid;  // workgroups / splits
  unsigned quads_inverse;   // 2^32 / (weight rows of a group / 4), rounded up
  unsigned share;           // quads of results that each part of k finishes
  unsigned share_inverse;   // 2^32 / share, rounded up
  unsigned scale_a_step;    // 0 for one value, 1 for one per row
  unsigned scale_b_step;    // 0 for one value, 1 for one per column
  unsigned char out_type, bias_type, addend_type;
  unsigned char is_prefetched;  // the first weights go to the L2 while the kernel ahead still runs
};

}  // namespace mi300
