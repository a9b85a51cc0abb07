// Small FP8 matmuls: dense 16x16x32 and 32x32x16, and 8 dense rows as 16 sparse ones (16x16x64).
#include "common.h"

// out[16, n] = scale * a[16, k] w[n, k]^T; one wave per 16 columns; w feeds the row side.
KERNEL(64) dense16(const long* __restrict__ a, const long* __restrict__ w, float* __restrict__ out,
                   u32 n, u32 k, float scale) {
  const u32 i = thread() % 16, part = thread() / 16, first = group() * 16;
  Float4 sum = {};
  for (u32 at = 0; at < k; at += 32) {
    const u32 offset = (at + part * 8) / 8;
    long left = first + i < n ? w[(first + i) * (k / 8) + offset] : 0;
    sum = __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(left, a[i * (k / 8) + offset], sum, 0, 0, 0);
  }
  for (u32 r = 0; r < 4; ++r) {
    const u32 column = first + part * 4 + r;
    if (column < n) out[i * n + column] = sum[r] * scale;
  }
}

KERNEL(64) dense32(const long* __restrict__ a, const long* __restrict__ w, float* __restrict__ out,
                   u32 n, u32 k, float scale) {
  const u32 i = thread() % 32, part = thread() / 32, first = group() * 32;
  Float16 sum = {};
  for (u32 at = 0; at < k; at += 16) {
    const u32 offset = (at + part * 8) / 8;
    long left = w[(first + i) * (k / 8) + offset];
    sum = __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8(left, a[i * (k / 8) + offset], sum, 0, 0, 0);
  }
  for (u32 r = 0; r < 16; ++r) out[i * n + first + r / 4 * 8 + part * 4 + r % 4] = sum[r] * scale;
}

// out[8, n]: dense row m is fed as sparse rows 2m (positions 0, 1 of each four) and 2m + 1 (2, 3).
KERNEL(64) sparse8(const unsigned short* __restrict__ a, const Int4* __restrict__ w,
                   float* __restrict__ out, u32 n, u32 k, float scale) {
  const u32 i = thread() % 16, part = thread() / 16, first = group() * 16;
  const int index = i % 2 ? 0xEEEE : 0x4444;
  Float4 sum = {};
  for (u32 at = 0; at < k; at += 64) {
    const u32 from = (i / 2) * (k / 2) + (at + part * 16) / 2 + i % 2;
    Int2 left = {a[from] | a[from + 2] << 16, a[from + 4] | a[from + 6] << 16};
    Int4 right = w[((first + i) * k + at + part * 16) / 16];
    sum = __builtin_amdgcn_smfmac_f32_16x16x64_fp8_fp8(left, right, sum, index, 0, 0);
  }
  out[(part * 2) * n + first + i] = (sum.x + sum.y) * scale;
  out[(part * 2 + 1) * n + first + i] = (sum.z + sum.w) * scale;
}
