// Owns the order of pairs and how products are cut into pieces. Computes nothing but through the kernels it is given.
#include "program/expert_groups.h"

#include <algorithm>

namespace relevo {

namespace {

constexpr int64_t PIECES_PER_THREAD = 8;  // arbitrary: groups are uneven, and a thread may be interrupted
constexpr size_t LINE_BYTES = 64;

size_t padded(size_t bytes) { return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES; }

}  // namespace

void ExpertGroups::start(int64_t num_rows, int64_t num_active) {
  num_rows_ = num_rows;
  num_active_ = num_active;
  chosen_.resize(static_cast<size_t>(num_rows * num_active));
  weights_.resize(chosen_.size());
}

void ExpertGroups::count(int64_t* counts) const {
  for (const int32_t expert : chosen_) ++counts[expert];
}

void ExpertGroups::sort(int64_t first_expert, int64_t num_experts) {
  const auto is_here = [=](int64_t expert) { return expert >= first_expert && expert < first_expert + num_experts; };
  size_t num_pairs = 0;
  first_.assign(static_cast<size_t>(num_experts + 1), 0);
  for (const int32_t expert : chosen_) {
    if (!is_here(expert)) continue;
    ++first_[static_cast<size_t>(expert - first_expert) + 1];
    ++num_pairs;
  }
  groups_.clear();
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const int64_t count = first_[static_cast<size_t>(expert) + 1], first = first_[static_cast<size_t>(expert)];
    first_[static_cast<size_t>(expert) + 1] += first;
    if (count > 0) groups_.push_back({expert, first, count});
  }
  token_of_pair_.resize(num_pairs);
  pair_of_.assign(chosen_.size(), -1);
  place_of_pair_.resize(num_pairs);
  for (int64_t row = 0; row < num_rows_; ++row) {
    for (int64_t slot = 0; slot < num_active_; ++slot) {
      const size_t place = static_cast<size_t>(row * num_active_ + slot);
      if (!is_here(chosen_[place])) continue;
      const int64_t pair = first_[static_cast<size_t>(chosen_[place] - first_expert)]++;
      token_of_pair_[static_cast<size_t>(pair)] = row;
      pair_of_[place] = pair;
      place_of_pair_[static_cast<size_t>(pair)] = static_cast<int64_t>(place);
    }
  }
}

void GroupProducts::plan(const ExpertGroups& groups, const std::vector<Matrix>& matrices,
                         const std::vector<std::vector<float>>& biases, const LinearKernels& kernels,
                         int num_threads) {
  kernels_ = &kernels;
  entries_.clear();
  jobs_.clear();
  input_bytes_ = 0;
  int64_t total_panels = 0;
  for (const ExpertGroup& group : groups.groups()) {
    const Matrix* matrix = &matrices[static_cast<size_t>(group.expert)];
    Entry entry{matrix, prepared_together(*matrix, kernels), {}};
    for (const Format format : matrix->formats) {
      entry.offsets.push_back(input_bytes_);
      input_bytes_ += padded(kernels.input_bytes(format, group.num_pairs, matrix->k));
    }
    for (const Matrix::Segment& segment : matrix->segments) {
      const auto format = std::find(matrix->formats.begin(), matrix->formats.end(), segment.linear.format);
      const int64_t panel_rows = kernels.panel_rows(segment.linear.format);
      const int64_t num_panels = (segment.linear.n + panel_rows - 1) / panel_rows;
      const float* bias = biases.empty() ? nullptr : biases[static_cast<size_t>(group.expert)].data();
      jobs_.push_back({&segment.linear, entry.offsets[static_cast<size_t>(format - matrix->formats.begin())],
                       group.first_pair, group.num_pairs, segment.first_output, num_panels, 0,
                       bias == nullptr ? nullptr : bias + segment.first_output});
      total_panels += num_panels;
    }
    entries_.push_back(std::move(entry));
  }
  panels_per_piece_ = total_panels / (num_threads * PIECES_PER_THREAD) + 1;
  num_pieces_ = 0;
  for (Job& job : jobs_) {
    job.first_piece = num_pieces_;
    num_pieces_ += (job.num_panels + panels_per_piece_ - 1) / panels_per_piece_;
  }
}

void GroupProducts::prepare(size_t group, const ExpertGroup& pairs, const float* x, int64_t first, int64_t end,
                            uint8_t* inputs) const {
  const Entry& entry = entries_[group];
  const int64_t k = entry.matrix->k;
  for (size_t i = 0; i < entry.matrix->formats.size(); ++i) {
    kernels_->prepare(entry.matrix->formats[i], x + (pairs.first_pair + first) * k, k, pairs.num_pairs, k, first, end,
                      inputs + entry.offsets[i]);
  }
}

void GroupProducts::multiply(int64_t piece, const uint8_t* inputs, float* out, int64_t stride) const {
  const auto after = std::upper_bound(jobs_.begin(), jobs_.end(), piece,
                                      [](int64_t value, const Job& job) { return value < job.first_piece; });
  const Job& job = *(after - 1);
  const int64_t panel = (piece - job.first_piece) * panels_per_piece_;
  kernels_->multiply(*job.linear, inputs + job.input_offset, job.num_pairs, panel,
                     std::min(job.num_panels, panel + panels_per_piece_), job.bias, false,
                     out + job.first_pair * stride + job.first_output, stride);
}

}  // namespace relevo
