// Branches, barriers, waits, lane access and the other instructions that are not arithmetic.
#pragma once
#include "matrix.h"

enum { kYield = 1, kParked = 2 };

static void take(Wave *w, const Instruction *i) {
  w->pc = i->target;
  if (i->flags & kBackEdge) w->yield = kYield;
}
static void s_branch(Wave *w, const Instruction *i) { take(w, i); }
static void s_cbranch_scc0(Wave *w, const Instruction *i) { if (!scc_of(w)) take(w, i); }
static void s_cbranch_scc1(Wave *w, const Instruction *i) { if (scc_of(w)) take(w, i); }
static u64 vcc_of(Wave *w) { return (u64)read_sgpr(w, kVcc + 1) << 32 | read_sgpr(w, kVcc); }
static void s_cbranch_vccz(Wave *w, const Instruction *i) { if (!vcc_of(w)) take(w, i); }
static void s_cbranch_vccnz(Wave *w, const Instruction *i) { if (vcc_of(w)) take(w, i); }
static void s_cbranch_execz(Wave *w, const Instruction *i) { if (!exec_of(w)) take(w, i); }
static void s_cbranch_execnz(Wave *w, const Instruction *i) { if (exec_of(w)) take(w, i); }
static void s_nop(Wave *w, const Instruction *i) { (void)w, (void)i; }
static void s_sleep(Wave *w, const Instruction *i) { (void)i; w->yield = kYield; }
static void s_endpgm(Wave *w, const Instruction *i) { (void)i; w->ended = 1, w->yield = kParked; }

static void s_barrier(Wave *w, const Instruction *i) {
  (void)i;
  if (w->last_lds_write > w->lgkm_done) fault(w, kBarrierWait, 0, 0, 0, 0);
  w->at_barrier = 1, w->yield = kParked;
}

// Loads, stores and LDS operations each finish in order; scalar loads do not, so with one of
// them outstanding only lgkmcnt(0) says anything. immediate: VM_CNT | LGKM_CNT << 8.
static void s_waitcnt(Wave *w, const Instruction *i) {
  u32 vm = i->immediate & 63, lgkm = i->immediate >> 8 & 15;
  if (w->vm_issued - w->vm_done > vm) w->vm_done = w->vm_issued - vm;
  if (w->lgkm_issued - w->lgkm_done <= lgkm) return;
  if (lgkm == 0) w->lgkm_done = w->lgkm_issued;
  else if (w->last_scalar_load <= w->lgkm_done) w->lgkm_done = w->lgkm_issued - lgkm;
}

static void v_readfirstlane_b32(Wave *w, const Instruction *i) {
  u64 exec = exec_of(w);
  u32 lane = exec ? first_lane(exec) : 0;
  check_vector_read(w, i->o[1].reg, (u64)1 << lane, kBothHalves);
  put_scalar32(w, i, 0, w->v[i->o[1].reg][lane]);
}
static void v_readlane_b32(Wave *w, const Instruction *i) {
  u32 lane = scalar32(w, i, 2) & 63;
  check_vector_read(w, i->o[1].reg, (u64)1 << lane, kBothHalves);
  put_scalar32(w, i, 0, w->v[i->o[1].reg][lane]);
}
static void v_writelane_b32(Wave *w, const Instruction *i) {
  u32 lane = scalar32(w, i, 2) & 63;
  unsigned reg = i->o[0].reg;
  check_waits(w, reg);
  w->v[reg][lane] = scalar32(w, i, 1);
  w->low[reg] |= (u64)1 << lane, w->high[reg] |= (u64)1 << lane;
}
static void v_swap_b32(Wave *w, const Instruction *i) {
  u32 first[kLanes], second[kLanes];
  u64 exec = exec_of(w);
  for (int k = 0; k < 2; k++) check_vector_read(w, i->o[k].reg, exec, kBothHalves);
  memcpy(first, w->v[i->o[0].reg], sizeof first);
  memcpy(second, w->v[i->o[1].reg], sizeof second);
  put_lanes(w, i->o[0].reg, second, exec, kBothHalves);
  put_lanes(w, i->o[1].reg, first, exec, kBothHalves);
}
// A copy may carry lanes that were never written: they stay uninitialised in the copy.
static void copy_lanes(Wave *w, const Instruction *i) {
  const Operand *from = &i->o[1];
  u64 exec = exec_of(w);
  unsigned to = i->o[0].reg;
  u32 value[kLanes];
  for (unsigned d = 0; d < i->width / 4u; d++) {
    u64 low = kAllLanes, high = kAllLanes;
    if (from->kind == kVector) {
      check_waits(w, from->reg + d);
      low = w->low[from->reg + d], high = w->high[from->reg + d];
      memcpy(value, w->v[from->reg + d], sizeof value);
    } else {
      u32 x = from->kind == kScalar ? read_sgpr(w, from->reg + d) : d ? from->hi : from->lo;
      for (int l = 0; l < kLanes; l++) value[l] = x;
    }
    put_lanes(w, to + d, value, exec, 0);
    w->low[to + d] = (w->low[to + d] & ~exec) | (low & exec);
    w->high[to + d] = (w->high[to + d] & ~exec) | (high & exec);
  }
}
static void v_mov_b32(Wave *w, const Instruction *i) {
  if (!(i->flags & (kDpp | kSdwa))) {
    copy_lanes(w, i);
    return;
  }
  u32 buffer[kLanes], value[kLanes];
  memcpy(value, source(w, i, 1, buffer, 32, 0), sizeof value);
  put(w, i, 0, value, 32, 0);
}
static void s_getpc_b64(Wave *w, const Instruction *i) {
  put_scalar64(w, i, 0, w->group->launch->image + i->immediate);
}
// Low result from the first source, high result from the second, each by its op_sel bit.
static void pk_mov_b32(Wave *w, const Instruction *i) {
  u32 value[2][kLanes];
  for (int k = 0; k < 2; k++) {
    const Operand *o = &i->o[k + 1];
    unsigned pick = i->op_sel >> k & 1;
    if (o->kind == kVector) check_vector_read(w, o->reg + pick, exec_of(w), kBothHalves);
    u32 scalar = o->kind == kScalar ? read_sgpr(w, o->reg + pick) : o->lo;
    for (int l = 0; l < kLanes; l++)
      value[k][l] = o->kind == kVector ? w->v[o->reg + pick][l] : scalar;
  }
  for (int k = 0; k < 2; k++)
    put_lanes(w, i->o[0].reg + k, value[k], exec_of(w), kBothHalves);
}
