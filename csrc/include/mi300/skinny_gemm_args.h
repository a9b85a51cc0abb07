// Arguments of the skinny GEMM kernels, one layout for device and host: out[m, n] = a[m, k] w[n, k]^T.
//
// A launch has up to three products of the same m, k and dtypes: each has its own workgroups.
#pragma once

#include <mi300/row_args.h>

namespace mi300 {

constexpr unsigned kNoTeam = 0xffffffff;

// What a product has for itself.
struct GemmSet {
  const void* weight;      // [n, k]
  const void* activation;  // [m, k]
  void* out;               // [m, n], contiguous
  const float* scale_a;    // 1 or m values, or null for 1
  const float* scale_b;    // 1 or n values, or null for 1
  const void* bias;        // [n] or null
  float* partial;          // [splits, m, n] when the splits are summed by the second kernel, else null
  long weight_stride;      // bytes from row to row
  unsigned n;              // 0 without such a product
  unsigned row_groups;     // groups of weight rows that a workgroup takes at a time
  unsigned first_team;     // team i is the workgroups [i * splits, (i + 1) * splits); kNoTeam without
  unsigned teams;          // that share the product's groups
};

// How the results, rounded to out_type, are quantised: to the native FP8 format.
struct GemmQuant {
  const float* scale;  // one value; null: they are not quantised
  float clamp_min;     // both within the format's range
  float clamp_max;
  Scaling scaling;
};

static_assert(sizeof(GemmQuant) == 24);

// The first product's set is the base, the others are in `more`. An addend and a quantisation go with
// one product.
struct SkinnyGemmArgs : GemmSet {
  const void* addend;      // [m, n] or [n], or null
  long activation_stride;  // bytes from row to row
  long addend_stride;      // elements from row to row; 0 for one row
  unsigned m;
  unsigned row_bytes;       // bytes of k
  unsigned splits;          // parts of k; part i is workgroup % splits
  unsigned split_stages;    // stages (128 bytes of k) of a part
  unsigned waves;           // of a workgroup
  unsigned k_waves;         // of these share the rows and split k; a power of two
  unsigned k_shift;         // its logarithm
  unsigned rows;            // weight rows of a group
  unsigned tile_rows;       // of a tile, at most 64 with the group form
  unsigned depth;           // stages of a ring of asynchronous copies; 0 without
  unsigned chunk;           // iterations (k_waves stages) whose activations are in LDS at a time
  unsigned quads_inverse;   // 2^32 / (weight rows of a group / 4), rounded up
  unsigned share;           // quads of results that each part of k finishes
  unsigned share_inverse;   // 2^32 / share, rounded up
  unsigned scale_a_step;    // 0 for one value, 1 for one per row
  unsigned scale_b_step;    // 0 for one value, 1 for one per column
  unsigned char out_type, bias_type, addend_type;
  unsigned char is_early;  // the first weights are copied while the kernel ahead still runs
  GemmQuant quant;
  GemmSet more[2];
};

}  // namespace mi300
