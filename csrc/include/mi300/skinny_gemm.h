// Skinny GEMM: out[m, n] = round(scale_a[m] * scale_b[n] * (a[m, :] . w[n, :]) + bias[n]) (+ addend).
//
// Bound: the weights' bytes, read once; at m <= 64 the matrix instructions are far from their limit.
// A workgroup takes a group of weight rows and one part of k; its waves share the rows, k, or both.
// Sums are fp32 and added in an order that the plan alone fixes: lanes and iterations in the matrix
// instruction, then the waves by index, then the parts of k by index (through the LDS of a cluster on
// sm_90, through `partial` and a second kernel on gfx942). Output is written once and never read.
#pragma once

#include <mi300/fp8.h>
#include <mi300/gemm_results.h>
#include <mi300/wave_group.h>
#include <mi300/weight_stream.h>

namespace mi300 {

// Writes into the LDS of workgroup `rank` of this cluster, at the place that `slot` has in ours.
MI300_DEVICE void store_peer4(Float4* slot, [[maybe_unused]] u32 rank, Float4 value) {
#if defined(__AMDGCN__)
  *slot = value;
#else
  asm volatile(
      "{ .reg .b32 peer;\n mapa.shared::cluster.u32 peer, %0, %1;\n"
      "st.shared::cluster.v4.f32 [peer], {%2, %3, %4, %5}; }" ::"r"(lds_address(slot)),
      "r"(rank), "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
#endif
}

constexpr u32 kRowPad = 4;  // floats; keeps the lanes' partial sums in different LDS banks

template <class Form, class Stream, class Unit, bool kAligned, u32 kGroups, u32 kTiles>
class SkinnyGemm {
 public:
  MI300_DEVICE SkinnyGemm(const SkinnyGemmArgs& args, U32x4* lds)
      : args_(args), threads_(args.waves * Stream::kRoles * kWaveSize), wave_(wave_index() < args.waves ? wave_index() : wave_index() - args.waves) {
    const u32 cluster = cluster_index(args.splits);
    part_ = kHasClusters ? cluster_rank() : group_index() - cluster * args.splits;
    set_ = wave_uniform(set_of_team(args, cluster));
    constexpr u32 kTogether = Form::kTogether;
    const u32 team = wave_ / kTogether;
    k_wave_ = team & (args.k_waves - 1);  // a power of two
    row_wave_ = (team >> args.k_shift) * kTogether + wave_ % kTogether;
    lds_rows_ = Form::lds_rows(args.m);
    rows_ = args.rows;
    first_stage_ = part_ * args.split_stages;
    limit_ = (first_stage_ + args.split_stages) * kStageBytes;
    limit_ = limit_ < args.row_bytes ? limit_ : args.row_bytes;
    iterations_ = (args.split_stages + args.k_waves - 1) >> args.k_shift;
    ring_ = lds;
    activations_ = lds + Stream::lds_words(args);
    sums_ = (float*)activations_;
    if constexpr (!Stream::kBringsActivations) {
      sums_ = (float*)(activations_ + args.chunk * args.k_waves * kStageSteps * 4 * lds_rows_);
    }
    received_ = (Float4*)(sums_ + args.k_waves * args.m * (rows_ + kRowPad));
    is_cluster_ = kHasClusters && args.splits > 1;
  }

  MI300_DEVICE void run() {
    if (is_cluster_) cluster_arrive();
    const GemmSet set = pick_set(args_, set_);
    StreamPlace place{(const char*)set.weight, (const char*)set.activation, set.weight_stride, set.n,
                      set.row_groups, row_wave_ * kTiles * kTileRows, rows_, first_stage_, k_wave_,
                      args_.k_waves, limit_, cluster_index(args_.splits) - set.first_team, set.teams,
                      wave_, row_wave_};
    Stream stream(args_, place, ring_);
    const bool is_resident = !Stream::kBringsActivations && args_.chunk >= iterations_;
    if (args_.is_early) stream.open();
    wait_for_previous_kernel();
    allow_next_kernel();  // not before: see memory.h
    if constexpr (Stream::kBringsActivations) {
      stream.open_activations(args_.is_early);
      if (!args_.is_early) stream.open();
    } else if (is_resident) {
      fill_activations(0, [&] {
        if (!args_.is_early) stream.open();
      });
      barrier();
    } else if (!args_.is_early) {
      stream.open();
    }
    const u32 groups = set.row_groups;
    u32 unfinished = groups;  // a group whose parts are on their way to their owners
#pragma unroll 1
    for (u32 group = place.first_group; group < groups; group += place.group_step) {
      Float4 sums[kTiles][kGroups] = {};
      // Loaded here, so that they have arrived when the results are finished.
      Terms terms = kHasAsyncCopy ? first_terms(is_cluster_ ? unfinished : group) : Terms{};
#pragma unroll 1
      for (u32 first = 0; first < iterations_; first += args_.chunk) {
        u32 count = iterations_ - first < args_.chunk ? iterations_ - first : args_.chunk;
        stream.begin(group, first, count);
        if constexpr (!Stream::kBringsActivations) {
          if (!is_resident) {
            barrier();
            fill_activations(first, [] {});
            barrier();
          }
        }
        stream.run(count, [&](const auto& stage, u32 i) { multiply(sums, stage, i); });
      }
      if (is_cluster_) cluster_wait();  // the peers run; the group before has been handed over
      if (unfinished < groups) finish(unfinished, terms);
      reduce(group, sums, stream.is_consumer(), terms);
      if (is_cluster_) unfinished = group;
    }
    if (is_cluster_) cluster_wait();
    if (unfinished < groups) finish(unfinished, first_terms(unfinished));
  }

 private:
  // Arranges the activations of `chunk` iterations from `first` on in LDS, zeros past the end of k.
  // `started()` is called once the first loads are under way: they come before those of weights,
  // behind which they would wait for long.
  template <class Started>
  MI300_DEVICE void fill_activations(u32 first, const Started& started) {
    const SkinnyGemmArgs& args = *read_again(&args_);
    const char* activation = (const char*)pick_set(args_, opaque(set_)).activation;
    constexpr u32 kBatch = !kAligned ? 1 : kHasAsyncCopy ? 8 : 4;  // loads of a thread under way
    const u32 quarters = args.chunk * args.k_waves * kStageSteps * 4, total = quarters * args.m;
    const u32 base = (first_stage_ + first * args.k_waves) * kStageBytes;
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
        const char* from = activation + row * args.activation_stride + offset;
        words[i] = U32x4{0, 0, 0, 0};
        if (row < args.m && offset < limit_) {
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
      if (start == thread_index()) started();
#pragma unroll
      for (u32 i = 0; i < kBatch; ++i) {
        if (rows[i] >= args.m) continue;
        U32x4* block = activations_ + at[i] / 4 * 4 * lds_rows_;
        Form::put(block, rows[i], at[i] % 4, lds_rows_, words[i]);
      }
    }
    if (thread_index() >= total) started();
  }

  template <class Stage>
  MI300_DEVICE void multiply(Float4 (&sums)[kTiles][kGroups], const Stage& stage, u32 i) {
    if constexpr (Stream::kBringsActivations) {
      Form::multiply_stage(sums, stage);
    } else {
      const U32x4* block =
          activations_ + (i * args_.k_waves + k_wave_) * kStageSteps * 4 * lds_rows_;
      Form::multiply_stage(sums, stage, block, lds_rows_);
    }
  }

  // Adds the waves' sums in order of their index, then the parts of k, and writes the results.
  MI300_DEVICE void reduce(u32 group, const Float4 (&sums)[kTiles][kGroups], bool has_sums,
                           Terms terms) {
    const SkinnyGemmArgs& args = *read_again(&args_);
    const u32 pitch = opaque(rows_ + kRowPad);
#pragma unroll
    for (u32 tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (u32 columns = 0; columns < kGroups; ++columns) {
        Float4 folded = Form::fold(sums[tile][columns]);
#pragma unroll
        for (u32 i = 0; i < Form::kValues; ++i) {
          u32 column = columns * Form::kColumns + Form::value_column(i);
          u32 row = Form::tile_row(args, row_wave_, tile, kTiles) + Form::value_row(i);
          if (!Form::is_tile_row(args, row_wave_, Form::value_row(i))) continue;
          if (has_sums && column < args.m) sums_[(k_wave_ * args.m + column) * pitch + row] = folded[i];
        }
      }
    }
    barrier();
    const u32 quads = rows_ / 4 * args.m;
#pragma unroll 1
    for (u32 quad = thread_index(); quad < quads; quad += threads_) {
      const u32 column = divide_by(quad, args.quads_inverse);
      const u32 row = (quad - column * (rows_ / 4)) * 4;
      Float4 sum = *(const Float4*)(sums_ + column * pitch + row);
      for (u32 wave = 1; wave < args.k_waves; ++wave) {
        sum += *(const Float4*)(sums_ + (wave * args.m + column) * pitch + row);
      }
      if (args.splits == 1) {
        if (!kHasAsyncCopy || quad != thread_index()) terms = quad_terms(group, quad);
        write_quad(group, quad, sum, terms);
      } else if constexpr (kHasClusters) {
        const u32 owner = divide_by(quad, args.share_inverse);
        const u32 place = (parity_ * args.splits + part_) * args.share;
        store_peer4(received_ + place + (quad - owner * args.share), owner, sum);
      } else {
        store_partial(group * rows_ + row, column, sum);
      }
    }
    if (is_cluster_) {
      cluster_arrive();
    } else {
      barrier();  // the next group's sums go to the same LDS
    }
  }

  MI300_DEVICE void store_partial(u32 row, u32 column, Float4 sum) {
    const GemmSet set = pick_set(args_, opaque(set_));
    const i64 first = ((i64)part_ * read_again(&args_)->m + column) * set.n + row;
#pragma unroll
    for (u32 i = 0; i < 4; ++i) {
      if (row + i < set.n) store<float>(set.partial, first + i, sum[i]);
    }
  }

  // Finishes the results of a group whose parts all workgroups of the cluster have handed over.
  //
  // NOTE: two buffers suffice: a peer writes one again only after the cluster barrier in between,
  // at which we arrive after reading it.
  MI300_DEVICE void finish(u32 group, Terms terms) {
    const SkinnyGemmArgs& args = *read_again(&args_);
    const u32 quads = rows_ / 4 * args.m, first = part_ * args.share;
    const Float4* from = received_ + parity_ * args.splits * args.share;
#pragma unroll 1
    for (u32 i = thread_index(); i < args.share && first + i < quads; i += threads_) {
      Float4 sum = from[i];
      for (u32 part = 1; part < args.splits; ++part) sum += from[part * args.share + i];
      if (i != thread_index()) terms = quad_terms(group, first + i);
      write_quad(group, first + i, sum, terms);
    }
    parity_ ^= 1;
  }

  // The terms of the first quad that this thread finishes of a group.
  MI300_DEVICE Terms first_terms(u32 group) {
    const SkinnyGemmArgs& args = *read_again(&args_);
    return quad_terms(group, (is_cluster_ ? part_ * args.share : 0) + thread_index());
  }

  MI300_DEVICE Terms quad_terms(u32 group, u32 quad) {
    const SkinnyGemmArgs& args = *read_again(&args_);
    const u32 column = divide_by(quad, args.quads_inverse);
    if (column >= args.m) return Terms{};
    // The set anew: what it has for the results would else take registers all the time.
    return load_terms(args, pick_set(args, opaque(set_)), column, quad_row(group, quad, column));
  }

  MI300_DEVICE u32 quad_row(u32 group, u32 quad, u32 column) const {
    return group * rows_ + (quad - column * (rows_ / 4)) * 4;
  }

  MI300_DEVICE void write_quad(u32 group, u32 quad, Float4 sum, const Terms& terms) {
    const SkinnyGemmArgs& args = *read_again(&args_);
    const u32 column = divide_by(quad, args.quads_inverse);
    const u32 row = quad_row(group, quad, column);
    const GemmSet set = pick_set(args, opaque(set_));
    if (row < set.n) write_results(args, set, terms, column, row, sum);
  }

  const SkinnyGemmArgs& args_;
  const u32 threads_, wave_;
  u32 set_, part_, k_wave_, row_wave_, rows_, first_stage_, limit_, iterations_, lds_rows_, parity_ = 0;
  U32x4 *ring_, *activations_;
  float* sums_;
  Float4* received_;
  bool is_cluster_;
};

// Largest workgroup of an entry: smaller where a lane holds more, so that it has the registers.
constexpr u32 max_threads(u32 columns, u32 tiles) {
  return kWaveSize == 64 || tiles > 1 || columns > 32 ? 256 : 512;
}

#if defined(__AMDGCN__)
template <Dtype kType, u32 kColumns, u32 kTiles>
MI300_DEVICE void run_dense(const SkinnyGemmArgs& args, U32x4* lds) {
  constexpr u32 kGroups = (kColumns + kDenseColumns - 1) / kDenseColumns;
  SkinnyGemm<DenseForm<kType>, WeightStream<kTiles>, u8, true, kGroups, kTiles>(args, lds).run();
}

template <u32 kTiles>
MI300_DEVICE void run_sparse(const SkinnyGemmArgs& args, U32x4* lds) {
  SkinnyGemm<SparseForm, WeightStream<kTiles>, u8, true, 1, kTiles>(args, lds).run();
}
#else
template <Dtype kType, u32 kColumns, u32 kTiles>
MI300_DEVICE void run_wave_group(const SkinnyGemmArgs& args, U32x4* lds) {
  using Stream = GroupStream<kColumns / 8, kTiles>;
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

}  // namespace mi300
