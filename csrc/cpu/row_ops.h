// What the norm and the activation operators share: input checks, row views, outputs, and the loop
// that turns rows of y into outputs.
//
// A producer computes y; everything after y (storing it, amax, scales, codes) is written once, in
// `run_rows`. Work is cut into chunks of kChunk elements, whatever the number of threads, and
// partial sums are added in chunk order, so results are the same bits for any thread count.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <c10/util/MaybeOwned.h>
#include <c10/util/SmallVector.h>

#include <memory>
#include <optional>
#include <vector>

#include "quantize.h"

namespace mi300 {

// Elements below which another thread costs more than it saves (one OpenMP region is 2 to 5 us).
constexpr int64_t kGrain = 16384;
// Elements of a row from which several threads share it: each of its passes is a region.
constexpr int64_t kLongRow = 4 * kGrain;

// A tensor as rows: `row(i)` starts row i, elements within a row are adjacent.
struct Rows {
  c10::MaybeOwned<at::Tensor> owner;  // keeps a contiguous copy alive
  at::ScalarType dtype;
  const char* data;
  int64_t row_bytes;

  const char* row(int64_t i) const { return data + i * row_bytes; }
  template <typename T>
  const T* at(int64_t i) const {
    return reinterpret_cast<const T*>(row(i));
  }
};

// The rows of a tensor that outlives them.
Rows as_rows(const at::Tensor& tensor);

struct Shape {
  int64_t rows;
  int64_t hidden;
};

// Checks the inputs as the fake kernels do and returns the common shape.
Shape check_rows(const char* op, const at::Tensor& first, const at::Tensor* second,
                 const at::Tensor* weight);
void check_float(const char* op, const char* name, at::ScalarType dtype);

struct StaticTarget {
  Quantizer quantizer;
  c10::SmallVector<float, 4> scales;
  bool return_y;

  StaticTarget(const char* op, at::TensorList scale_tensors, Quantizer quantizer, bool return_y);
};

struct DynamicTarget {
  Quantizer quantizer;
  DynamicScale rule;
  int64_t group_size;
  bool return_y;
};

// Outputs of one call; undefined tensors are not wanted.
struct RowOutputs {
  at::Tensor q, scale, y;
  at::ScalarType y_dtype = at::kFloat;

  int64_t y_size() const { return static_cast<int64_t>(c10::elementSize(y_dtype)); }
  // Where y of an element belongs, null if it is not wanted.
  char* y_at(int64_t offset) const {
    return y.numel() == 0 ? nullptr : static_cast<char*>(y.data_ptr()) + offset * y_size();
  }
};

// at::empty that asks for huge pages where the tensor is large. glibc maps 32 MB and more afresh for
// every call: writing 33 MB for the first time took 19 ms in small pages and 7 ms in huge ones.
at::Tensor empty_rows(at::IntArrayRef shape, const at::TensorOptions& options);

// Makes the outputs (`y` of shape [0] when it is not wanted).
RowOutputs make_outputs(const at::Tensor& like, at::ScalarType y_dtype, bool return_y);
void add_static_output(RowOutputs& out, const at::Tensor& like, const StaticTarget& target);
void add_dynamic_output(const char* op, RowOutputs& out, const at::Tensor& like,
                        const DynamicTarget& target);

// Quantises row `row`, whose y is in `y`, by groups.
void quantize_groups(const DynamicTarget& target, const RowOutputs& out, int64_t row,
                     int64_t hidden, const char* y);
// Quantises the whole tensor `kept.y` with one scale from the largest magnitudes of its rows.
void quantize_tensor(const DynamicTarget& target, const RowOutputs& kept,
                     const std::vector<float>& row_amax, Shape shape);

// Largest |y| of n elements, NaN if there is one.
float max_magnitude(at::ScalarType y_dtype, const char* y, int64_t n);

// Scratch for one row of y; small ones are kept by the thread.
class RowScratch {
 public:
  explicit RowScratch(int64_t bytes);
  char* data() { return data_; }

 private:
  std::unique_ptr<char[]> own_;
  char* data_;
};

// Calls f(begin, count) for each chunk of a row, on several threads if the row is long enough.
template <typename F>
inline void for_chunks(int64_t hidden, F&& f) {
  const auto run = [&](int64_t begin, int64_t end) {
    for (; begin < end; begin += kChunk) f(begin, std::min(kChunk, end - begin));
  };
  if (hidden < kLongRow) return run(0, hidden);
  const int64_t chunks = (hidden + kChunk - 1) / kChunk;
  at::parallel_for(0, chunks, kGrain / kChunk, [&](int64_t first, int64_t last) {
    run(first * kChunk, std::min(last * kChunk, hidden));
  });
}

// Calls f(row) for each row; one row or few long ones leave the threads to `for_chunks`.
template <typename F>
inline void for_rows(Shape shape, F&& f) {
  const auto run = [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) f(row);
  };
  const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, shape.hidden));
  const bool is_long = shape.hidden >= kLongRow && shape.rows < at::get_num_threads();
  if (is_long || shape.rows <= grain) return run(0, shape.rows);
  at::parallel_for(0, shape.rows, grain, run);
}

// A producer has
//   Statistic prepare(row): whatever y needs from the whole row first;
//   void produce(row, statistic, begin, n, y): writes n <= kChunk elements, of y_dtype, to `y`.
template <typename Producer>
void run_plain(const Producer& producer, Shape shape, const RowOutputs& out,
               const StaticTarget* target) {
  for_rows(shape, [&](int64_t row) {
    const auto statistic = producer.prepare(row);
    for_chunks(shape.hidden, [&](int64_t begin, int64_t n) {
      alignas(64) float local[kChunk];
      const int64_t offset = row * shape.hidden + begin;
      char* y = out.y_at(offset);
      if (y == nullptr) y = reinterpret_cast<char*>(local);
      producer.produce(row, statistic, begin, n, y);
      if (target == nullptr) return;
      auto* q = static_cast<uint8_t*>(out.q.data_ptr()) + offset;
      for (float scale : target->scales) {
        target->quantizer.run(scale, out.y_dtype, y, n, q);
        q += shape.rows * shape.hidden;
      }
    });
  });
}

template <typename Producer>
void run_dynamic(const Producer& producer, Shape shape, const RowOutputs& out,
                 const DynamicTarget& target) {
  const bool whole_tensor = target.group_size == 0;
  std::vector<float> row_amax;
  if (whole_tensor) row_amax.assign(static_cast<size_t>(shape.rows), 0.0f);
  RowOutputs with_y;
  const bool lacks_y = whole_tensor && !target.return_y;
  if (lacks_y) {
    with_y = out;
    with_y.y = empty_rows({shape.rows, shape.hidden}, out.q.options().dtype(out.y_dtype));
  }
  const RowOutputs& kept = lacks_y ? with_y : out;
  const int64_t size = out.y_size();
  for_rows(shape, [&](int64_t row) {
    const auto statistic = producer.prepare(row);
    char* y = kept.y_at(row * shape.hidden);
    RowScratch scratch(y == nullptr ? shape.hidden * size : 0);
    if (y == nullptr) y = scratch.data();
    for_chunks(shape.hidden, [&](int64_t begin, int64_t n) {
      producer.produce(row, statistic, begin, n, y + begin * size);
    });
    if (whole_tensor) {
      row_amax[static_cast<size_t>(row)] = max_magnitude(out.y_dtype, y, shape.hidden);
    } else {
      quantize_groups(target, out, row, shape.hidden, y);
    }
  });
  if (whole_tensor) quantize_tensor(target, kept, row_amax, shape);
}

// Runs a producer without quantisation.
template <typename Producer>
RowOutputs run_rows(const at::Tensor& like, const Producer& producer, at::ScalarType y_dtype) {
  const RowOutputs out = make_outputs(like, y_dtype, true);
  run_plain(producer, producer.shape(), out, nullptr);
  return out;
}

// ... with static scales.
template <typename Producer>
RowOutputs run_rows(const at::Tensor& like, const Producer& producer, at::ScalarType y_dtype,
                    const StaticTarget& target) {
  RowOutputs out = make_outputs(like, y_dtype, target.return_y);
  add_static_output(out, like, target);
  run_plain(producer, producer.shape(), out, &target);
  return out;
}

// ... with scales made from the values.
template <typename Producer>
RowOutputs run_rows(const at::Tensor& like, const Producer& producer, at::ScalarType y_dtype,
                    const char* op, const DynamicTarget& target) {
  RowOutputs out = make_outputs(like, y_dtype, target.return_y);
  add_dynamic_output(op, out, like, target);
  run_dynamic(producer, producer.shape(), out, target);
  return out;
}

}  // namespace mi300
