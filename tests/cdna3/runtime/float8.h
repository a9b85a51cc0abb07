// FP8 as gfx942 has it: e4m3fnuz ("fp8", bias 8) and e5m2fnuz ("bf8", bias 16). One zero, one NaN
// (0x80), no infinity. Conversion rounds to nearest even; beyond the maximum it gives NaN, as the
// hardware does while MODE.FP16_OVFL is 0.
#pragma once
#include "operands.h"

static float float8_value(u8 code, int mantissa_bits) {
  int exponent_bits = 7 - mantissa_bits, bias = 1 << (exponent_bits - 1);
  if (code == 0x80) return NAN;
  int exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1);
  int mantissa = code & ((1 << mantissa_bits) - 1);
  float magnitude = exponent ? ldexpf((float)(mantissa | 1 << mantissa_bits), exponent - bias - mantissa_bits)
                             : ldexpf((float)mantissa, 1 - bias - mantissa_bits);
  return code & 0x80 ? -magnitude : magnitude;
}

static u8 float8_code(float x, int mantissa_bits) {
  int exponent_bits = 7 - mantissa_bits, bias = 1 << (exponent_bits - 1);
  if (isnan(x) || isinf(x)) return 0x80;
  if (x == 0) return 0;
  int exponent;
  frexpf(x, &exponent), exponent--;
  if (exponent < 1 - bias) exponent = 1 - bias;
  // The spacing of codes at this exponent; nearbyint rounds to nearest even.
  float steps = nearbyintf(ldexpf(fabsf(x), mantissa_bits - exponent));
  int code = (int)steps + ((exponent + bias - 1) << mantissa_bits);
  if (code > 0x7f) return 0x80;
  return code ? (u8)(code | (signbit(x) ? 0x80 : 0)) : 0;
}

static float g_float8[2][256];  // [0]: e4m3fnuz, [1]: e5m2fnuz
static void fill_float8(void) {
  for (int code = 0; code < 256; code++) {
    g_float8[0][code] = float8_value((u8)code, 3);
    g_float8[1][code] = float8_value((u8)code, 2);
  }
}
// Two floats to two codes in the low or (op_sel) high half of the destination, which keeps the rest.
static void convert_pk_float8(Wave *w, const Instruction *i) {
  u32 a_buffer[kLanes], b_buffer[kLanes], value[kLanes];
  const u32 *a = source(w, i, 1, a_buffer, 32, 1), *b = source(w, i, 2, b_buffer, 32, 1);
  int mantissa = i->immediate ? 2 : 3, high = i->op_sel >> 2 & 1;
  if (i->flags & kClamp) fault(w, kUnsupported, 0, 0, i->o[0].reg, 0);
  for (int l = 0; l < kLanes; l++) {
    u32 pair = float8_code(as_f32(a[l]), mantissa) | (u32)float8_code(as_f32(b[l]), mantissa) << 8;
    u32 old = w->v[i->o[0].reg][l];
    value[l] = high ? (old & 0xffff) | pair << 16 : (old & 0xffff0000u) | pair;
  }
  put_lanes(w, i->o[0].reg, value, exec_of(w), high ? kHighHalf : kLowHalf);
}
static void convert_from_float8(Wave *w, const Instruction *i) {
  u32 buffer[kLanes], value[kLanes];
  Instruction plain = *i;
  if (plain.o[1].select == kDword) plain.o[1].select = kByte0;
  const u32 *a = source(w, &plain, 1, buffer, 32, 0);
  for (int l = 0; l < kLanes; l++) value[l] = from_f32(g_float8[i->immediate][a[l] & 0xff]);
  put(w, &plain, 0, value, 32, 1);
}
static void convert_pk_from_float8(Wave *w, const Instruction *i) {
  u32 buffer[kLanes];
  u64 value[kLanes];
  Instruction plain = *i;
  if (plain.o[1].select == kDword) plain.o[1].select = i->op_sel & 1 ? kWord1 : kWord0;
  const u32 *a = source(w, &plain, 1, buffer, 32, 0);
  for (int l = 0; l < kLanes; l++) {
    u32 low = from_f32(g_float8[i->immediate][a[l] & 0xff]);
    value[l] = (u64)from_f32(g_float8[i->immediate][a[l] >> 8 & 0xff]) << 32 | low;
  }
  put64(w, i, 0, value);
}
