// RMS norm of fp32 rows with conversion to e4m3fnuz: DPP reduction, LDS across waves, clamp.
#include "common.h"

template <int kControl, int kRows>
DEVICE float moved(float x) {
  int bits = __builtin_bit_cast(int, x);
  return __builtin_bit_cast(float, __builtin_amdgcn_update_dpp(0, bits, kControl, kRows, 0xf, false));
}

DEVICE float wave_sum(float x) {
  x += moved<0x111, 0xf>(x);
  x += moved<0x112, 0xf>(x);
  x += moved<0x114, 0xf>(x);
  x += moved<0x118, 0xf>(x);
  x += moved<0x142, 0xa>(x);
  x += moved<0x143, 0xc>(x);
  return __builtin_bit_cast(float, __builtin_amdgcn_readlane(__builtin_bit_cast(int, x), 63));
}

KERNEL(256) norm(const float* __restrict__ x, u32* __restrict__ q, u32 hidden, u32 rows,
                 float eps, float inverse_scale) {
  SHARED static float partial[4];
  const u32 per_row = hidden / 4;
  for (u32 row = group(); row < rows; row += 2) {
    const Float4* in = (const Float4*)(x + row * hidden);
    float sum = 0;
    for (u32 i = thread(); i < per_row; i += 256) {
      Float4 v = in[i];
      sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
    }
    sum = wave_sum(sum);
    barrier();  // the last row's partial sums have been read
    if (thread() % 64 == 0) partial[thread() / 64] = sum;
    barrier();  // this row's partial sums are there
    sum = partial[0] + partial[1] + partial[2] + partial[3];
    const float factor = 1.0f / __builtin_sqrtf(sum / hidden + eps) * inverse_scale;
    for (u32 i = thread(); i < per_row; i += 256) {
      Float4 v = in[i] * factor;
      for (int k = 0; k < 4; ++k) v[k] = __builtin_fminf(__builtin_fmaxf(v[k], -240.0f), 240.0f);
      int packed = __builtin_amdgcn_cvt_pk_fp8_f32(v.x, v.y, 0, false);
      q[row * per_row + i] = __builtin_amdgcn_cvt_pk_fp8_f32(v.z, v.w, packed, true);
    }
  }
}
