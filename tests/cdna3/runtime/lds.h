// LDS: reads, writes, atomics, cross-lane permutes, and the race detector.
//
// Every dword has a cell with its last writer and, per wave, its last reader; "happened before" is
// a vector clock per wave, joined by s_barrier and by release/acquire pairs on one dword.
#pragma once
#include "memory.h"

static u8 *lds_pointer(Wave *w, u32 address, u32 bytes, u32 lane) {
  if (address + (u64)bytes > w->group->launch->lds_bytes) fault(w, kLdsBounds, lane, address, bytes, 0);
  return w->group->lds + address;
}

static inline void note_access(Wave *w, u32 address, u32 bytes, u32 lane, int is_write, int sync) {
  Group *group = w->group;
  for (u32 d = address / 4; d <= (address + bytes - 1) / 4; d++) {
    LdsCell *c = &group->cell[d];
    u32 from = d * 4 < address ? address - d * 4 : 0;
    u32 to = address + bytes - d * 4 < 4 ? address + bytes - d * 4 : 4;
    u8 mask = (u8)((1u << to) - (1u << from));
    if (!sync && c->bytes & mask && c->writer != w->index && w->clock[c->writer] < c->writer_clock)
      fault(w, kLdsRace, lane, address, c->writer_pc, c->writer);
    if (is_write) {
      group->launch->idle = 0;
      for (u32 k = 0; k < group->waves && !sync; k++)
        if (k != w->index && c->reader_clock[k] > w->clock[k])
          fault(w, kLdsRace, lane, address, ~0u, k);
      u8 kept = c->writer == w->index && c->writer_clock == w->clock[w->index] ? c->bytes : 0;
      c->writer = (u8)w->index, c->writer_clock = w->clock[w->index], c->writer_pc = w->at;
      c->bytes = sync ? 0 : mask | kept;
    } else if (!sync) {
      c->reader_clock[w->index] = w->clock[w->index];
    }
  }
}

static void synchronize(Wave *w, const Instruction *i, u32 address) {
  Group *group = w->group;
  u32 *released = group->released[address / 4];
  if (i->flags & kAcquire)
    for (u32 k = 0; k < group->waves; k++)
      if (released[k] > w->clock[k]) w->clock[k] = released[k];
  if (i->flags & kRelease) {
    if (w->last_lds_write > w->lgkm_done) fault(w, kReleaseWait, 0, address, 0, 0);
    for (u32 k = 0; k < group->waves; k++)
      if (w->clock[k] > released[k]) released[k] = w->clock[k];
    w->clock[w->index]++;
  }
}

// Passes beyond the first that the banks need: 32 banks of 4 bytes, lanes in order, 128 bytes a
// pass. A model; the hardware's grouping of lanes for 16-byte accesses is not documented.
static u32 bank_conflicts(const u32 *address, u64 lanes, u32 bytes) {
  u32 per_pass = bytes <= 4 ? 32 : 128 / bytes, extra = 0;
  for (u32 first = 0; first < kLanes; first += per_pass) {
    u32 row[32][32], depth[32] = {0}, worst = 1;
    for (u32 l = first; l < first + per_pass; l++) {
      for (u32 d = address[l] / 4; lanes >> l & 1 && d <= (address[l] + bytes - 1) / 4; d++) {
        u32 bank = d % 32, k = 0;
        while (k < depth[bank] && row[bank][k] != d) k++;
        if (k == depth[bank] && k < 32) row[bank][depth[bank]++] = d;
        if (depth[bank] > worst) worst = depth[bank];
      }
    }
    extra += worst - 1;
  }
  return extra;
}

static void lds_addresses(Wave *w, const Instruction *i, int operand, i32 offset, u32 width,
                          u32 *address) {
  u64 exec = exec_of(w);
  check_vector_read(w, i->o[operand].reg, exec, kBothHalves);
  for (int l = 0; l < kLanes; l++) {
    address[l] = w->v[i->o[operand].reg][l] + (u32)offset;
    u32 align = width >= 16 ? 16 : width;
    if (exec >> l & 1 && address[l] % align) fault(w, kAlignment, l, address[l], align, 0);
  }
  Launch *launch = w->group->launch;
  launch->extra[i - launch->code] += bank_conflicts(address, exec, width);
}

static void lds_read_at(Wave *w, const Instruction *i, unsigned reg, i32 offset) {
  u32 address[kLanes];
  u64 exec = exec_of(w);
  lds_addresses(w, i, 1, offset, i->width, address);
  for (unsigned d = 0; d < dwords(i); d++) check_waits(w, reg + d);
  for (int l = 0; l < kLanes; l++) {
    if (!(exec >> l & 1)) continue;
    const u8 *from = lds_pointer(w, address[l], i->width, l);
    for (u32 k = 0; k < i->width; k++)
      if (!w->group->lds_written[address[l] + k])
        fault(w, kUninitializedLds, l, address[l] + k, i->width, 0);
    if (i->flags & kAcquire) synchronize(w, i, address[l]);
    note_access(w, address[l], i->width, l, 0, i->flags & kAcquire);
    deliver(w, i, reg, l, from);
  }
}
static void note_lgkm(Wave *w, unsigned reg, unsigned count) {
  for (unsigned d = 0; d < count; d++) w->lgkm_wait[reg + d] = w->lgkm_issued;
}
static void lds_read(Wave *w, const Instruction *i) {
  lds_read_at(w, i, i->o[0].reg, i->offset);
  w->lgkm_issued++;
  note_lgkm(w, i->o[0].reg, dwords(i));
}
static void lds_read2(Wave *w, const Instruction *i) {
  lds_read_at(w, i, i->o[0].reg, i->offset);
  lds_read_at(w, i, i->o[0].reg + dwords(i), i->offset1);
  w->lgkm_issued++;
  note_lgkm(w, i->o[0].reg, 2 * dwords(i));
}

static void lds_write_at(Wave *w, const Instruction *i, int data, i32 offset) {
  u32 address[kLanes];
  u64 exec = exec_of(w);
  lds_addresses(w, i, 0, offset, i->width, address);
  check_data(w, i, data);
  for (int l = 0; l < kLanes; l++) {
    if (!(exec >> l & 1)) continue;
    u8 *to = lds_pointer(w, address[l], i->width, l);
    if (i->flags & kRelease) synchronize(w, i, address[l]);
    note_access(w, address[l], i->width, l, 1, i->flags & kRelease);
    collect(w, i, i->o[data].reg, l, to);
    memset(w->group->lds_written + address[l], 1, i->width);
  }
}
static void lds_write(Wave *w, const Instruction *i) {
  lds_write_at(w, i, 1, i->offset);
  w->last_lds_write = ++w->lgkm_issued;
}
static void lds_write2(Wave *w, const Instruction *i) {
  lds_write_at(w, i, 1, i->offset);
  lds_write_at(w, i, 2, i->offset1);
  w->last_lds_write = ++w->lgkm_issued;
}

static void lds_atomic(Wave *w, const Instruction *i) {
  u32 address[kLanes];
  u64 exec = exec_of(w);
  int first = i->flags & kReturn ? 1 : 0;
  lds_addresses(w, i, first, i->offset, 4, address);
  for (int k = first + 1; k < i->operands; k++)
    check_vector_read(w, i->o[k].reg, exec, kBothHalves);
  for (int l = 0; l < kLanes; l++) {
    if (!(exec >> l & 1)) continue;
    u32 old, x = w->v[i->o[first + 1].reg][l];
    u8 *cell = lds_pointer(w, address[l], 4, l);
    if (!w->group->lds_written[address[l]]) fault(w, kUninitializedLds, l, address[l], 4, 0);
    synchronize(w, i, address[l]);
    note_access(w, address[l], 4, l, 1, 1);
    memcpy(&old, cell, 4);
    u32 other = i->operands > first + 2 ? w->v[i->o[first + 2].reg][l] : x;
    u32 result = i->immediate == kCmpSwap ? atomic_result(kCmpSwap, old, other, x)
                                          : atomic_result(i->immediate, old, x, x);
    memcpy(cell, &result, 4);
    if (first) deliver(w, i, i->o[0].reg, l, (const u8 *)&old);
  }
  w->last_lds_write = ++w->lgkm_issued;
  if (first) note_lgkm(w, i->o[0].reg, 1);
}

static void put_permuted(Wave *w, const Instruction *i, u32 *value) {
  put_lanes(w, i->o[0].reg, value, exec_of(w), kBothHalves);
  w->lgkm_issued++;
  note_lgkm(w, i->o[0].reg, 1);
}
// A lane that is switched off gives 0, in ds_bpermute as in ds_swizzle.
static void lds_bpermute(Wave *w, const Instruction *i) {
  u32 value[kLanes];
  u64 exec = exec_of(w);
  check_vector_read(w, i->o[1].reg, exec, kBothHalves);
  for (int l = 0; l < kLanes; l++) {
    u32 from = (w->v[i->o[1].reg][l] + (u32)i->offset) >> 2 & 63;
    if (exec >> l & 1 && exec >> from & 1)
      check_vector_read(w, i->o[2].reg, (u64)1 << from, kBothHalves);
    value[l] = exec >> from & 1 ? w->v[i->o[2].reg][from] : 0;
  }
  put_permuted(w, i, value);
}
static void lds_permute(Wave *w, const Instruction *i) {
  u32 value[kLanes] = {0};
  u64 exec = exec_of(w);
  check_vector_read(w, i->o[1].reg, exec, kBothHalves);
  check_vector_read(w, i->o[2].reg, exec, kBothHalves);
  for (int l = 0; l < kLanes; l++)
    if (exec >> l & 1)
      value[(w->v[i->o[1].reg][l] + (u32)i->offset) >> 2 & 63] = w->v[i->o[2].reg][l];
  put_permuted(w, i, value);
}
static int swizzle_source(u32 offset, int lane) {
  if (offset & 0x8000) return (lane & ~3) | (offset >> 2 * (lane & 3) & 3);
  int in_half = lane & 31;
  int and_mask = offset & 31, or_mask = offset >> 5 & 31, xor_mask = offset >> 10 & 31;
  return (lane & 32) | (((in_half & and_mask) | or_mask) ^ xor_mask);
}
static void lds_swizzle(Wave *w, const Instruction *i) {
  u32 value[kLanes];
  u64 exec = exec_of(w);
  for (int l = 0; l < kLanes; l++) {
    int from = swizzle_source((u32)i->offset, l);
    if (exec >> l & 1 && exec >> from & 1)
      check_vector_read(w, i->o[1].reg, (u64)1 << from, kBothHalves);
    value[l] = exec >> from & 1 ? w->v[i->o[1].reg][from] : 0;
  }
  put_permuted(w, i, value);
}
