// Global memory: bounds, initialisation and ordering of every access; loads, stores, atomics.
//
// Addresses are the host's own. Data arrive at issue; the counters (VM_CNT, LGKM_CNT) decide when
// a register may be used, so a missing s_waitcnt is found although the value would be right.
#pragma once
#include "operands.h"

enum { kLineBytes = 128 };

static inline int holds(const Region *r, u64 address, u32 bytes) {
  return address - r->base < r->size && r->size - (address - r->base) >= bytes;
}
// Kernels' buffers hold elements of a known size, so an access to them is aligned to its width up to
// a dword. The kernel arguments are exempt: compilers read packed bytes of them in any way.
static void check_alignment(Wave *w, const Region *r, u64 address, u32 bytes, u32 lane) {
  u32 align = bytes < 4 ? bytes : 4;
  if (!r->packed && address % align) fault(w, kAlignment, lane, address, align, 0);
}

static const Region *find_region(Wave *w, u64 address, u32 bytes, u32 lane) {
  Launch *launch = w->group->launch;
  if (holds(&launch->regions[launch->last_region], address, bytes))
    return &launch->regions[launch->last_region];
  for (u32 k = 0; k < launch->region_count; k++)
    if (holds(&launch->regions[k], address, bytes)) {
      launch->last_region = k;
      return &launch->regions[k];
    }
  fault(w, kGlobalBounds, lane, address, bytes, 0);
}

// The widest access has a loop of its own, which the compiler makes one vector operation.
static inline void bump(u8 *count, u32 bytes) {
  if (bytes == 16)
    for (u32 k = 0; k < 16; k++) count[k] += count[k] != 255;
  else
    for (u32 k = 0; k < bytes; k++) count[k] += count[k] != 255;
}

// A store may be read by its own wave, by its workgroup after a barrier, and by another workgroup
// after the writer's release (buffer_wbl2) and the reader's acquire (buffer_inv): what clang emits
// for agent scope.
static void check_writer(Wave *w, const Region *r, u64 address, u32 bytes, u32 lane) {
  Group *group = w->group;
  u64 offset = address - r->base;
  for (u64 d = offset / 4; d <= (offset + bytes - 1) / 4; d++) {
    u64 stamp = r->writer[d], step = stamp >> 24;
    u32 owner = stamp >> 4 & 0xfffff, wave = stamp & 15;
    if (!stamp) continue;
    int ordered = 0;
    if (owner == group->flat) {
      ordered = wave == w->index || step < group->barrier_step;
    } else {
      const u64 *release = group->launch->release_steps[owner];
      for (int k = 0; k < kMaxReleases; k++)
        ordered |= release[k] > step && release[k] < w->acquire_step;
    }
    if (!ordered) fault(w, kGlobalRace, lane, address, owner, wave);
  }
}

static inline u8 *load_pointer(Wave *w, u64 address, u32 bytes, u32 lane) {
  const Region *r = find_region(w, address, bytes, lane);
  u64 offset = address - r->base;
  check_alignment(w, r, address, bytes, lane);
  if (r->uninitialized)
    for (u32 k = 0; k < bytes; k++)
      if (!r->written[offset + k]) fault(w, kUninitializedGlobal, lane, address + k, bytes, 0);
  if (r->writer) check_writer(w, r, address, bytes, lane);
  if (r->read) bump(r->read + offset, bytes);
  return (u8 *)address;
}
static inline u8 *store_pointer(Wave *w, u64 address, u32 bytes, u32 lane) {
  const Region *r = find_region(w, address, bytes, lane);
  u64 offset = address - r->base;
  check_alignment(w, r, address, bytes, lane);
  if (!r->writable) fault(w, kReadOnly, lane, address, bytes, 0);
  if (r->written) bump(r->written + offset, bytes);
  w->group->launch->idle = 0;
  u64 stamp = w->group->launch->steps << 24 | (u64)w->group->flat << 4 | w->index;
  for (u64 d = offset / 4; r->writer && d <= (offset + bytes - 1) / 4; d++) r->writer[d] = stamp;
  return (u8 *)address;
}

// Distinct cache lines of one wave's access.
static u32 count_lines(const u64 *address, u64 lanes, u32 bytes) {
  u64 line[2 * kLanes];
  u32 n = 0;
  for (int l = 0; l < kLanes; l++) {
    if (!(lanes >> l & 1)) continue;
    u64 last = (address[l] + bytes - 1) / kLineBytes;
    for (u64 x = address[l] / kLineBytes; x <= last; x++) {
      u32 k = n;
      while (k > 0 && line[k - 1] != x) k--;
      if (!k) line[n++] = x;
    }
  }
  return n;
}

// Addresses of a global or flat access: VGPR pair, or SGPR pair plus a 32-bit VGPR, plus offset.
static void global_addresses(Wave *w, const Instruction *i, int vector, int base, u64 *address) {
  u64 exec = exec_of(w);
  unsigned reg = i->o[vector].reg;
  check_vector_read(w, reg, exec, kBothHalves);
  u64 scalar = 0;
  if (base >= 0 && i->o[base].kind == kScalar) scalar = scalar64(w, i, base);
  else check_vector_read(w, reg + 1, exec, kBothHalves);
  int has_base = base >= 0 && i->o[base].kind == kScalar;
  for (int l = 0; l < kLanes; l++) {
    u64 v = has_base ? w->v[reg][l] : (u64)w->v[reg + 1][l] << 32 | w->v[reg][l];
    address[l] = scalar + v + (u64)(i64)i->offset;
  }
  Launch *launch = w->group->launch;
  launch->extra[i - launch->code] += count_lines(address, exec, i->width);
}

// Puts what one lane loaded into its registers: sub-dword loads extend or fill one half.
static void deliver(Wave *w, const Instruction *i, unsigned reg, int lane, const u8 *from) {
  u64 bit = (u64)1 << lane;
  if (i->width >= 4) {
    for (u32 d = 0; d < i->width / 4u; d++) {
      memcpy(&w->v[reg + d][lane], from + 4 * d, 4);
      w->low[reg + d] |= bit, w->high[reg + d] |= bit;
    }
    return;
  }
  u32 x = 0;
  memcpy(&x, from, i->width);
  if (i->flags & kSigned) x = i->width == 1 ? (u32)(i32)(i8)x : (u32)(i32)(i16)x;
  if (i->flags & (kHigh | kLow)) {
    u32 shift = i->flags & kHigh ? 16 : 0;
    w->v[reg][lane] = (w->v[reg][lane] & ~(0xffffu << shift)) | (x & 0xffff) << shift;
    *(i->flags & kHigh ? &w->high[reg] : &w->low[reg]) |= bit;
  } else {
    w->v[reg][lane] = x;
    w->low[reg] |= bit, w->high[reg] |= bit;
  }
}
static inline unsigned dwords(const Instruction *i) { return (i->width + 3u) / 4; }

static void note_vm(Wave *w, const Instruction *i, int destination) {
  u32 number = ++w->vm_issued;
  for (unsigned d = 0; destination >= 0 && d < dwords(i); d++)
    w->vm_wait[i->o[destination].reg + d] = number;
}

static void global_load(Wave *w, const Instruction *i) {
  u64 address[kLanes], exec = exec_of(w);
  global_addresses(w, i, 1, 2, address);
  for (unsigned d = 0; d < dwords(i); d++) check_waits(w, i->o[0].reg + d);
  for (int l = 0; l < kLanes; l++)
    if (exec >> l & 1) deliver(w, i, i->o[0].reg, l, load_pointer(w, address[l], i->width, l));
  note_vm(w, i, 0);
}

static void check_data(Wave *w, const Instruction *i, int operand) {
  unsigned halves = i->width >= 4 ? kBothHalves : i->flags & kHigh ? kHighHalf : kLowHalf;
  for (unsigned d = 0; d < dwords(i); d++)
    check_vector_read(w, i->o[operand].reg + d, exec_of(w), halves);
}
static inline void collect(const Wave *w, const Instruction *i, unsigned reg, int lane, u8 *to) {
  if (i->width >= 4) {
    for (unsigned d = 0; d < dwords(i); d++) memcpy(to + 4 * d, &w->v[reg + d][lane], 4);
  } else {
    u32 x = w->v[reg][lane] >> (i->flags & kHigh ? 16 : 0);
    memcpy(to, &x, i->width);
  }
}

static void global_store(Wave *w, const Instruction *i) {
  u64 address[kLanes], exec = exec_of(w);
  global_addresses(w, i, 0, 2, address);
  check_data(w, i, 1);
  for (int l = 0; l < kLanes; l++)
    if (exec >> l & 1) collect(w, i, i->o[1].reg, l, store_pointer(w, address[l], i->width, l));
  note_vm(w, i, -1);
}

enum Atomic { kAdd, kSub, kSwap, kCmpSwap, kUmax, kUmin, kSmax, kSmin, kAnd, kOr, kXor, kInc, kAddF };
static u32 atomic_result(u32 op, u32 old, u32 x, u32 compare) {
  switch (op) {
    case kAdd: return old + x;
    case kSub: return old - x;
    case kSwap: return x;
    case kCmpSwap: return old == compare ? x : old;
    case kUmax: return old > x ? old : x;
    case kUmin: return old < x ? old : x;
    case kSmax: return (i32)old > (i32)x ? old : x;
    case kSmin: return (i32)old < (i32)x ? old : x;
    case kAnd: return old & x;
    case kOr: return old | x;
    case kXor: return old ^ x;
    case kInc: return old >= x ? 0 : old + 1;
    default: return from_f32(as_f32(old) + as_f32(x));
  }
}

// Operands: [result,] address, data, base. For a compare-and-swap the data are {new, compare}.
static void global_atomic(Wave *w, const Instruction *i) {
  u64 address[kLanes], exec = exec_of(w);
  int first = i->flags & kReturn ? 1 : 0;
  global_addresses(w, i, first, first + 2, address);
  unsigned data = i->o[first + 1].reg, compares = i->immediate == kCmpSwap;
  for (unsigned d = 0; d <= compares; d++) check_vector_read(w, data + d, exec, kBothHalves);
  for (int l = 0; l < kLanes; l++) {
    if (!(exec >> l & 1)) continue;
    const Region *r = find_region(w, address[l], 4, l);
    check_alignment(w, r, address[l], 4, l);
    if (!r->writable) fault(w, kReadOnly, l, address[l], 4, 0);
    if (r->uninitialized && !r->written[address[l] - r->base])
      fault(w, kUninitializedGlobal, l, address[l], 4, 0);
    u32 *cell = (u32 *)address[l], old = *cell;
    w->group->launch->idle = 0;
    *cell = atomic_result(i->immediate, old, w->v[data][l], w->v[data + compares][l]);
    if (first) deliver(w, i, i->o[0].reg, l, (const u8 *)&old);
  }
  note_vm(w, i, first ? 0 : -1);
}

static void scalar_load(Wave *w, const Instruction *i) {
  u64 address = scalar64(w, i, 1) + (u64)(i64)i->offset;
  if (i->operands > 2 && i->o[2].kind == kScalar) address += scalar32(w, i, 2);
  address &= ~(u64)3;
  u32 number = ++w->lgkm_issued;
  for (unsigned d = 0; d < dwords(i); d++) {
    u32 x;
    memcpy(&x, load_pointer(w, address + 4 * d, 4, 0), 4);
    write_sgpr(w, i->o[0].reg + d, x);
    w->s_wait[i->o[0].reg + d] = number;
  }
  w->last_scalar_load = number;
}
// buffer_wbl2 with sc1: an agent-scope release. buffer_inv with sc1: an agent-scope acquire.
static void buffer_wbl2(Wave *w, const Instruction *i) {
  (void)i;
  u64 *release = w->group->launch->release_steps[w->group->flat];
  memmove(release + 1, release, (kMaxReleases - 1) * sizeof *release);
  release[0] = w->group->launch->steps;
  w->vm_issued++;
}
static void buffer_inv(Wave *w, const Instruction *i) {
  (void)i;
  w->acquire_step = w->group->launch->steps;
}
