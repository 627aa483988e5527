// The tokens of a run, sorted by the experts that they pass, and the products that follow from it.
//
// A pair is a token and one of its experts. Pairs of one expert lie together, tokens ascending, so that an expert's
// matrices are read once for all its tokens; what a pair comes to does not depend on which others there are, nor on
// which rank computes it.
#pragma once

#include <cstdint>
#include <vector>

#include "program/engine.h"

namespace relevo {

// Which ranks have an expert's matrices, and which sums are made here. All ranks have an equal number of slices, one
// after the other, and a slice is the sum of as many experts as any other.
struct ExpertPlaces {
  std::vector<std::vector<int32_t>> ranks;  // by expert: those that have it, ascending
  std::vector<int64_t> own;                 // by expert: the place of its matrices here; -1: they are elsewhere
  int64_t rank = 0, num_ranks = 1;
  int64_t num_slices = 1;  // of every rank

  int64_t num_experts() const { return static_cast<int64_t>(ranks.size()); }
  // Of the experts whose sums a rank makes.
  int64_t experts_per_rank() const { return num_experts() / num_ranks; }
  int64_t experts_per_slice() const { return experts_per_rank() / num_slices; }
  // The first expert of a slice of this rank's.
  int64_t first_expert(int64_t slice) const { return rank * experts_per_rank() + slice * experts_per_slice(); }
};

struct ExpertGroup {
  int64_t expert;  // the place of its matrices here
  int64_t first_pair, num_pairs;
};

class ExpertGroups {
 public:
  // Room for `num_rows` tokens; called by one thread.
  void start(int64_t num_rows, int64_t num_active);
  int32_t* chosen(int64_t row) { return &chosen_[static_cast<size_t>(row * num_active_)]; }
  float* weights(int64_t row) { return &weights_[static_cast<size_t>(row * num_active_)]; }
  // Add how many tokens chose each expert, wherever that is; called by one thread, when all rows have their experts.
  void count(int64_t* counts) const;
  // Add how many pairs each rank computes; called by one thread, when they are sorted.
  void count_ranks(int64_t* counts) const;
  // Decide which rank computes each pair, and sort those of this one; called by one thread, when all rows have their
  // experts. All ranks decide alike.
  void sort(const ExpertPlaces& places);

  // Computed here.
  int64_t num_pairs() const { return static_cast<int64_t>(token_of_pair_.size()); }
  // Computed elsewhere and summed here; they lie behind those that are computed here, rank after rank.
  int64_t num_received() const { return arrivals_.back() - num_pairs(); }
  // Of those that are computed here, the first one of each rank that sums them, and one behind the last.
  const std::vector<int64_t>& departures() const { return departures_; }
  // Of those that are received, the first one of each rank that computes them, and one behind the last.
  const std::vector<int64_t>& arrivals() const { return arrivals_; }
  // The most that any rank computes for another one.
  int64_t most_moved() const { return most_moved_; }
  int32_t expert_of(int64_t row, int64_t slot) const { return chosen_[static_cast<size_t>(row * num_active_ + slot)]; }
  const std::vector<ExpertGroup>& groups() const { return groups_; }
  float weight_of(int64_t pair) const { return weights_[static_cast<size_t>(place_of_pair_[static_cast<size_t>(pair)])]; }
  int64_t token_of(int64_t pair) const { return token_of_pair_[static_cast<size_t>(pair)]; }
  // Of a token's `slot`-th expert; -1: it is neither computed nor summed here.
  int64_t pair_of(int64_t row, int64_t slot) const { return pair_of_[static_cast<size_t>(row * num_active_ + slot)]; }

 private:
  void choose_ranks(const ExpertPlaces& places);
  void note_moves(const ExpertPlaces& places);

  int64_t num_rows_ = 0, num_active_ = 0;
  std::vector<int32_t> chosen_;  // [rows, active]
  std::vector<float> weights_;   // [rows, active]
  std::vector<int32_t> rank_of_;  // [rows, active]: that computes it
  std::vector<int64_t> num_pairs_of_rank_;
  std::vector<int64_t> first_;  // [ranks * experts + 1]: of the pairs that a rank computes with an expert; then filled
  std::vector<int64_t> departures_, arrivals_;
  int64_t most_moved_ = 0;
  std::vector<int64_t> token_of_pair_, pair_of_;
  std::vector<int64_t> place_of_pair_;  // in weights_
  std::vector<ExpertGroup> groups_;
};

// The products of all groups with one of their matrices each, as pieces that threads share.
class GroupProducts {
 public:
  // `matrices` by expert; called by one thread. Inputs of the groups lie one after the other from `input_offset` on.
  // So are `biases`; empty: there are none.
  void plan(const ExpertGroups& groups, const std::vector<Matrix>& matrices,
            const std::vector<std::vector<float>>& biases, const LinearKernels& kernels, int num_threads);
  size_t input_bytes() const { return input_bytes_; }
  int64_t num_pieces() const { return num_pieces_; }

  // Prepare pairs [first, end) of a group, counted within it, from x [pairs, k].
  void prepare(size_t group, const ExpertGroup& pairs, const float* x, int64_t first, int64_t end, uint8_t* inputs) const;
  // Rows of inputs that are prepared together.
  int64_t input_group(size_t group) const { return entries_[group].input_group; }
  // One piece: outputs [pairs, n] of a part of a matrix.
  void multiply(int64_t piece, const uint8_t* inputs, float* out, int64_t stride) const;

 private:
  struct Entry {
    const Matrix* matrix;
    int64_t input_group;
    std::vector<size_t> offsets;  // of the inputs in each of the matrix's formats
  };
  struct Job {
    const Linear* linear;
    size_t input_offset;
    int64_t first_pair, num_pairs, first_output, num_panels, first_piece;
    const float* bias;  // of the first output, or null
  };
  const LinearKernels* kernels_ = nullptr;
  std::vector<Entry> entries_;
  std::vector<Job> jobs_;
  size_t input_bytes_ = 0;
  int64_t panels_per_piece_ = 1, num_pieces_ = 0;
};

}  // namespace relevo
