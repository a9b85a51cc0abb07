// DPP: which lane each lane reads from, and which lanes are written. ISA section "DPP Modes".
#pragma once
#include "state.h"

// DPP: the lane each lane reads from, or -1 where there is none. ISA section "DPP Modes".
static int dpp_source(unsigned ctrl, int lane) {
  int row = lane & ~15, in_row = lane & 15, n = ctrl & 15;
  if (ctrl <= 0xff) return (lane & ~3) | (ctrl >> 2 * (lane & 3) & 3);
  switch (ctrl & ~15u) {
    case 0x100: return in_row + n < 16 ? lane + n : -1;        // row_shl
    case 0x110: return in_row >= n ? lane - n : -1;            // row_shr
    case 0x120: return row | ((in_row + 16 - n) & 15);         // row_ror
    case 0x150: return row | n;                                // row_newbcast
  }
  switch (ctrl) {
    case 0x130: return lane < 63 ? lane + 1 : -1;              // wave_shl
    case 0x134: return (lane + 1) & 63;                        // wave_rol
    case 0x138: return lane - 1;                               // wave_shr
    case 0x13c: return (lane + 63) & 63;                       // wave_ror
    case 0x140: return row | (15 - in_row);                    // row_mirror
    case 0x141: return (lane & ~7) | (7 - (lane & 7));         // row_half_mirror
    case 0x142: return row ? row - 1 : -1;                     // row_bcast:15
    case 0x143: return lane >= 32 ? 31 : -1;                   // row_bcast:31
  }
  return -2;
}

// Lanes that a DPP instruction writes: the row and bank masks, and the lanes with a source.
static u64 dpp_lanes(const Wave *w, const Instruction *i) {
  u64 lanes = 0, exec = exec_of(w);
  for (int l = 0; l < kLanes; l++) {
    int from = dpp_source(i->dpp_ctrl, l);
    int valid = from >= 0 && exec >> from & 1;
    int selected = i->row_mask >> (l >> 4) & 1 && i->bank_mask >> ((l & 15) >> 2) & 1;
    lanes |= (u64)(selected && (valid || i->flags & kBoundCtrl)) << l;
  }
  return lanes & exec;
}
