// Matrix instructions of both GPU targets as one step: 16 weight rows times 64 bytes of k.
//
// The weights feed the row side. A lane holds 16 consecutive bytes of a row, whatever the dtype;
// the instructions want the bytes of k spread otherwise, but weights and activations are permuted
// alike, so the sum over k is the same. Lane layouts: AMD's matrix instruction calculator (gfx942);
// PTX ISA 8.0, section 9.7.13 (sm_90).
#pragma once

#include <mi300/numeric.h>
#include <mi300/skinny_gemm_args.h>

namespace mi300 {

constexpr u32 kTileRows = 16;   // weight rows of one step
constexpr u32 kStepBytes = 64;  // bytes of k of one step

// Where a lane stands in a step: its weight row and its quarter (16 bytes) of the 64 bytes of k.
#if defined(__AMDGCN__)
constexpr u32 kDenseColumns = 16;  // activation rows of one step
constexpr u32 kRowLoads = 1;       // weight rows that a lane holds: 16 bytes of each
MI300_DEVICE u32 lane_row() { return lane_index() % 16; }
MI300_DEVICE u32 lane_quarter() { return lane_index() / 16; }
#else
constexpr u32 kDenseColumns = 8;
constexpr u32 kRowLoads = 2;  // row lane_row() and row lane_row() + 8
MI300_DEVICE u32 lane_row() { return lane_index() / 4; }
MI300_DEVICE u32 lane_quarter() { return lane_index() % 4; }
#endif

#if !defined(__AMDGCN__)
// 16 x 16 weights times 16 x 8 activations, two elements to a register.
template <Dtype kType>
MI300_DEVICE void mma_sync(Float4& sum, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
  if constexpr (kType == Dtype::kBf16) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum.x), "+f"(sum.y), "+f"(sum.z), "+f"(sum.w)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(sum.x), "+f"(sum.y), "+f"(sum.z), "+f"(sum.w)
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

// Four e4m3fn values as fp16, which holds each of them exactly: the first two, then the others.
MI300_DEVICE U32x2 widen_e4m3(u32 codes) {
  U32x2 halves;
  asm("{ .reg .b16 low, high;\n mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\n cvt.rn.f16x2.e4m3x2 %1, high; }"
      : "=r"(halves.x), "=r"(halves.y)
      : "r"(codes));
  return halves;
}
#endif

#if defined(__AMDGCN__)
template <Dtype kType>
MI300_DEVICE Float4 mfma(U32x2 a, U32x2 b, Float4 sum) {
  if constexpr (kType == Dtype::kE4m3fnuz) {
    return __builtin_amdgcn_mfma_f32_16x16x32_fp8_fp8(bit_cast<i64>(a), bit_cast<i64>(b), sum, 0, 0,
                                                      0);
  } else if constexpr (kType == Dtype::kBf16) {
    using Short4 = short __attribute__((ext_vector_type(4)));
    return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(bit_cast<Short4>(a), bit_cast<Short4>(b), sum,
                                                     0, 0, 0);
  } else {
    using Half4 = _Float16 __attribute__((ext_vector_type(4)));
    return __builtin_amdgcn_mfma_f32_16x16x16f16(bit_cast<Half4>(a), bit_cast<Half4>(b), sum, 0, 0,
                                                 0);
  }
}
#endif

// Keeps later loads behind the instructions that computed `sum`.
//
// NOTE: a load that the compiler moves above the last use of its registers gets other registers, and
// copying those at the end of a loop waits for every load under way.
MI300_DEVICE void settle([[maybe_unused]] Float4& sum) {
#if defined(__AMDGCN__)
  asm volatile("" : "+v"(sum)::"memory");
#endif
}

// Lanes past the last activation row take row 0: results depend on their own row alone, and theirs
// are dropped.
MI300_DEVICE u32 valid_row(u32 row, u32 rows) { return row < rows ? row : 0; }

// A lane's operands of one step, as the instructions take them.
//
// sm_90 has no FP8 form of mma.sync in hardware: it is taken apart into conversions and fp16
// products at every use (measured on an H200, 2026-11-29: 50 cycles for each m16n8k32, so 16 rows ran
// at 0.88 and 32 rows at 0.6 of cuBLASLt's speed). Here a weight is widened once for all columns.
template <u32 kRows, bool kIsWidened>
struct Operand {
  U32x4 words[kRows][kIsWidened ? 2 : 1];
};

template <bool kIsWidened, u32 kRows>
MI300_DEVICE Operand<kRows, kIsWidened> to_operand(const U32x4 (&words)[kRows]) {
  Operand<kRows, kIsWidened> operand;
  for (u32 row = 0; row < kRows; ++row) {
    operand.words[row][0] = words[row];
#if !defined(__AMDGCN__)
    if constexpr (kIsWidened) {
      U32x2 a = widen_e4m3(words[row].x), b = widen_e4m3(words[row].y);
      U32x2 c = widen_e4m3(words[row].z), d = widen_e4m3(words[row].w);
      operand.words[row][0] = {a.x, a.y, b.x, b.y};
      operand.words[row][1] = {c.x, c.y, d.x, d.y};
    }
#endif
  }
  return operand;
}

// A stage of a wave: 128 bytes of k of kTiles row tiles.
constexpr u32 kStageBytes = 128;
constexpr u32 kStageSteps = kStageBytes / kStepBytes;
template <u32 kTiles>
struct StageWords {
  U32x4 words[kTiles][kStageSteps][kRowLoads];  // this lane's weights
};

// Adds a stage's products to the sums of a form that works step by step. `block` holds the stage's
// activations as the form's put() arranged them.
template <class Form, u32 kTiles, u32 kGroups>
MI300_DEVICE void multiply_steps(Float4 (&sums)[kTiles][kGroups], const StageWords<kTiles>& stage,
                                 const U32x4* block, u32 rows) {
#pragma unroll
  for (u32 step = 0; step < kStageSteps; ++step, block += 4 * rows) {
    typename Form::Weights weights[kTiles];
#pragma unroll
    for (u32 tile = 0; tile < kTiles; ++tile) {
      weights[tile] = Form::weights(stage.words[tile][step]);
    }
#pragma unroll
    for (u32 group = 0; group < kGroups; ++group) {
      auto act = Form::fragment(block, group * Form::kColumns, rows);
#pragma unroll
      for (u32 tile = 0; tile < kTiles; ++tile) {
        Form::multiply(sums[tile][group], weights[tile], act);
      }
    }
  }
  for (auto& tile : sums) {
    for (Float4& sum : tile) settle(sum);
  }
}

// Every lane of the wave multiplies; the products of FP8, bf16 and fp16 are summed in fp32.
template <Dtype kType>
struct DenseForm {
  static constexpr u32 kColumns = kDenseColumns;
  static constexpr u32 kValues = 4;  // results a lane holds after fold()
  static constexpr u32 kTogether = 1;  // waves that work on the same k side by side
  static constexpr bool kIsWidened = kWaveSize == 32 && kType == Dtype::kE4m3fn;
  using Weights = Operand<kRowLoads, kIsWidened>;
  using Fragment = Operand<1, kIsWidened>;

  // Place of (activation row, quarter) in a step's LDS block, in 16-byte units, free of conflicts.
  static MI300_DEVICE u32 place(u32 row, u32 quarter, [[maybe_unused]] u32 rows) {
#if defined(__AMDGCN__)
    return quarter * rows + row;
#else
    return row * 4 + quarter;
#endif
  }
  static MI300_DEVICE u32 lds_rows(u32 m) { return m; }

  static MI300_DEVICE void put(U32x4* block, u32 row, u32 quarter, u32 rows, U32x4 words) {
    block[place(row, quarter, rows)] = words;
  }

  static MI300_DEVICE Fragment fragment(const U32x4* block, u32 first_row, u32 rows) {
    u32 row = valid_row(first_row + lane_row(), rows);
    const U32x4 words[1] = {block[place(row, lane_quarter(), rows)]};
    return to_operand<kIsWidened>(words);
  }

  static MI300_DEVICE Weights weights(const U32x4 (&words)[kRowLoads]) {
    return to_operand<kIsWidened>(words);
  }

  static MI300_DEVICE void multiply(Float4& sum, const Weights& weight, const Fragment& act) {
#if defined(__AMDGCN__)
    sum = mfma<kType>(weight.words[0][0].xy, act.words[0][0].xy, sum);
    sum = mfma<kType>(weight.words[0][0].zw, act.words[0][0].zw, sum);
#else
    for (u32 half = 0; half < (kIsWidened ? 2 : 1); ++half) {
      const U32x4 w0 = weight.words[0][half], w1 = weight.words[1][half], a = act.words[0][half];
      mma_sync<kType>(sum, w0.x, w1.x, w0.y, w1.y, a.x, a.y);
      mma_sync<kType>(sum, w0.z, w1.z, w0.w, w1.w, a.z, a.w);
    }
#endif
  }


  template <u32 kTiles, u32 kGroups>
  static MI300_DEVICE void multiply_stage(Float4 (&sums)[kTiles][kGroups],
                                          const StageWords<kTiles>& stage, const U32x4* block,
                                          u32 rows) {
    multiply_steps<DenseForm>(sums, stage, block, rows);
  }

  static MI300_DEVICE u32 tile_row(const SkinnyGemmArgs&, u32 row_wave, u32 tile, u32 tiles) {
    return (row_wave * tiles + tile) * kTileRows;
  }
  static MI300_DEVICE bool is_tile_row(const SkinnyGemmArgs&, u32, u32) { return true; }
  static MI300_DEVICE Float4 fold(Float4 sum) { return sum; }
#if defined(__AMDGCN__)
  static MI300_DEVICE u32 value_row(u32 i) { return 4 * (lane_index() / 16) + i; }
  static MI300_DEVICE u32 value_column(u32) { return lane_index() % 16; }
#else
  static MI300_DEVICE u32 value_row(u32 i) { return lane_index() / 4 + 8 * (i / 2); }
  static MI300_DEVICE u32 value_column(u32 i) { return 2 * (lane_index() % 4) + i % 2; }
#endif
};

#if defined(__AMDGCN__)
// Eight dense activation rows as sixteen 4:2 sparse ones: sparse row 2r holds bytes 0 and 1 of every
// group of four of dense row r, sparse row 2r+1 bytes 2 and 3, so each dense row is the sum of two
// sparse ones. A step is one instruction, half the matrix cycles of the dense form.
struct SparseForm {
  static constexpr u32 kColumns = 8;
  static constexpr u32 kValues = 2;
  static constexpr u32 kTogether = 1;
  using Weights = Operand<1, false>;
  using Fragment = U32x2;

  static MI300_DEVICE u32 place(u32 row, u32 quarter, u32 rows) { return quarter * rows + row; }

  static MI300_DEVICE u32 lds_rows(u32 m) { return m; }

  // Bytes of the even sparse row, then bytes of the odd one: neighbouring lanes read neighbours.
  static MI300_DEVICE void put(U32x4* block, u32 row, u32 quarter, u32 rows, U32x4 words) {
    block[place(row, quarter, rows)] = {__builtin_amdgcn_perm(words.y, words.x, 0x05040100),
                                        __builtin_amdgcn_perm(words.w, words.z, 0x05040100),
                                        __builtin_amdgcn_perm(words.y, words.x, 0x07060302),
                                        __builtin_amdgcn_perm(words.w, words.z, 0x07060302)};
  }

  static MI300_DEVICE Fragment fragment(const U32x4* block, u32 first_row, u32 rows) {
    u32 row = valid_row(first_row + lane_index() % 16 / 2, rows);
    return ((const U32x2*)(block + place(row, lane_quarter(), rows)))[lane_index() % 2];
  }

  static MI300_DEVICE Weights weights(const U32x4 (&words)[kRowLoads]) {
    return to_operand<false>(words);
  }

  static MI300_DEVICE void multiply(Float4& sum, const Weights& weight, Fragment act) {
    using Int2 = i32 __attribute__((ext_vector_type(2)));
    using Int4 = i32 __attribute__((ext_vector_type(4)));
    // Two bits a packed byte: which place of its group of four it takes.
    i32 places = lane_index() % 2 == 0 ? 0x4444 : 0xEEEE;
    sum = __builtin_amdgcn_smfmac_f32_16x16x64_fp8_fp8(bit_cast<Int2>(act),
                                                       bit_cast<Int4>(weight.words[0][0]), sum, places, 0, 0);
  }


  template <u32 kTiles, u32 kGroups>
  static MI300_DEVICE void multiply_stage(Float4 (&sums)[kTiles][kGroups],
                                          const StageWords<kTiles>& stage, const U32x4* block,
                                          u32 rows) {
    multiply_steps<SparseForm>(sums, stage, block, rows);
  }

  static MI300_DEVICE u32 tile_row(const SkinnyGemmArgs&, u32 row_wave, u32 tile, u32 tiles) {
    return (row_wave * tiles + tile) * kTileRows;
  }
  static MI300_DEVICE bool is_tile_row(const SkinnyGemmArgs&, u32, u32) { return true; }
  static MI300_DEVICE Float4 fold(Float4 sum) { return {sum.x + sum.y, sum.z + sum.w, 0, 0}; }
  static MI300_DEVICE u32 value_row(u32) { return lane_index() % 16; }
  static MI300_DEVICE u32 value_column(u32 i) { return 2 * (lane_index() / 16) + i; }
};
#endif

}  // namespace mi300
