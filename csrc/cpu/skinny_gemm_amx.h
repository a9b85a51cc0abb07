// The matmul by the matrix unit (AMX): bf16 and FP8 operands, the latter decoded to bf16 exactly.
//
// A step multiplies 16 weight rows of 32 k, which are loaded as they lie (bf16) or decoded into L1
// (FP8, a strip at a time), with 32 k of 16 activation rows, packed once for all threads: two k of
// every row in each line. A block of 32 columns passes all activation rows over a strip of k before
// it takes the next, so its weights are read from memory once.
//
// TDPBF16PS multiplies exactly and sums in float32, even and odd k apart over the 32 k of a step,
// and adds both to the sum so far. No blocking enters this order, so an output's bits do not depend
// on its tile, the other rows or the thread that computes it. It takes subnormal operands as zero
// and flushes subnormal sums, as torch's own mm does on these CPUs: at most 2^-126 of each other
// factor. FP8 codes, all scaled to normal bf16, lose nothing.
#pragma once

#include "skinny_gemm_ends.h"
#include "skinny_gemm_pairs.h"

#if defined(__AMX_BF16__)
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

namespace mi300 {

// Asks the kernel once for the permission to use tiles; false if it is refused.
inline bool has_tiles() {
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  static const bool is_granted = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return is_granted;
}

// All tiles with 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);
inline constexpr TileConfig kTileConfig = {};

// Sets the thread's tiles for as long as this lives.
class TileSetting {
 public:
  TileSetting() { _tile_loadconfig(&kTileConfig); }
  ~TileSetting() { _tile_release(); }
  TileSetting(const TileSetting&) = delete;
  TileSetting& operator=(const TileSetting&) = delete;
};

constexpr int64_t kTileRowCount = 16;
constexpr int64_t kTileFloats = kTileBytes / 4;
constexpr int64_t kTileDepth = 32;
// A strip of k: its weights and two parts of the activations, 16 rows of the strip, fit into L1.
constexpr int64_t kStripDepth = 256;
constexpr int64_t kPartBytes = kStripDepth / kTileDepth * kTileBytes;
// Columns of a block: two tiles of weight rows, one unit of outputs.
constexpr int64_t kBlockColumns = 2 * kTileRowCount;
static_assert(kBlockColumns == kUnit && kTileRowCount == kLanes);

// Two tiles of 16 weight rows, in memory or in scratch.
struct WeightTiles {
  const char* data;
  int64_t row_bytes, step_bytes;
};

// Weights to ask memory for, some rows' lines at each step.
struct RowsAhead {
  uintptr_t line;
  int64_t row_bytes, lines_per_row, rows_per_step;
};

inline void prefetch_tile(const char* tile) {
#pragma GCC unroll 16
  for (int64_t i = 0; i < kTileBytes; i += kLineBytes) {
    prefetch_line(reinterpret_cast<uintptr_t>(tile) + static_cast<uintptr_t>(i));
  }
}

// The products of `steps` tiles of k: sums[row tile][column tile] += them, or = with is_first.
template <int kRowTiles>
[[gnu::noinline]] void multiply_tiles(WeightTiles weights, const char* rows, int64_t steps,
                                      float* sums, bool is_first, RowsAhead ahead) {
  // The intrinsics do not tell the compiler what they read.
  std::atomic_signal_fence(std::memory_order_seq_cst);
  if (is_first) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_loadd(0, sums, kTileRowBytes);
    _tile_loadd(1, sums + kTileFloats, kTileRowBytes);
    if constexpr (kRowTiles == 2) {
      _tile_loadd(2, sums + 2 * kTileFloats, kTileRowBytes);
      _tile_loadd(3, sums + 3 * kTileFloats, kTileRowBytes);
    }
  }
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t row = 0; row < ahead.rows_per_step; ++row) {
      for (int64_t i = 0; i < ahead.lines_per_row; ++i) {
        prefetch_line(ahead.line + static_cast<uintptr_t>(i * kLineBytes));
      }
      ahead.line += static_cast<uintptr_t>(ahead.row_bytes);
    }
    if (ahead.rows_per_step == 0) {  // what follows comes from L2
      prefetch_tile(rows + 2 * kTileBytes);
      if constexpr (kRowTiles == 2) prefetch_tile(rows + kPartBytes + 2 * kTileBytes);
    }
    _tile_loadd(4, weights.data, weights.row_bytes);
    _tile_loadd(6, rows, kTileRowBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(5, weights.data + kTileRowCount * weights.row_bytes, weights.row_bytes);
    _tile_dpbf16ps(1, 5, 6);
    if constexpr (kRowTiles == 2) {
      _tile_loadd(7, rows + kPartBytes, kTileRowBytes);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
    weights.data += weights.step_bytes;
    rows += kTileBytes;
  }
  _tile_stored(0, sums, kTileRowBytes);
  _tile_stored(1, sums + kTileFloats, kTileRowBytes);
  if constexpr (kRowTiles == 2) {
    _tile_stored(2, sums + 2 * kTileFloats, kTileRowBytes);
    _tile_stored(3, sums + 3 * kTileFloats, kTileRowBytes);
  }
}

// The columns of a thread, for weights of type T.
template <typename T>
class TileRows {
 public:
  // Rows at a time: 512 of them, over a strip, and 8 blocks' weights fit into L2.
  static constexpr int64_t kRowsAtOnce = 512;
  static constexpr int64_t kColumnStep = kBlockColumns;

  static int64_t packed_floats(const GemmProblem& problem, Range rows) {
    return pack_parts(problem, rows) * kPartBytes / static_cast<int64_t>(sizeof(float));
  }

  // A strip of 16 rows is a part; those of one strip lie side by side, so that L2 holds them all.
  static int64_t pack_parts(const GemmProblem& problem, Range rows) {
    return row_tiles(rows) * ((problem.k + kStripDepth - 1) / kStripDepth);
  }
  static int64_t pack_work(const GemmProblem&) { return kTileRowCount * kStripDepth; }

  static void pack(const GemmProblem& problem, Range rows, Range parts, float* packed) {
    const int64_t tiles = row_tiles(rows);
    with_operand_type(problem.a.dtype, [&](auto zero) {
      using A = decltype(zero);
      if constexpr (kHasPairs<A>) {
        for (int64_t part = parts.begin; part < parts.end; ++part) {
          const int64_t row = rows.begin + part % tiles * kTileRowCount;
          const Range tile = {row, std::min(row + kTileRowCount, rows.end)};
          char* out = reinterpret_cast<char*>(packed) + part * kPartBytes;
          pack_part<A>(problem, tile, part / tiles * kStripDepth, out);
        }
      }
    });
  }

  TileRows(const GemmProblem& problem, Range rows, const float* packed)
      : problem_(problem), rows_(rows), packed_(reinterpret_cast<const char*>(packed)) {
    // With more rows than the L2 holds, several blocks share what is read of them.
    blocks_ = rows.end - rows.begin > kRowsInL2 ? kSharedBlocks : 1;
    static thread_local Scratch scratch;
    sums_ = scratch.floats(blocks_ * block_floats());
  }

  void run(Range columns) {
    const TileSetting setting;
    const int64_t step = blocks_ * kBlockColumns;
    for (int64_t column = columns.begin; column < columns.end; column += step) {
      const Range shared = {column, std::min(column + step, columns.end)};
      int64_t depth = 0;
      do {
        for_blocks(shared, [&](Range block, float* sums) { run_strip(block, depth, sums); });
        depth += kStripDepth;
      } while (depth < problem_.k);
      finish(shared);
    }
  }

 private:
  static constexpr int64_t kSize = sizeof(T);
  static constexpr int64_t kRowsInL2 = 64;
  static constexpr int64_t kSharedBlocks = 8;

  static int64_t row_tiles(Range rows) {
    return (rows.end - rows.begin + kTileRowCount - 1) / kTileRowCount;
  }
  int64_t block_floats() const { return 2 * row_tiles(rows_) * kTileFloats; }

  template <typename A>
  static void pack_part(const GemmProblem& problem, Range rows, int64_t depth, char* out) {
    constexpr int64_t kBytes = kGroupDepth * static_cast<int64_t>(sizeof(A));
    alignas(64) static constexpr char kZeros[kBytes] = {};
    const int64_t end = std::min(depth + kStripDepth, problem.k);
    const PairPacker<A> packer;
    for (int64_t k = depth; k < end; k += kGroupDepth) {
      const int64_t count = std::min(kGroupDepth, end - k);
      alignas(64) char rest[kTileRowCount][kBytes];
      const char* from[kTileRowCount];
      for (int64_t r = 0; r < kTileRowCount; ++r) {
        from[r] = kZeros;
        if (rows.begin + r >= rows.end) continue;
        from[r] = problem.a.row(rows.begin + r) + k * static_cast<int64_t>(sizeof(A));
        if (count == kGroupDepth) continue;
        std::memset(rest[r], 0, kBytes);
        std::memcpy(rest[r], from[r], static_cast<size_t>(count) * sizeof(A));
        from[r] = rest[r];
      }
      packer.pack(from, out + (k - depth) / kTileDepth * kTileBytes);
    }
  }

  // Calls f with each block of columns and its sums.
  template <typename F>
  void for_blocks(Range columns, F&& f) {
    float* sums = sums_;
    for (int64_t c = columns.begin; c < columns.end; c += kBlockColumns, sums += block_floats()) {
      f(Range{c, std::min(c + kBlockColumns, columns.end)}, sums);
    }
  }

  void run_strip(Range block, int64_t depth, float* sums) {
    const int64_t count = std::min(kStripDepth, problem_.k - depth);
    const int64_t steps = round_up(count, kGroupDepth) / kTileDepth;
    alignas(64) char scratch[2 * kPartBytes];
    WeightTiles weights = {problem_.weight.row(block.begin) + depth * kSize,
                           problem_.weight.row_bytes, kTileDepth * kSize};
    const bool is_whole = block.end - block.begin == kBlockColumns && count % kGroupDepth == 0;
    const int64_t tiles = row_tiles(rows_);
    // Rows that are read again and lie powers of two apart would fall into one set of L1.
    if (Decoded<T>::kIsFp8 || !is_whole || tiles > 2) {
      widen_strip(block, depth, count, scratch);
      weights = {scratch, kTileRowBytes, 2 * kTileBytes};
    }
    const char* rows = packed_ + depth / kStripDepth * tiles * kPartBytes;
    RowsAhead ahead = rows_ahead(block, depth, count);
    for (int64_t tile = 0; tile < tiles; tile += 2, rows += 2 * kPartBytes) {
      const auto multiply = tiles - tile == 1 ? multiply_tiles<1> : multiply_tiles<2>;
      multiply(weights, rows, steps, sums + 2 * tile * kTileFloats, depth == 0, ahead);
      ahead.rows_per_step = 0;
    }
  }

  // The weights of a strip as tiles of bf16, missing ones as zeros.
  void widen_strip(Range block, int64_t depth, int64_t count, char* out) const {
    const RowWidener<T> widener;
    for (int64_t row = 0; row < kBlockColumns; ++row) {
      const bool is_there = block.begin + row < block.end;
      const char* in = is_there ? problem_.weight.row(block.begin + row) + depth * kSize : nullptr;
      for (int64_t k = 0; k < count; k += kGroupDepth) {
        const int64_t left = is_there ? std::min(kGroupDepth, count - k) : 0;
        char* to = out + k / kTileDepth * 2 * kTileBytes + row * kTileRowBytes;
        if (left == kGroupDepth) {
          widener.widen(in + k * kSize, to, to + 2 * kTileBytes);
        } else {
          char rest[kGroupDepth * kSize] = {};
          if (left > 0) std::memcpy(rest, in + k * kSize, static_cast<size_t>(left * kSize));
          widener.widen(rest, to, to + 2 * kTileBytes);
        }
      }
    }
  }

  // The next strip of these rows or, at their end, the first of the next block's.
  RowsAhead rows_ahead(Range block, int64_t depth, int64_t count) const {
    const int64_t steps = kStripDepth / kTileDepth;
    const bool is_last = depth + count >= problem_.k;
    const int64_t ahead =
        is_last ? blocks_ * kBlockColumns * problem_.weight.row_bytes : (depth + count) * kSize;
    return {reinterpret_cast<uintptr_t>(problem_.weight.row(block.begin)) +
                static_cast<uintptr_t>(ahead),
            problem_.weight.row_bytes, kStripDepth * kSize / kLineBytes, kBlockColumns / steps};
  }

  // Row by row through all blocks, so that a row's outputs are written one after the other.
  void finish(Range columns) {
    const Vec factor(decoded_factor(problem_));
    const int64_t row_count = rows_.end - rows_.begin;
    with_float_type(problem_.out_dtype, [&](auto zero) {
      for (int64_t r = 0; r < row_count; r += 4) {
        for_blocks(columns, [&](Range block, const float* sums) {
          const float* tile = sums + r / kTileRowCount * 2 * kTileFloats + r % kTileRowCount;
          const Quad low = transpose_floats(tile), high = transpose_floats(tile + kTileFloats);
          for (int64_t i = 0; i < std::min<int64_t>(4, row_count - r); ++i) {
            const Pair v = {Vec(_mm512_castsi512_ps(low.v[i])) * factor,
                            Vec(_mm512_castsi512_ps(high.v[i])) * factor};
            finish_unit<decltype(zero)>(problem_, rows_.begin + r + i, block.begin,
                                        block.end - block.begin, v);
          }
        });
      }
    });
  }

  // Vector i has float i of each of a tile's 16 rows.
  static Quad transpose_floats(const float* tile) {
    const char* rows[kTileRowCount];
    for (int64_t r = 0; r < kTileRowCount; ++r) {
      rows[r] = reinterpret_cast<const char*>(tile + r * kTileRowCount);
    }
    return transpose_dwords(load_pieces(rows, 0));
  }

  const GemmProblem& problem_;
  Range rows_;
  const char* packed_;
  int64_t blocks_;
  float* sums_;
};

}  // namespace mi300
#endif
