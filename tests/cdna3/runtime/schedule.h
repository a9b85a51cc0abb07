// Starting waves and interleaving them.
//
// A wave gives way at a barrier, s_sleep, a taken backward branch and, in fuzzed schedules, before
// any memory access. The next wave is the next in order, or a random one when fuzzing.
#pragma once
#include "control.h"

enum { kIdleLimit = 1 << 20 };

static void start_wave(Launch *launch, Group *group, Wave *w, u32 index) {
  memset(w->low, 0, sizeof w->low), memset(w->high, 0, sizeof w->high);
  memset(w->vm_wait, 0, sizeof w->vm_wait), memset(w->lgkm_wait, 0, sizeof w->lgkm_wait);
  memset(w->s_undefined, 0xff, sizeof w->s_undefined), memset(w->s_wait, 0, sizeof w->s_wait);
  w->scc = w->pc = w->at_barrier = w->ended = w->yield = 0;
  w->vm_issued = w->vm_done = w->lgkm_issued = w->lgkm_done = 0;
  w->last_scalar_load = w->last_lds_write = 0;
  w->index = index, w->group = group, w->acquire_step = 0;
  w->undefined[0] = w->undefined[1] = 0;
  memset(w->clock, 0, sizeof w->clock);
  w->clock[index] = 1;
  u32 threads = launch->block[0] * launch->block[1] * launch->block[2];
  u64 exec = 0;
  u32 ids[kLanes];
  for (u32 l = 0; l < kLanes; l++) {
    u32 t = index * kLanes + l;
    exec |= (u64)(t < threads) << l;
    ids[l] = t % launch->block[0] | (t / launch->block[0] % launch->block[1]) << 10 |
             (t / (launch->block[0] * launch->block[1])) << 20;
  }
  w->s_undefined[kExec] = w->s_undefined[kExec + 1] = 0;
  w->scc_undefined = 1;
  set_exec(w, exec);
  put_lanes(w, 0, ids, kAllLanes, kBothHalves);
  if (launch->kernarg_sgpr >= 0) {
    write_sgpr(w, launch->kernarg_sgpr, (u32)launch->kernarg);
    write_sgpr(w, launch->kernarg_sgpr + 1, (u32)(launch->kernarg >> 32));
  }
  for (int axis = 0; axis < 3; axis++)
    if (launch->group_sgpr[axis] >= 0) write_sgpr(w, launch->group_sgpr[axis], group->id[axis]);
}

static void start_group(Launch *launch, Group *group, u32 flat) {
  u32 threads = launch->block[0] * launch->block[1] * launch->block[2];
  group->flat = flat, group->active = 1, group->barrier_step = 0;
  group->id[0] = flat % launch->grid[0];
  group->id[1] = flat / launch->grid[0] % launch->grid[1];
  group->id[2] = flat / (launch->grid[0] * launch->grid[1]);
  group->waves = group->live = (threads + kLanes - 1) / kLanes;
  memset(group->lds, 0xa5, launch->lds_bytes), memset(group->lds_written, 0, launch->lds_bytes);
  memset(group->cell, 0, (launch->lds_bytes / 4 + 1) * sizeof *group->cell);
  memset(group->released, 0, (launch->lds_bytes / 4 + 1) * sizeof *group->released);
  for (u32 k = 0; k < group->waves; k++) start_wave(launch, group, &group->wave[k], k);
}

// Opens the barrier when every wave that still runs has reached it; their clocks are joined.
static void open_barrier(Group *group) {
  u32 joined[kMaxWaves] = {0};
  for (u32 k = 0; k < group->waves; k++)
    if (!group->wave[k].ended && !group->wave[k].at_barrier) return;
  for (u32 k = 0; k < group->waves; k++)
    for (u32 c = 0; c < group->waves; c++)
      if (group->wave[k].clock[c] > joined[c]) joined[c] = group->wave[k].clock[c];
  for (u32 k = 0; k < group->waves; k++) {
    Wave *w = &group->wave[k];
    memcpy(w->clock, joined, sizeof joined);
    w->clock[k]++, w->at_barrier = 0;
  }
  group->barrier_step = group->launch->steps;
  group->launch->idle = 0;
}

static void run_wave(Launch *launch, Wave *w, const Handler *handlers) {
  w->yield = 0;
  int first = 1;
  while (!w->yield) {
    if (w->pc >= launch->instructions) fault(w, kNoEnd, 0, 0, 0, 0);
    const Instruction *i = &launch->code[w->pc];
    if (launch->fuzz && i->flags & kMemory && !first && next_random(launch) % 3 == 0) return;
    first = 0;
    if (++launch->steps > launch->budget) fault(w, kBudget, 0, 0, 0, 0);
    launch->count[w->pc]++;
    launch->lanes[w->pc] += (u64)__builtin_popcountll(exec_of(w));
    w->at = w->pc++;
    handlers[i->op](w, i);
  }
  if (w->ended) launch->idle = 0, w->group->live--;
  if (++launch->idle > kIdleLimit) fault(w, kDeadlock, 0, 0, 0, 0);
}

static Wave *pick_wave(Launch *launch, Group *group, u32 turn) {
  u32 first = launch->fuzz ? next_random(launch) % group->waves : turn % group->waves;
  for (u32 k = 0; k < group->waves; k++) {
    Wave *w = &group->wave[(first + k) % group->waves];
    if (!w->ended && !w->at_barrier) return w;
  }
  return 0;
}

static void run_groups(Launch *launch, Group *slot, const u32 *order, const Handler *handlers) {
  u32 total = launch->grid[0] * launch->grid[1] * launch->grid[2], next = 0, finished = 0;
  for (u32 turn = 0; finished < total; turn++) {
    u32 chosen = launch->fuzz ? next_random(launch) % launch->resident : turn % launch->resident;
    Group *group = &slot[chosen];
    if (!group->active) {
      if (next == total) continue;
      start_group(launch, group, order[next++]);
    }
    Wave *w = pick_wave(launch, group, turn / launch->resident);
    if (w) run_wave(launch, w, handlers);
    else open_barrier(group);
    if (!group->live) group->active = 0, finished++;
  }
}

static Group *new_groups(Launch *launch, u32 waves) {
  Group *slot = calloc(launch->resident, sizeof *slot);
  u32 dwords = launch->lds_bytes / 4 + 1;
  for (u32 k = 0; k < launch->resident; k++) {
    slot[k].launch = launch;
    slot[k].lds = calloc(dwords, 4), slot[k].lds_written = calloc(dwords, 4);
    slot[k].cell = calloc(dwords, sizeof(LdsCell));
    slot[k].released = calloc(dwords, sizeof *slot[k].released);
    slot[k].wave = aligned_alloc(64, waves * sizeof(Wave));
    memset(slot[k].wave, 0xa5, waves * sizeof(Wave));  // poison
  }
  return slot;
}

// Runs the whole grid. Returns 0, or the check that failed, with launch->fault filled in.
int cdna3_run(Launch *launch, const Handler *handlers) {
  u32 total = launch->grid[0] * launch->grid[1] * launch->grid[2];
  u32 waves = (launch->block[0] * launch->block[1] * launch->block[2] + kLanes - 1) / kLanes;
  u32 *order = malloc(total * sizeof *order);
  fill_float8();
  for (u32 k = 0; k < total; k++) {
    u32 other = launch->fuzz ? next_random(launch) % (k + 1) : k;
    order[k] = order[other], order[other] = k;
  }
  launch->release_steps = calloc(total, sizeof *launch->release_steps);
  launch->steps = 1, launch->idle = launch->last_region = 0, launch->fault.check = kNoFault;
  Group *slot = new_groups(launch, waves);
  if (!setjmp(launch->escape)) run_groups(launch, slot, order, handlers);
  for (u32 k = 0; k < launch->resident; k++) {
    free(slot[k].lds), free(slot[k].lds_written), free(slot[k].cell);
    free(slot[k].released), free(slot[k].wave);
  }
  free(slot), free(order), free(launch->release_steps);
  return (int)launch->fault.check;
}
