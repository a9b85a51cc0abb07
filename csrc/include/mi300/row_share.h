// One lane's share of a row: vectors of eight bf16 or fp16 elements, their loads and stores.
#pragma once

#include <mi300/row_reduce.h>

namespace mi300 {

template <u32 kVec>
struct RowShare {
  u32 first;    // this lane's first vector in the row
  u32 step;     // from one of its vectors to the next
  u32 vectors;  // in the whole row

  // `start`: the workgroup's first vector.
  MI300_DEVICE static RowShare of(const RowArgs& args, u32 start, u32 step) {
    return {start + thread_index(), step, args.hidden / kVector};
  }

  // The same, of which nothing worked out before is kept in registers.
  MI300_DEVICE RowShare made_again() const { return {made_here(first), step, vectors}; }

  MI300_DEVICE u32 index(u32 v) const { return first + v * step; }
  MI300_DEVICE bool has(u32 v) const { return index(v) < vectors; }

  // Bytes of 16-bit elements, clamped into the row so that loads need no mask.
  MI300_DEVICE u32 offset(u32 v) const {
    const u32 place = offset_here(first) + v * step, last = vectors - 1;
    return (place < last ? place : last) * 16;
  }

  MI300_DEVICE void load(const void* rows, i64 row_bytes, i64 row, U32x4* values) const {
    const void* base = uniform((const char*)rows + row * row_bytes);
#pragma unroll
    for (u32 v = 0; v < kVec; ++v) values[v] = load_row<U32x4>(base, offset(v));
  }

  // Stores at the vector's place in a row of two-byte elements that starts `start` bytes on.
  MI300_DEVICE void store_row(void* rows, i64 start, u32 v, U32x4 value) const {
    void* out = uniform((char*)rows + start);
    if (has(v)) store_row_at(out, offset(v), value);
  }

  // The same in a row of FP8 codes.
  MI300_DEVICE void store_row(void* rows, i64 start, u32 v, U32x2 codes) const {
    void* out = uniform((char*)rows + start);
    if (has(v)) store_row_at(out, offset(v) / 2, codes);
  }
};

template <u32 kVec>
MI300_DEVICE RowShare<kVec> team_share(const RowArgs& args, const RowTeam& team) {
  return RowShare<kVec>::of(args, team.rank * team.threads, team.threads * team.cluster);
}

// Quantises vector v with the scale of its group: a power of two of neighbouring lanes.
template <Dtype kType, u32 kVec>
MI300_DEVICE void quantize_group(const RowArgs& args, const RowShare<kVec>& share, i64 row, u32 v,
                                 U32x4 y) {
  const u32 lanes = args.group / kVector;
  const u32 shift = __builtin_ctz(lanes);
  u32 amax = lanes_max(share.has(v) ? largest<kType>(y) : 0, lanes);
  schedule_fence();
  float s = dynamic_scale<kType>(args, bit_cast<float>(amax));
  const Quantizer quantizer = Quantizer::of(args, s);
  schedule_fence();
  share.store_row(args.q, row * args.hidden, v, quantizer.codes<kType>(args, y));
  if (share.has(v) && (share.index(v) & (lanes - 1)) == 0) {
    store<float>(args.scale, row * (share.vectors >> shift) + (share.index(v) >> shift), s);
  }
}

}  // namespace mi300
