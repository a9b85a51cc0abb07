// Matrix instructions: MFMA and the 4:2 sparse SMFMAC.
//
// Products are exact in double and summed there; the sum with C is rounded to fp32 once. The
// hardware's own rounding order is not documented, so results are compared by tolerance.
// EXEC is ignored: all 64 lanes take part. For rows x columns x depth with `share` consecutive k
// per lane: A[i][k] is in lane rows * (k / share) + i, element k % share; B alike with its column.
#pragma once
#include "float8.h"

enum ElementType { kFloat8, kBfloat8, kBfloat16, kFloat16, kFloat32 };
enum { kMaxDepth = 64 };

static inline u32 element_bytes(u32 type) { return type <= kBfloat8 ? 1 : type <= kFloat16 ? 2 : 4; }
static float element(const Wave *w, unsigned reg, int lane, int index, u32 type) {
  u32 bytes = element_bytes(type), at = (u32)index * bytes;
  u32 bits = w->v[reg + at / 4][lane] >> 8 * (at % 4);
  switch (type) {
    case kFloat8: case kBfloat8: return g_float8[type][bits & 0xff];
    case kBfloat16: return as_f32(bits << 16);
    case kFloat16: return (float)as_f16(bits & 0xffff);
    default: return as_f32(bits);
  }
}
static void check_matrix_source(Wave *w, const Operand *o, unsigned count) {
  for (unsigned d = 0; d < count; d++) check_vector_read(w, o->reg + d, kAllLanes, kBothHalves);
}
// Register and lane of D[i][j] for a matrix of 16 or 32 rows.
static inline void result_place(int rows, int i, int j, int *reg, int *lane) {
  *lane = rows == 16 ? 16 * (i / 4) + j : 32 * (i / 4 % 2) + j;
  *reg = rows == 16 ? i % 4 : 4 * (i / 8) + i % 4;
}

typedef struct { float a[32][kMaxDepth], b[kMaxDepth][32]; } Tiles;

static void accumulate(Wave *w, const Instruction *i, const Tiles *t, int rows, int depth,
                       const Operand *c) {
  unsigned count = rows == 16 ? 4 : 16, to = i->o[0].reg;
  if (c->kind == kVector) check_matrix_source(w, c, count);
  float out[16][kLanes];
  for (int r = 0; r < rows; r++) {
    double sum[32] = {0};
    for (int k = 0; k < depth; k++)
      for (int j = 0; j < rows; j++) sum[j] += (double)t->a[r][k] * (double)t->b[k][j];
    for (int j = 0; j < rows; j++) {
      int reg, lane;
      result_place(rows, r, j, &reg, &lane);
      float start = c->kind == kVector ? as_f32(w->v[c->reg + reg][lane]) : as_f32(c->lo);
      out[reg][lane] = (float)(start + sum[j]);
    }
  }
  for (unsigned d = 0; d < count; d++)
    put_lanes(w, to + d, (const u32 *)out[d], kAllLanes, kBothHalves);
}

// immediate: rows | depth << 8 | type of A << 16 | type of B << 20.
static void mfma(Wave *w, const Instruction *i) {
  static _Thread_local Tiles t;
  int rows = i->immediate & 255, depth = i->immediate >> 8 & 255;
  u32 a_type = i->immediate >> 16 & 15, b_type = i->immediate >> 20 & 15;
  int share = depth / (kLanes / rows);
  if (i->cbsz || i->abid || i->op_sel) fault(w, kUnsupported, 0, 0, i->o[0].reg, 0);
  check_matrix_source(w, &i->o[1], ((u32)share * element_bytes(a_type) + 3) / 4);
  check_matrix_source(w, &i->o[2], ((u32)share * element_bytes(b_type) + 3) / 4);
  for (int k = 0; k < depth; k++)
    for (int r = 0; r < rows; r++) {
      int lane = rows * (k / share) + r;
      t.a[r][k] = element(w, i->o[1].reg, lane, k % share, a_type);
      t.b[k][r] = element(w, i->o[2].reg, lane, k % share, b_type);
    }
  accumulate(w, i, &t, rows, depth, &i->o[3]);
}

// A holds half of its depth: packed element p of a lane is number (index >> 2p) & 3 of group p / 2
// of four k. B is dense. D is also the accumulator. The index register has 8 / bytes sets of bits;
// CBSZ 0 lets ABID choose one, otherwise it is set 0.
static void smfmac(Wave *w, const Instruction *i) {
  static _Thread_local Tiles t;
  int rows = i->immediate & 255, depth = i->immediate >> 8 & 255;
  u32 a_type = i->immediate >> 16 & 15, b_type = i->immediate >> 20 & 15;
  int share = depth / (kLanes / rows), packed = share / 2;
  u32 bytes = element_bytes(a_type), set = i->cbsz ? 0 : i->abid;
  check_matrix_source(w, &i->o[1], (u32)packed * bytes / 4);
  check_matrix_source(w, &i->o[2], (u32)share * element_bytes(b_type) / 4);
  check_matrix_source(w, &i->o[3], 1);
  memset(t.a, 0, sizeof t.a);
  for (int lane = 0; lane < kLanes; lane++) {
    int r = lane % rows, first = share * (lane / rows);
    u32 index = w->v[i->o[3].reg][lane] >> (2 * packed * set);
    for (int p = 0; p < packed; p++) {
      int k = first + 4 * (p / 2) + (int)(index >> 2 * p & 3);
      t.a[r][k] += element(w, i->o[1].reg, lane, p, a_type);
    }
    for (int k = 0; k < share; k++)
      t.b[first + k][r] = element(w, i->o[2].reg, lane, k, b_type);
  }
  accumulate(w, i, &t, rows, depth, &i->o[0]);
}
