// Skinny GEMM: out[m, n] = round(scale_a[m] * scale_b[n] * (a[m, :] . w[n, :]) + bias[n]) (+ addend).
//
// Bound: the weights' bytes, read once; at m <= 64 the matrix instructions are far from their limit.
// A workgroup takes a group of weight rows and one part of k; its waves share the rows, k, or both.
// Sums are fp32 and added in an order that the plan alone fixes: lanes and iterations in the matrix
// instruction, then the waves by index, then the parts of k by index (through the LDS of a cluster on
// sm_90, through `partial` and a second kernel on gfx942). Output is written once and never read.
#pragma once

#include <mi300/wave_group.h>
#include <mi300/weight_stream.h>

namespace mi300 {

// The same value, of which the compiler knows nothing: keeps what follows from it where it is used
// instead of in registers all the time.
MI300_DEVICE u32 opaque(u32 value) {
#if defined(__AMDGCN__)
  asm volatile("" : "+s"(value));
#else
  asm volatile("" : "+r"(value));
#endif
  return value;
}

constexpr u32 kBatch = 4;   // results that a thread works on side by side
constexpr u32 kRowPad = 4;  // floats; keeps the lanes' partial sums in different LDS banks

MI300_DEVICE float round_result(Dtype type, float value) {
  if (type == Dtype::kBf16) return round_to<Dtype::kBf16>(value);
  if (type == Dtype::kF16) return round_to<Dtype::kF16>(value);
  return value;
}

MI300_DEVICE void write_result(const SkinnyGemmArgs& args, u32 column, u32 row, float sum) {
  if (args.scale_a != nullptr) {
    sum *= load<float>(args.scale_a, column * args.scale_a_step) *
           load<float>(args.scale_b, row * args.scale_b_step);
  }
  const Dtype type = (Dtype)args.out_type;
  if (args.bias != nullptr) sum += load_float((Dtype)args.bias_type, args.bias, row);
  if (args.addend != nullptr) {
    sum = round_result(type, sum) + load_float((Dtype)args.addend_type, args.addend,
                                           column * args.addend_stride + row);
  }
  store_float(type, args.out, (i64)column * args.n + row, sum);
}

template <class Form, class Stream, class Unit, bool kAligned, u32 kGroups, u32 kTiles>
class SkinnyGemm {
 public:
  MI300_DEVICE SkinnyGemm(const SkinnyGemmArgs& args, U32x4* lds)
      : args_(args), threads_(args.waves * Stream::kRoles * kWaveSize), wave_(wave_index() % args.waves) {
    part_ = group_index() % args.splits;
    constexpr u32 kTogether = Form::kTogether;
    u32 team = wave_ / kTogether;
    k_wave_ = team % args.k_waves;
    row_wave_ = team / args.k_waves * kTogether + wave_ % kTogether;
    lds_rows_ = Form::lds_rows(args.m);
    rows_ = args.waves / args.k_waves * kTiles * kTileRows;
    first_stage_ = part_ * args.split_stages;
    limit_ = (first_stage_ + args.split_stages) * kStageBytes;
    limit_ = limit_ < args.row_bytes ? limit_ : args.row_bytes;
    iterations_ = (args.split_stages + args.k_waves - 1) / args.k_waves;
    ring_ = lds;
    activations_ = lds + args.waves * Stream::kLdsWords;
    sums_ = (float*)(activations_ + args.chunk * args.k_waves * kStageSteps * 4 * lds_rows_);
    received_ = sums_ + args.k_waves * args.m * (rows_ + kRowPad);
  }

  MI300_DEVICE void run() {
    const bool is_cluster = args_.splits > 1 && args_.partial == nullptr;
    if (is_cluster) cluster_arrive();
    StreamPlace place{row_wave_ * kTiles * kTileRows, rows_,  first_stage_, k_wave_, args_.k_waves,
                      limit_, group_index() / args_.splits, args_.groups_in_grid};
    Stream stream(args_, place, ring_ + wave_ * Stream::kLdsWords);
    const bool is_resident = args_.chunk >= iterations_;
    allow_next_kernel();
    stream.prefetch();  // while the kernel ahead still runs: the caches see what it writes later
    wait_for_previous_kernel();
    stream.open();
    if (is_resident) {
      fill_activations(0);
      barrier();
    }
    if (is_cluster) cluster_wait();
#pragma unroll 1
    for (u32 group = place.first_group; group < args_.row_groups; group += place.group_step) {
      Float4 sums[kTiles][kGroups] = {};
#pragma unroll 1
      for (u32 first = 0; first < iterations_; first += args_.chunk) {
        u32 count = iterations_ - first < args_.chunk ? iterations_ - first : args_.chunk;
        stream.begin(group, first, count);
        if (!is_resident) {
          barrier();
          fill_activations(first);
          barrier();
        }
        stream.run(count, [&](const StageWords<kTiles>& stage, u32 i) { multiply(sums, stage, i); });
      }
      reduce(group, sums, stream.is_consumer());
    }
  }

 private:
  // Arranges the activations of `chunk` iterations from `first` on in LDS, zeros past the end of k.
  MI300_DEVICE void fill_activations(u32 first) {
    constexpr u32 kBatch = kAligned ? 4 : 1;  // loads of a thread under way at a time
    const u32 quarters = args_.chunk * args_.k_waves * kStageSteps * 4, total = quarters * args_.m;
    const u32 base = (first_stage_ + first * args_.k_waves) * kStageBytes;
    const u32 row_step = threads_ / quarters, quarter_step = threads_ - row_step * quarters;
    u32 row = thread_index() / quarters, quarter = thread_index() - row * quarters;
#pragma unroll 1
    for (u32 start = thread_index(); start < total; start += kBatch * threads_) {
      U32x4 words[kBatch];
      u32 rows[kBatch], at[kBatch];
#pragma unroll
      for (u32 i = 0; i < kBatch; ++i) {
        rows[i] = row;
        at[i] = quarter;
        u32 offset = base + quarter * 16;
        const char* from = (const char*)args_.activation + row * args_.activation_stride + offset;
        words[i] = U32x4{0, 0, 0, 0};
        if (row < args_.m && offset < limit_) {
          if constexpr (kAligned) {
            words[i] = load<U32x4>(from, 0);
          } else {
            words[i] = gather_bytes<Unit>(from, (i32)(limit_ - offset));
          }
        }
        quarter += quarter_step;
        row += row_step;
        if (quarter >= quarters) {
          quarter -= quarters;
          ++row;
        }
      }
#pragma unroll
      for (u32 i = 0; i < kBatch; ++i) {
        if (rows[i] >= args_.m) continue;
        U32x4* block = activations_ + at[i] / 4 * 4 * lds_rows_;
        Form::put(block, rows[i], at[i] % 4, lds_rows_, words[i]);
      }
    }
    Form::publish();
  }

  MI300_DEVICE void multiply(Float4 (&sums)[kTiles][kGroups], const StageWords<kTiles>& stage,
                             u32 i) {
    const U32x4* block =
        activations_ + (i * args_.k_waves + k_wave_) * kStageSteps * 4 * lds_rows_;
    Form::multiply_stage(sums, stage, block, lds_rows_);
  }

  // Adds the waves' sums in order of their index, then the parts of k, and writes the results.
  MI300_DEVICE void reduce(u32 group, const Float4 (&sums)[kTiles][kGroups], bool has_sums) {
    const u32 pitch = opaque(rows_ + kRowPad);
#pragma unroll
    for (u32 tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (u32 columns = 0; columns < kGroups; ++columns) {
        Float4 folded = Form::fold(sums[tile][columns]);
#pragma unroll
        for (u32 i = 0; i < Form::kValues; ++i) {
          u32 column = columns * Form::kColumns + Form::value_column(i);
          u32 row = (row_wave_ * kTiles + tile) * kTileRows + Form::value_row(i);
          if (has_sums && column < args_.m) sums_[(k_wave_ * args_.m + column) * pitch + row] = folded[i];
        }
      }
    }
    barrier();
    const u32 results = rows_ * args_.m, share = (results + args_.splits - 1) / args_.splits;
#pragma unroll 1
    for (u32 start = thread_index(); start < results; start += kBatch * threads_) {
      float values[kBatch];
      u32 columns[kBatch], rows[kBatch];
#pragma unroll
      for (u32 i = 0; i < kBatch; ++i) {
        u32 result = start + i * threads_;
        result = result < results ? result : start;
        columns[i] = result / rows_;
        rows[i] = result - columns[i] * rows_;
        values[i] = sums_[columns[i] * pitch + rows[i]];
      }
      for (u32 wave = 1; wave < args_.k_waves; ++wave) {
#pragma unroll
        for (u32 i = 0; i < kBatch; ++i) {
          values[i] += sums_[(wave * args_.m + columns[i]) * pitch + rows[i]];
        }
      }
#pragma unroll
      for (u32 i = 0; i < kBatch; ++i) {
        if (start + i * threads_ >= results) continue;
        u32 n = group * rows_ + rows[i];
        if (args_.splits == 1) {
          if (n < args_.n) write_result(args_, columns[i], n, values[i]);
        } else if (args_.partial != nullptr) {
          if (n < args_.n) {
            i64 row = (i64)part_ * args_.m + columns[i];
            store<float>(args_.partial, row * args_.n + n, values[i]);
          }
        } else {
          u32 result = start + i * threads_, owner = result / share;
          float* slot = received_ + (parity_ * args_.splits + part_) * share;
          store_peer((u32*)(slot + (result - owner * share)), owner, bit_cast<u32>(values[i]));
        }
      }
    }
    if (args_.splits > 1 && args_.partial == nullptr) {
      cluster_arrive();
      cluster_wait();
      write_received(group, results, share);
      parity_ ^= 1;
    } else if (group + args_.groups_in_grid < args_.row_groups) {
      barrier();  // the next group's sums go to the same LDS
    }
  }

  // NOTE: two buffers suffice: a peer writes one again only after the cluster barrier in between,
  // at which we arrive after reading it.
  MI300_DEVICE void write_received(u32 group, u32 results, u32 share) {
    const float* from = received_ + parity_ * args_.splits * share;
#pragma unroll 1
    for (u32 i = thread_index(); i < share && part_ * share + i < results; i += threads_) {
      float sum = from[i];
      for (u32 part = 1; part < args_.splits; ++part) sum += from[part * share + i];
      u32 result = part_ * share + i;
      u32 column = result / rows_, n = group * rows_ + (result - column * rows_);
      if (n < args_.n) write_result(args_, column, n, sum);
    }
  }

  const SkinnyGemmArgs& args_;
  const u32 threads_, wave_;
  u32 part_, k_wave_, row_wave_, rows_, first_stage_, limit_, iterations_, lds_rows_, parity_ = 0;
  U32x4 *ring_, *activations_;
  float *sums_, *received_;
};

// Largest workgroup of an entry: smaller where a lane holds more, so that it has the registers.
constexpr u32 max_threads(u32 columns, u32 tiles) {
  return kWaveSize == 64 || tiles > 1 || columns > 32 ? 256 : 512;
}

template <Dtype kType, u32 kColumns, u32 kTiles>
MI300_DEVICE void run_dense(const SkinnyGemmArgs& args, U32x4* lds) {
  constexpr u32 kGroups = (kColumns + kDenseColumns - 1) / kDenseColumns;
  using Stream = WeightStream<kTiles, kStreamDepth>;
  SkinnyGemm<DenseForm<kType>, Stream, u8, true, kGroups, kTiles>(args, lds).run();
}

#if defined(__AMDGCN__)
template <u32 kTiles>
MI300_DEVICE void run_sparse(const SkinnyGemmArgs& args, U32x4* lds) {
  using Stream = WeightStream<kTiles, kStreamDepth>;
  SkinnyGemm<SparseForm, Stream, u8, true, 1, kTiles>(args, lds).run();
}
#else
template <Dtype kType, u32 kColumns, u32 kTiles>
MI300_DEVICE void run_wave_group(const SkinnyGemmArgs& args, U32x4* lds) {
  using Stream = WeightStream<kTiles, kStreamDepth>;
  SkinnyGemm<WaveGroupForm<kType, kColumns / 8>, Stream, u8, true, kColumns / 8, kTiles>(args, lds)
      .run();
}
#endif

// Rows at any address and any number of bytes of k.
template <Dtype kType, class Unit>
MI300_DEVICE void run_unaligned(const SkinnyGemmArgs& args, U32x4* lds) {
  constexpr u32 kGroups = 64 / kDenseColumns;
  SkinnyGemm<DenseForm<kType>, GatherStream<Unit, 1>, Unit, false, kGroups, 1>(args, lds).run();
}

// Sums the parts of k in order of their index; for targets whose workgroups share no LDS.
MI300_DEVICE void sum_parts(const SkinnyGemmArgs& args, u32 index) {
  if (index >= args.m * args.n) return;
  float sum = load<float>(args.partial, index);
  for (u32 part = 1; part < args.splits; ++part) {
    sum += load<float>(args.partial, (i64)part * args.m * args.n + index);
  }
  u32 column = index / args.n;
  write_result(args, column, index - column * args.n, sum);
}

}  // namespace mi300
