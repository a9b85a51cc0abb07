// sm_90's matrix instruction for four waves side by side (wgmma): 64 weight rows at a time.
//
// It multiplies FP8 in hardware, which mma.sync does not, and takes the activations straight from
// LDS. Each wave brings 16 rows from its registers, in the layout that mma.sync has too. PTX ISA 8.0,
// section 9.7.14: register fragments, matrix descriptors, core matrices.
#pragma once

#include <mi300/matrix.h>

namespace mi300 {

#if !defined(__AMDGCN__)

// One instruction: 32 bytes of k, `is_sum` adds to `sums`, else they are overwritten. The operand
// lists differ by width and the mnemonic by dtype, and neither can be a template argument.
#define MI300_WGMMA_8(NAME, TAIL)                                                       \
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %9, 0;\n"                                \
               "wgmma.mma_async.sync.aligned.m64n8" NAME                                \
               " {%0,%1,%2,%3}, {%4,%5,%6,%7}, %8, p, 1, 1" TAIL "; }"                  \
               : "+f"(d[0].x), "+f"(d[0].y), "+f"(d[0].z), "+f"(d[0].w)                 \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(is_sum))
#define MI300_WGMMA_16(NAME, TAIL)                                                      \
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %13, 0;\n"                               \
               "wgmma.mma_async.sync.aligned.m64n16" NAME                               \
               " {%0,%1,%2,%3,%4,%5,%6,%7}, {%8,%9,%10,%11}, %12, p, 1, 1" TAIL "; }"   \
               : "+f"(d[0].x), "+f"(d[0].y), "+f"(d[0].z), "+f"(d[0].w),                \
                 "+f"(d[1].x), "+f"(d[1].y), "+f"(d[1].z), "+f"(d[1].w)                 \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(is_sum))
#define MI300_WGMMA_32(NAME, TAIL)                                                      \
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %21, 0;\n"                               \
               "wgmma.mma_async.sync.aligned.m64n32" NAME                               \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15},"              \
               " {%16,%17,%18,%19}, %20, p, 1, 1" TAIL "; }"                            \
               : "+f"(d[0].x), "+f"(d[0].y), "+f"(d[0].z), "+f"(d[0].w),                \
                 "+f"(d[1].x), "+f"(d[1].y), "+f"(d[1].z), "+f"(d[1].w),                \
                 "+f"(d[2].x), "+f"(d[2].y), "+f"(d[2].z), "+f"(d[2].w),                \
                 "+f"(d[3].x), "+f"(d[3].y), "+f"(d[3].z), "+f"(d[3].w)                 \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(is_sum))
#define MI300_WGMMA_64(NAME, TAIL)                                                      \
  asm volatile("{ .reg .pred p; setp.ne.u32 p, %37, 0;\n"                               \
               "wgmma.mma_async.sync.aligned.m64n64" NAME                               \
               " {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"               \
               "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31},"      \
               " {%32,%33,%34,%35}, %36, p, 1, 1" TAIL "; }"                            \
               : "+f"(d[0].x), "+f"(d[0].y), "+f"(d[0].z), "+f"(d[0].w),                \
                 "+f"(d[1].x), "+f"(d[1].y), "+f"(d[1].z), "+f"(d[1].w),                \
                 "+f"(d[2].x), "+f"(d[2].y), "+f"(d[2].z), "+f"(d[2].w),                \
                 "+f"(d[3].x), "+f"(d[3].y), "+f"(d[3].z), "+f"(d[3].w),                \
                 "+f"(d[4].x), "+f"(d[4].y), "+f"(d[4].z), "+f"(d[4].w),                \
                 "+f"(d[5].x), "+f"(d[5].y), "+f"(d[5].z), "+f"(d[5].w),                \
                 "+f"(d[6].x), "+f"(d[6].y), "+f"(d[6].z), "+f"(d[6].w),                \
                 "+f"(d[7].x), "+f"(d[7].y), "+f"(d[7].z), "+f"(d[7].w)                 \
               : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(is_sum))
#define MI300_WGMMA_TYPES(WIDTH)                                 \
  if constexpr (kType == Dtype::kE4m3fn) {                       \
    MI300_WGMMA_##WIDTH("k32.f32.e4m3.e4m3", "");                \
  } else if constexpr (kType == Dtype::kBf16) {                  \
    MI300_WGMMA_##WIDTH("k16.f32.bf16.bf16", ", 0");             \
  } else {                                                       \
    MI300_WGMMA_##WIDTH("k16.f32.f16.f16", ", 0");               \
  }

template <Dtype kType, u32 kGroups>
MI300_DEVICE void wgmma(Float4 (&d)[kGroups], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, u32 is_sum) {
  static_assert(kGroups == 1 || kGroups == 2 || kGroups == 4 || kGroups == 8);
  if constexpr (kGroups == 1) {
    MI300_WGMMA_TYPES(8)
  } else if constexpr (kGroups == 2) {
    MI300_WGMMA_TYPES(16)
  } else if constexpr (kGroups == 4) {
    MI300_WGMMA_TYPES(32)
  } else {
    MI300_WGMMA_TYPES(64)
  }
}

#undef MI300_WGMMA_TYPES
#undef MI300_WGMMA_64
#undef MI300_WGMMA_32
#undef MI300_WGMMA_16
#undef MI300_WGMMA_8

// Four waves multiply together. A stage's products are summed by the instruction and then added to
// the fp32 sums by ordinary additions: the instruction keeps fewer bits of an FP8 sum than fp32 has.
template <Dtype kType, u32 kWidth>
struct WaveGroupForm {
  static constexpr u32 kColumns = 8;
  static constexpr u32 kValues = 4;
  static constexpr u32 kTogether = 4;

  static MI300_DEVICE u32 lds_rows(u32) { return kWidth * kColumns; }

  // A step's block: for each 8 activation rows four core matrices of 8 rows x 16 bytes. Instruction
  // i takes core matrices 2i and 2i+1, so a lane's four words of weights meet these bytes of k.
  static MI300_DEVICE void put(U32x4* block, u32 row, u32 quarter, u32, U32x4 words) {
    u32* core = (u32*)(block + row / 8 * 32 + row % 8) + quarter;
    core[0] = words.x;
    core[32] = words.y;
    core[64] = words.z;
    core[96] = words.w;
  }

  // The matrix instruction reads LDS past the ordinary path: its proxy must see what put() wrote.
  static MI300_DEVICE void publish() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  }

  // Keeps the registers' values where they are, in the order of the program.
  template <u32 kTiles, u32 kGroups>
  static MI300_DEVICE void pin(Float4 (&parts)[kTiles][kGroups]) {
#pragma unroll
    for (u32 tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (u32 group = 0; group < kGroups; ++group) {
        Float4& part = parts[tile][group];
        asm volatile("" : "+f"(part.x), "+f"(part.y), "+f"(part.z), "+f"(part.w)::"memory");
      }
    }
  }

  // Core matrices without swizzle: 128 bytes apart along k, 512 along the activation rows.
  static MI300_DEVICE u64 descriptor(const U32x4* block) {
    return ((u64)(lds_address(block) & 0x3ffff) >> 4) | ((u64)(128 >> 4) << 16) |
           ((u64)(512 >> 4) << 32);
  }

  template <u32 kTiles, u32 kGroups>
  static MI300_DEVICE void multiply_stage(Float4 (&sums)[kTiles][kGroups],
                                          const StageWords<kTiles>& stage, const U32x4* block, u32) {
    static_assert(kGroups == kWidth);
    Float4 parts[kTiles][kGroups] = {};
    pin(parts);  // no move of a register may come between the instructions
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (u32 step = 0; step < kStageSteps; ++step) {
      const u64 b = descriptor(block + step * 4 * kWidth * kColumns);
#pragma unroll
      for (u32 tile = 0; tile < kTiles; ++tile) {
        const U32x4 w0 = stage.words[tile][step][0], w1 = stage.words[tile][step][1];
        wgmma<kType>(parts[tile], w0.x, w1.x, w0.y, w1.y, b, step != 0);
        wgmma<kType>(parts[tile], w0.z, w1.z, w0.w, w1.w, b + (256 >> 4), 1);
      }
    }
    asm volatile("wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;" ::: "memory");
    pin(parts);
#pragma unroll
    for (u32 tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (u32 group = 0; group < kGroups; ++group) sums[tile][group] += parts[tile][group];
    }
  }

  static MI300_DEVICE Float4 fold(Float4 sum) { return sum; }
  static MI300_DEVICE u32 value_row(u32 i) { return lane_index() / 4 + 8 * (i / 2); }
  static MI300_DEVICE u32 value_column(u32 i) { return 2 * (lane_index() % 4) + i % 2; }
};

#endif

}  // namespace mi300
