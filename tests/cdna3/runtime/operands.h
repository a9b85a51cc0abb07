// Reading and writing operands: registers with their checks, constants, modifiers, SDWA and DPP.
#pragma once
#include "dpp.h"

enum { kLowHalf = 1, kHighHalf = 2, kBothHalves = 3 };

static inline void check_waits(Wave *w, unsigned reg) {
  if (w->vm_wait[reg] > w->vm_done) fault(w, kWaitVm, 0, 0, reg, 0);
  if (w->lgkm_wait[reg] > w->lgkm_done) fault(w, kWaitLgkm, 0, 0, reg, 0);
}

static inline void check_vector_read(Wave *w, unsigned reg, u64 lanes, unsigned halves) {
  check_waits(w, reg);
  u64 written = (halves & kLowHalf ? w->low[reg] : kAllLanes) &
                (halves & kHighHalf ? w->high[reg] : kAllLanes);
  if (lanes & ~written) fault(w, kUninitializedVgpr, first_lane(lanes & ~written), 0, reg, 0);
}

static inline void check_sgpr_wait(Wave *w, unsigned reg) {
  if (w->s_wait[reg] > w->lgkm_done) fault(w, kWaitLgkm, 0, 0, reg + 1024, 0);
}
static inline u32 read_sgpr(Wave *w, unsigned reg) {
  check_sgpr_wait(w, reg);
  if (w->s_undefined[reg]) fault(w, kUninitializedSgpr, 0, 0, reg + 1024, 0);
  return w->s[reg];
}
static inline void write_sgpr(Wave *w, unsigned reg, u32 value) {
  check_sgpr_wait(w, reg);
  w->s[reg] = value, w->s_undefined[reg] = 0;
}

static inline u64 scalar64(Wave *w, const Instruction *i, int k) {
  const Operand *o = &i->o[k];
  if (o->kind == kConstant) return (u64)o->hi << 32 | o->lo;
  return (u64)read_sgpr(w, o->reg + 1u) << 32 | read_sgpr(w, o->reg);
}
static inline u32 scalar32(Wave *w, const Instruction *i, int k) {
  const Operand *o = &i->o[k];
  return o->kind == kConstant ? o->lo : read_sgpr(w, o->reg);
}
static inline void put_scalar32(Wave *w, const Instruction *i, int k, u32 value) {
  write_sgpr(w, i->o[k].reg, value);
}
static inline void put_scalar64(Wave *w, const Instruction *i, int k, u64 value) {
  write_sgpr(w, i->o[k].reg, (u32)value);
  write_sgpr(w, i->o[k].reg + 1u, (u32)(value >> 32));
}

static inline u32 select_part(u32 x, unsigned select, int is_signed) {
  if (select == kDword) return x;
  unsigned bits = select >= kWord0 ? 16 : 8;
  unsigned shift = select >= kWord0 ? 16 * (select - kWord0) : 8 * select;
  u32 part = x >> shift & ((1u << bits) - 1);
  return is_signed ? (u32)((i32)(part << (32 - bits)) >> (32 - bits)) : part;
}
static inline unsigned halves_read(unsigned select) {
  return select == kDword ? kBothHalves : select == kWord1 || select == kByte2 || select == kByte3
      ? kHighHalf : kLowHalf;
}

static __attribute__((noinline)) const u32 *modified(Wave *w, const Instruction *i, int k,
                                                     u32 *out, unsigned bits, int is_float) {
  const Operand *o = &i->o[k];
  int high = bits == 16 && i->op_sel >> (k - i->destinations) & 1;
  u32 sign = is_float ? 1u << (bits - 1) : 0;
  int is_dpp = i->flags & kDpp && k == i->destinations;
  u64 exec = exec_of(w);
  const u32 *from = w->v[o->reg];
  if (o->kind == kVector && !is_dpp) {
    unsigned halves = bits == 16 && o->select == kDword ? (high ? kHighHalf : kLowHalf)
                                                        : halves_read(o->select);
    check_vector_read(w, o->reg, exec, halves);
  }
  u32 scalar = o->kind == kVector ? 0 : scalar32(w, i, k);
  for (int l = 0; l < kLanes; l++) {
    u32 x = scalar;
    if (is_dpp) {
      int source = dpp_source(i->dpp_ctrl, l);
      if (source == -2) fault(w, kUnsupported, l, i->dpp_ctrl, o->reg, 0);
      int valid = source >= 0 && exec >> source & 1;
      if (valid && exec >> l & 1) check_vector_read(w, o->reg, (u64)1 << source, kBothHalves);
      x = valid ? from[source] : 0;
    } else if (o->kind == kVector) {
      x = from[l];
    }
    x = select_part(x, o->select, o->modifiers & kSext);
    if (high) x >>= 16;
    if (o->modifiers & kAbs) x &= ~sign;
    if (o->modifiers & kNeg) x ^= sign;
    out[l] = x;
  }
  return out;
}

// A source operand of up to 32 bits as 64 lanes: points at the register itself when it can.
static inline const u32 *source(Wave *w, const Instruction *i, int k, u32 *out, unsigned bits,
                                int is_float) {
  const Operand *o = &i->o[k];
  int special = o->modifiers || o->select != kDword || (i->flags & kDpp && k == i->destinations) ||
                (bits == 16 && i->op_sel >> (k - i->destinations) & 1);
  if (special) return modified(w, i, k, out, bits, is_float);
  if (o->kind == kVector) {
    check_vector_read(w, o->reg, exec_of(w), bits == 16 ? kLowHalf : kBothHalves);
    return w->v[o->reg];
  }
  u32 x = scalar32(w, i, k);
  for (int l = 0; l < kLanes; l++) out[l] = x;
  return out;
}

// Lanes of `lanes` in which a register was never written; its pending loads are checked.
static u64 unwritten(Wave *w, unsigned reg, u64 lanes) {
  check_waits(w, reg);
  return lanes & ~(w->low[reg] & w->high[reg]);
}

// `low_only`: the low dword of the result depends on low dwords alone. Compilers leave the high one
// undefined when they need 32 bits of such a result, and so does the executor.
static const u64 *source64(Wave *w, const Instruction *i, int k, u64 *out, int is_float,
                           int low_only) {
  const Operand *o = &i->o[k];
  u64 abs_mask = is_float && o->modifiers & kAbs ? ~((u64)1 << 63) : kAllLanes;
  u64 flip = is_float && o->modifiers & kNeg ? (u64)1 << 63 : 0;
  if (o->kind == kVector) {
    check_vector_read(w, o->reg, exec_of(w), kBothHalves);
    if (low_only) w->undefined[1] |= unwritten(w, o->reg + 1u, exec_of(w));
    else check_vector_read(w, o->reg + 1u, exec_of(w), kBothHalves);
    const u32 *lo = w->v[o->reg], *hi = w->v[o->reg + 1];
    for (int l = 0; l < kLanes; l++) out[l] = (((u64)hi[l] << 32 | lo[l]) & abs_mask) ^ flip;
  } else {
    u64 x = (scalar64(w, i, k) & abs_mask) ^ flip;
    for (int l = 0; l < kLanes; l++) out[l] = x;
  }
  return out;
}

// One operand of a packed fp32 instruction: op_sel picks the dword of the low result, op_sel_hi
// that of the high one.
static void source_packed32(Wave *w, const Instruction *i, int k, u32 (*out)[kLanes]) {
  const Operand *o = &i->o[k];
  for (int half = 0; half < 2; half++) {
    unsigned bit = k - i->destinations;
    unsigned pick = (half ? i->op_sel_hi : i->op_sel) >> bit & 1;
    u32 flip = ((half ? i->neg_hi : i->neg_lo) >> bit & 1) ? 1u << 31 : 0;
    if (o->kind == kVector) w->undefined[half] |= unwritten(w, o->reg + pick, exec_of(w));
    u32 scalar = o->kind == kScalar ? read_sgpr(w, o->reg + pick) : o->lo;
    for (int l = 0; l < kLanes; l++)
      out[half][l] = (o->kind == kVector ? w->v[o->reg + pick][l] : scalar) ^ flip;
  }
}

// One operand of a packed 16-bit instruction, as low | high << 16 after op_sel and neg.
static const u32 *source_packed16(Wave *w, const Instruction *i, int k, u32 *out, int is_float) {
  const Operand *o = &i->o[k];
  unsigned bit = k - i->destinations;
  unsigned lo = i->op_sel >> bit & 1, hi = i->op_sel_hi >> bit & 1;
  u32 flip = is_float ? (i->neg_lo >> bit & 1) << 15 | (u32)(i->neg_hi >> bit & 1) << 31 : 0;
  if (o->kind == kVector) {
    check_waits(w, o->reg);
    w->undefined[0] |= exec_of(w) & ~(lo ? w->high : w->low)[o->reg];
    w->undefined[1] |= exec_of(w) & ~(hi ? w->high : w->low)[o->reg];
  }
  u32 scalar = o->kind == kVector ? 0 : scalar32(w, i, k);
  for (int l = 0; l < kLanes; l++) {
    u32 x = o->kind == kVector ? w->v[o->reg][l] : scalar;
    out[l] = ((x >> 16 * lo & 0xffff) | (x >> 16 * hi) << 16) ^ flip;
  }
  return out;
}

// Writes the lanes of `lanes`; `halves` says which halves become initialised.
static inline void put_lanes(Wave *w, unsigned reg, const u32 *value, u64 lanes, unsigned halves) {
  check_waits(w, reg);
  u32 *to = w->v[reg];
  if (lanes == kAllLanes) {
    memcpy(to, value, sizeof w->v[0]);
  } else {
    for (int l = 0; l < kLanes; l++) to[l] = lanes >> l & 1 ? value[l] : to[l];
  }
  if (halves & kLowHalf) w->low[reg] |= lanes;
  if (halves & kHighHalf) w->high[reg] |= lanes;
}

// Half `part` of a two-part result: lanes without a value stay uninitialised.
static void put_defined(Wave *w, unsigned reg, const u32 *value, unsigned halves, int part) {
  u64 undefined = w->undefined[part] & exec_of(w);
  put_lanes(w, reg, value, exec_of(w), halves);
  if (halves & kLowHalf) w->low[reg] &= ~undefined;
  if (halves & kHighHalf) w->high[reg] &= ~undefined;
  w->undefined[part] = 0;
}

static float clamp_omod(const Instruction *i, float x) {
  if (i->omod) x *= i->omod == 1 ? 2.0f : i->omod == 2 ? 4.0f : 0.5f;
  if (i->flags & kClamp) x = x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f;  // DX10_CLAMP: NaN gives 0
  return x;
}
static inline float as_f32(u32 x) { float f; memcpy(&f, &x, 4); return f; }
static inline u32 from_f32(float f) { u32 x; memcpy(&x, &f, 4); return x; }
static inline f16 as_f16(u32 x) { u16 h = (u16)x; f16 f; memcpy(&f, &h, 2); return f; }
static inline u32 from_f16(f16 f) { u16 h; memcpy(&h, &f, 2); return h; }
static inline double as_f64(u64 x) { double f; memcpy(&f, &x, 8); return f; }
static inline u64 from_f64(double f) { u64 x; memcpy(&x, &f, 8); return x; }

static __attribute__((noinline)) void put_special(Wave *w, const Instruction *i, int k, u32 *value,
                                                  unsigned bits, int is_float) {
  u64 lanes = i->flags & kDpp ? dpp_lanes(w, i) : exec_of(w);
  unsigned reg = i->o[k].reg, halves = kBothHalves;
  for (int l = 0; l < kLanes && is_float && (i->flags & kClamp || i->omod); l++)
    value[l] = bits == 16 ? from_f16((f16)clamp_omod(i, (float)as_f16(value[l])))
                          : from_f32(clamp_omod(i, as_f32(value[l])));
  if (!is_float && i->flags & kClamp) fault(w, kUnsupported, 0, 0, reg, 0);
  unsigned select = i->flags & kSdwa ? i->dst_select : kDword;
  if (bits == 16 && i->op_sel >> (i->operands - i->destinations) & 1) select = kWord1 | 8;
  if (select != kDword) {
    unsigned part = select & 7, wide = part >= kWord0;
    unsigned shift = wide ? 16 * (part - kWord0) : 8 * part;
    u32 mask = (wide ? 0xffffu : 0xffu) << shift;
    int preserve = i->flags & kPreserve || select & 8;
    for (int l = 0; l < kLanes; l++)
      value[l] = (preserve ? w->v[reg][l] & ~mask : 0) | (value[l] << shift & mask);
    if (preserve) halves = halves_read(part);
  }
  put_lanes(w, reg, value, lanes, halves);
}

static inline void put(Wave *w, const Instruction *i, int k, u32 *value, unsigned bits,
                       int is_float) {
  int high = bits == 16 && i->op_sel >> (i->operands - i->destinations) & 1;
  if (i->flags & (kDpp | kSdwa | kClamp) || i->omod || high)
    put_special(w, i, k, value, bits, is_float);
  else
    put_lanes(w, i->o[k].reg, value, exec_of(w), kBothHalves);
}
static void put64(Wave *w, const Instruction *i, int k, const u64 *value) {
  u32 part[2][kLanes];
  for (int l = 0; l < kLanes; l++) part[0][l] = (u32)value[l], part[1][l] = (u32)(value[l] >> 32);
  for (int h = 0; h < 2; h++) put_defined(w, i->o[k].reg + h, part[h], kBothHalves, h);
}
// The destination of a multiply-accumulate, read before it is written.
static inline const u32 *old_value(Wave *w, const Instruction *i, unsigned bits) {
  u64 lanes = i->flags & kDpp ? dpp_lanes(w, i) : exec_of(w);
  check_vector_read(w, i->o[0].reg, lanes, bits == 16 ? kLowHalf : kBothHalves);
  return w->v[i->o[0].reg];
}
// Bitwise scalar instructions carry bits without a value: compilers merge lane masks that have a
// value only in the lanes that are on. Such a bit must not decide anything.
static u64 scalar_bits(Wave *w, const Instruction *i, int k, int wide, u64 *undefined) {
  const Operand *o = &i->o[k];
  *undefined = 0;
  if (o->kind == kConstant) return wide ? (u64)o->hi << 32 | o->lo : o->lo;
  check_sgpr_wait(w, o->reg);
  *undefined = w->s_undefined[o->reg];
  if (!wide) return w->s[o->reg];
  check_sgpr_wait(w, o->reg + 1u);
  *undefined |= (u64)w->s_undefined[o->reg + 1] << 32;
  return (u64)w->s[o->reg + 1] << 32 | w->s[o->reg];
}
static void put_scalar_bits(Wave *w, const Instruction *i, int wide, u64 value, u64 undefined) {
  unsigned reg = i->o[0].reg;
  if (reg >= kExec && undefined) fault(w, kUninitializedSgpr, 0, 0, reg + 1024, 0);
  write_sgpr(w, reg, (u32)value);
  w->s_undefined[reg] = (u32)undefined;
  if (!wide) return;
  write_sgpr(w, reg + 1u, (u32)(value >> 32));
  w->s_undefined[reg + 1] = (u32)(undefined >> 32);
}
static inline u32 scc_of(Wave *w) {
  if (w->scc_undefined) fault(w, kUninitializedSgpr, 0, 0, 1024 + 253, 0);
  return w->scc;
}
static u64 source_mask(Wave *w, const Instruction *i, int k) {
  u64 undefined, mask = scalar_bits(w, i, k, 1, &undefined);
  u64 lanes = undefined & exec_of(w);
  if (lanes) fault(w, kUninitializedSgpr, first_lane(lanes), 0, i->o[k].reg + 1024u, 0);
  return mask;
}
static void put_mask(Wave *w, const Instruction *i, int k, const u32 *bit) {
  u64 mask = 0;
  for (int l = 0; l < kLanes; l++) mask |= (u64)(bit[l] & 1) << l;
  put_scalar64(w, i, k, mask & exec_of(w));
}
