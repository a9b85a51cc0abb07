// State of a launch on a CDNA3 compute unit: waves, workgroups, memory regions, faults.
//
// Field names follow AMD's "Instruction Set Architecture CDNA3". A register number below 256 is a
// VGPR, from 256 up an AGPR; scalar registers are numbered as in the encodings (vcc 106, m0 124,
// exec 126). The structures Launch, Region, Instruction and Operand are mirrored in engine.py.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint8_t u8;
typedef uint16_t u16;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int8_t i8;
typedef int16_t i16;
typedef int32_t i32;
typedef int64_t i64;
typedef _Float16 f16;

enum { kLanes = 64, kMaxWaves = 16, kMaxOperands = 6, kVcc = 106, kM0 = 124, kExec = 126 };
enum { kVgprs = 512, kSgprs = 128, kMaxReleases = 8 };
static const u64 kAllLanes = ~(u64)0;

// What a fault says; the texts are in checks.py, in the same order.
enum Check {
  kNoFault, kUninitializedVgpr, kUninitializedSgpr, kUninitializedLds, kUninitializedGlobal,
  kGlobalBounds, kLdsBounds, kAlignment, kWaitVm, kWaitLgkm, kLdsRace, kGlobalRace, kDeadlock,
  kBudget, kBarrierWait, kReadOnly, kUnsupported, kReleaseWait, kNoEnd
};
enum OperandKind { kNone, kVector, kScalar, kConstant };
enum Modifier { kAbs = 1, kNeg = 2, kSext = 4 };
enum Select { kByte0, kByte1, kByte2, kByte3, kWord0, kWord1, kDword };
enum Flag {
  kMemory = 1, kClamp = 2, kDpp = 4, kSdwa = 8, kAcquire = 16, kRelease = 32, kReturn = 64,
  kHigh = 128, kSigned = 256, kBoundCtrl = 512, kNoBase = 1024, kBackEdge = 2048, kPreserve = 4096,
  kSystemScope = 8192, kLow = 16384
};

typedef struct {
  u8 kind, modifiers, select, pad;
  u16 reg, count;  // count: dwords
  u32 lo, hi;      // a constant, already in the operand's own format
} Operand;

typedef struct {
  u16 op, flags;
  u8 operands, width, omod, op_sel, op_sel_hi, neg_lo, neg_hi, dst_select;
  u16 dpp_ctrl;
  u8 row_mask, bank_mask, cbsz, abid, destinations, pad;
  i32 offset, offset1;
  u32 target, immediate;
  Operand o[kMaxOperands];
} Instruction;

typedef struct {
  u64 base, size;
  u32 writable, uninitialized;  // uninitialized: a read before a write is a fault
  u32 packed, pad;              // packed: accesses need no alignment
  u8 *written;                  // per byte: how often it was stored to (saturating), or null
  u8 *read;                     // per byte: how often it was loaded (saturating), or null
  u64 *writer;                  // per dword: step << 24 | group << 4 | wave of the last store, or null
} Region;

typedef struct {
  u32 check, pc, wave, lane, other, reg;
  u32 group[3], pad;
  u64 address;
} FaultRecord;

struct Launch;
typedef struct {
  u32 writer_clock, writer_pc;
  u8 writer, bytes, pad[2];
  u32 reader_clock[kMaxWaves];
} LdsCell;

typedef struct {
  struct Launch *launch;
  u32 id[3], flat, waves, live;
  u8 *lds, *lds_written;
  LdsCell *cell;
  u32 (*released)[kMaxWaves];  // per LDS dword: vector clock of its last release
  u64 barrier_step;            // launch step at which the last barrier opened
  u32 active, pad;
  struct Wave *wave;
} Group;

typedef struct Wave {
  u32 v[kVgprs][kLanes];
  u64 low[kVgprs], high[kVgprs];          // lanes whose low and high half were written
  u32 vm_wait[kVgprs], lgkm_wait[kVgprs];  // number of the load that is still to write the register
  u32 s[kSgprs], s_wait[kSgprs];
  u32 s_undefined[kSgprs];  // bits without a value
  u32 scc_undefined;
  u32 scc, pc, at, index;  // at: the instruction being executed
  u32 vm_issued, vm_done, lgkm_issued, lgkm_done, last_scalar_load, last_lds_write;
  u32 clock[kMaxWaves];
  u32 at_barrier, ended, yield;
  u64 acquire_step;
  u64 undefined[2];  // lanes whose low and high result of a two-part instruction have no value
  Group *group;
} Wave;

typedef struct Launch {
  const Instruction *code;
  const Region *regions;
  u64 kernarg, image;  // image: where virtual address 0 of the code object was loaded
  u64 *count, *lanes, *extra;  // per instruction: executions, active lanes, lines or LDS conflicts
  u64 budget, seed, steps;
  u64 (*release_steps)[kMaxReleases];  // per workgroup: the steps of its last agent-scope releases
  u32 instructions, region_count;
  u32 grid[3], block[3];
  u32 lds_bytes, resident, fuzz, noise;
  i32 kernarg_sgpr, group_sgpr[3];  // -1: not given
  u32 last_region, idle;  // idle: times a wave gave way since something was last written
  FaultRecord fault;
  jmp_buf escape;
} Launch;

typedef void (*Handler)(Wave *, const Instruction *);

static inline u64 exec_of(const Wave *w) { return (u64)w->s[kExec + 1] << 32 | w->s[kExec]; }
static inline void set_exec(Wave *w, u64 mask) {
  w->s[kExec] = (u32)mask;
  w->s[kExec + 1] = (u32)(mask >> 32);
}

static inline u32 next_random(Launch *launch) {  // xorshift64*
  u64 x = launch->seed;
  x ^= x >> 12, x ^= x << 25, x ^= x >> 27;
  launch->seed = x;
  return (u32)((x * 0x2545F4914F6CDD1Dull) >> 32);
}

static __attribute__((noreturn, cold)) void fault(Wave *w, u32 check, u32 lane, u64 address,
                                                  u32 reg, u32 other) {
  Launch *launch = w->group->launch;
  FaultRecord *f = &launch->fault;
  f->check = check, f->pc = w->at, f->wave = w->index, f->lane = lane;
  f->other = other, f->reg = reg, f->address = address;
  memcpy(f->group, w->group->id, sizeof f->group);
  longjmp(launch->escape, 1);
}
static inline u32 first_lane(u64 lanes) { return (u32)__builtin_ctzll(lanes); }
