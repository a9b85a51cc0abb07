// The plans of a process's skinny GEMMs: the rule's, made at a kind's first call, or chosen ones.
#pragma once

#include <array>
#include <map>
#include <mutex>
#include <shared_mutex>

#include "gemm_plan.h"

namespace mi300 {

class GemmPlans {
 public:
  static GemmPlans& instance() {
    static GemmPlans plans;
    return plans;
  }

  // The plan of a call; its launches have the operands of another call of the kind.
  GemmPlan find(const GemmProblem& problem, int device, const DeviceInfo& info) {
    const Key key = key_of(problem, device);
    {
      std::shared_lock lock(mutex_);
      if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
    }
    const GemmPlan plan = plan_gemm(problem, info);
    std::unique_lock lock(mutex_);
    return plans_.emplace(key, plan).first->second;
  }

  // Has calls of the problem's kind cut in a given way from now on; false if they cannot be.
  bool choose(GemmProblem problem, int device, const DeviceInfo& info, const GemmShape& shape) {
    const bool is_vendor = shape.form == GemmForm::kVendor;
    problem.form = is_vendor ? GemmForm::kAny : shape.form;
    const bool is_legal = is_vendor || (has_gemm_kernel(problem, info) &&
                                        is_gemm_form(problem, shape.form, info) &&
                                        is_gemm_legal(shape, problem.args, info));
    if (!is_legal) return false;
    const GemmPlan plan = make_gemm_plan(shape, problem, info);
    std::unique_lock lock(mutex_);
    plans_.insert_or_assign(key_of(problem, device), plan);
    return true;
  }

 private:
  using Key = std::array<uint64_t, 6>;

  // What plan_gemm reads of a problem, and the dtypes, by which a measured plan may differ too. A
  // decode step asks for the same few.
  static Key key_of(const GemmProblem& problem, int device) {
    const SkinnyGemmArgs& args = problem.args;
    return {uint64_t{args.n} << 32 | args.row_bytes,
            uint64_t{args.more[0].n} << 32 | args.more[1].n,
            uint64_t{args.m} << 32 | static_cast<uint32_t>(problem.operand),
            static_cast<uint64_t>(device),
            uint64_t{is_gemm_aligned(args)} | (has_gemm_vectors(args) ? 2u : 0u) |
                (args.addend != nullptr ? 4u : 0u) | (args.quant.scale != nullptr ? 8u : 0u),
            uint64_t{args.out_type} << 16 | args.bias_type << 8 | args.addend_type};
  }

  std::shared_mutex mutex_;
  std::map<Key, GemmPlan> plans_;
};

}  // namespace mi300
