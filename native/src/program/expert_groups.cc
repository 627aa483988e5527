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

void ExpertGroups::count_ranks(int64_t* counts) const {
  for (size_t rank = 0; rank < num_pairs_of_rank_.size(); ++rank) counts[rank] += num_pairs_of_rank_[rank];
}

// What one rank only can compute goes there. Every other pair, in order, goes to the rank that has fewest by then: of
// equals to the first.
void ExpertGroups::choose_ranks(const ExpertPlaces& places) {
  rank_of_.resize(chosen_.size());
  num_pairs_of_rank_.assign(static_cast<size_t>(places.num_ranks), 0);
  for (size_t place = 0; place < chosen_.size(); ++place) {
    const std::vector<int32_t>& able = places.ranks[static_cast<size_t>(chosen_[place])];
    if (able.size() == 1) ++num_pairs_of_rank_[static_cast<size_t>(rank_of_[place] = able.front())];
  }
  for (size_t place = 0; place < chosen_.size(); ++place) {
    const std::vector<int32_t>& able = places.ranks[static_cast<size_t>(chosen_[place])];
    if (able.size() == 1) continue;
    rank_of_[place] = *std::min_element(able.begin(), able.end(), [&](int32_t left, int32_t right) {
      return num_pairs_of_rank_[static_cast<size_t>(left)] < num_pairs_of_rank_[static_cast<size_t>(right)];
    });
    ++num_pairs_of_rank_[static_cast<size_t>(rank_of_[place])];
  }
}

// Pairs of a rank lie by expert, and so by the rank that sums them.
void ExpertGroups::note_moves(const ExpertPlaces& places) {
  const int64_t count = places.num_experts(), each = places.experts_per_rank();
  const auto first_of = [&](int64_t computing, int64_t summing) {
    return first_[static_cast<size_t>(computing * count + summing * each)];
  };
  departures_.clear();
  arrivals_.assign(1, first_of(places.rank + 1, 0) - first_of(places.rank, 0));
  most_moved_ = 0;
  for (int64_t rank = 0; rank <= places.num_ranks; ++rank) {
    departures_.push_back(first_of(places.rank, rank) - first_of(places.rank, 0));
  }
  for (int64_t computing = 0; computing < places.num_ranks; ++computing) {
    int64_t arriving = 0;
    for (int64_t summing = 0; summing < places.num_ranks; ++summing) {
      if (summing == computing) continue;
      const int64_t num_moved = first_of(computing, summing + 1) - first_of(computing, summing);
      most_moved_ = std::max(most_moved_, num_moved);
      if (summing == places.rank) arriving = num_moved;
    }
    arrivals_.push_back(arrivals_.back() + arriving);
  }
}

void ExpertGroups::sort(const ExpertPlaces& places) {
  choose_ranks(places);
  const int64_t count = places.num_experts(), each = places.experts_per_rank(), own = places.rank;
  first_.assign(static_cast<size_t>(places.num_ranks * count + 1), 0);
  for (size_t place = 0; place < chosen_.size(); ++place) {
    ++first_[static_cast<size_t>(rank_of_[place] * count + chosen_[place]) + 1];
  }
  for (size_t key = 1; key < first_.size(); ++key) first_[key] += first_[key - 1];
  note_moves(places);
  const int64_t first_own = first_[static_cast<size_t>(own * count)];
  const size_t num_pairs = static_cast<size_t>(arrivals_.front());
  groups_.clear();
  for (int64_t expert = 0; expert < count; ++expert) {
    const size_t key = static_cast<size_t>(own * count + expert);
    if (first_[key + 1] == first_[key]) continue;
    groups_.push_back({places.own[static_cast<size_t>(expert)], first_[key] - first_own, first_[key + 1] - first_[key]});
  }
  std::vector<int64_t> shift(static_cast<size_t>(places.num_ranks));  // from where a pair lies of all to where it does here
  for (int64_t rank = 0; rank < places.num_ranks; ++rank) {
    const int64_t first = first_[static_cast<size_t>(rank * count + (rank == own ? 0 : own * each))];
    shift[static_cast<size_t>(rank)] = (rank == own ? 0 : arrivals_[static_cast<size_t>(rank)]) - first;
  }
  token_of_pair_.resize(num_pairs);
  pair_of_.assign(chosen_.size(), -1);
  place_of_pair_.resize(num_pairs);
  for (size_t place = 0; place < chosen_.size(); ++place) {
    const int64_t rank = rank_of_[place], expert = chosen_[place];
    if (rank != own && expert / each != own) continue;
    const int64_t pair = first_[static_cast<size_t>(rank * count + expert)]++ + shift[static_cast<size_t>(rank)];
    pair_of_[place] = pair;
    if (rank != own) continue;
    token_of_pair_[static_cast<size_t>(pair)] = static_cast<int64_t>(place) / num_active_;
    place_of_pair_[static_cast<size_t>(pair)] = static_cast<int64_t>(place);
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
