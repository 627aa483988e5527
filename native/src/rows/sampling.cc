// Drawing a token: which tokens may be drawn, and an exponential race among them (the reference in Python explains it).
#include "rows/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>

#include "rows/philox.h"

namespace relevo {

const SamplingKernels& sampling_kernels_portable();
#if defined(__x86_64__)
const SamplingKernels& sampling_kernels_avx2();
const SamplingKernels& sampling_kernels_avx512();
#elif defined(__aarch64__)
const SamplingKernels& sampling_kernels_neon();
#endif

const SamplingKernels& sampling_kernels(Path path) {
  switch (path) {
#if defined(__x86_64__)
    case Path::amx:
    case Path::avx512:
      return sampling_kernels_avx512();
    case Path::avx2:
      return sampling_kernels_avx2();
#elif defined(__aarch64__)
    case Path::i8mm:
    case Path::dotprod:
    case Path::neon:
      return sampling_kernels_neon();
#endif
    default:
      return sampling_kernels_portable();
  }
}

namespace {

constexpr double MAX_TEMPERATURE = 1e30;
constexpr double SHORTEST_WAIT = 0x1p-60;

// The best path: what is used of it here has the same bits on all.
const SamplingKernels& fastest() {
  static const SamplingKernels& kernels = sampling_kernels(available_paths().back());
  return kernels;
}

double wait_of(uint64_t bits) { return std::max(-std::log1p(-Philox::uniform(bits)), SHORTEST_WAIT); }

struct Winner {
  int64_t index = 0;
  double pace = -1.0;  // weight / wait
  void offer(int64_t candidate, float weight, uint64_t bits) {
    const double its_pace = static_cast<double>(weight) / wait_of(bits);
    if (its_pace > pace) {
      pace = its_pace;
      index = candidate;
    }
  }
};

// The k-th largest of `values`, 1 <= k <= size. Keeps at most 2 k values that are above the k-th largest so far.
float kth_largest(const float* values, int64_t size, int64_t k) {
  thread_local std::vector<float> kept;
  const auto cut = [k] {
    std::nth_element(kept.begin(), kept.begin() + (k - 1), kept.end(), std::greater<float>());
    kept.resize(static_cast<size_t>(k));
    return kept.back();
  };
  kept.clear();
  float floor = -std::numeric_limits<float>::infinity();
  for (int64_t i = 0; i < size; ++i) {
    if (values[i] < floor) continue;
    kept.push_back(values[i]);
    if (static_cast<int64_t>(kept.size()) >= 2 * k + 64) floor = cut();
  }
  return cut();
}

// Ascending indices of the smallest set of largest weights with at least `top_p` of their sum. Bin by bin from the
// largest; only the bin in which the share is reached is sorted, the lower index first among equals.
class Nucleus {
 public:
  // Removes what is outside from `tokens` and `weights`.
  void keep(double top_p, std::vector<int64_t>& tokens, std::vector<float>& weights) {
    fill_bins(weights);
    double before = 0.0;
    const uint32_t last = last_bin(top_p, before);
    const size_t num_inside = sort_last_bin(weights, last, before);
    std::sort(inside_.begin(), inside_.begin() + static_cast<int64_t>(num_inside));
    size_t next = 0, kept = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      const bool chosen = next < num_inside && inside_[next] == i;
      if (chosen) ++next;
      if (!chosen && bin(weights[i]) <= last) continue;
      tokens[kept] = tokens[i];
      weights[kept++] = weights[i];
    }
    tokens.resize(kept);
    weights.resize(kept);
  }

 private:
  // Sign, exponent and 7 bits of the mantissa: positive floats are ordered like their bits.
  static uint32_t bin(float weight) {
    uint32_t bits;
    std::memcpy(&bits, &weight, sizeof bits);
    return bits >> 16;
  }

  void fill_bins(const std::vector<float>& weights) {
    masses_.assign(bin(1.0f) + 1, 0.0);
    for (const float weight : weights) masses_[bin(weight)] += static_cast<double>(weight);
  }

  uint32_t last_bin(double top_p, double& before) {
    double total = 0.0;
    for (size_t i = masses_.size(); i-- > 0;) total += masses_[i];
    target_ = top_p * total;
    double mass = 0.0;
    uint32_t at = static_cast<uint32_t>(masses_.size());
    while (at-- > 0) {
      before = mass;
      mass += masses_[at];
      if (mass >= target_) return at;
    }
    return 0;
  }

  size_t sort_last_bin(const std::vector<float>& weights, uint32_t last, double before) {
    inside_.clear();
    for (size_t i = 0; i < weights.size(); ++i) {
      if (bin(weights[i]) == last) inside_.push_back(i);
    }
    std::stable_sort(inside_.begin(), inside_.end(), [&](size_t a, size_t b) { return weights[a] > weights[b]; });
    double mass = 0.0;
    for (size_t i = 0; i < inside_.size(); ++i) {
      mass += static_cast<double>(weights[inside_[i]]);
      if (before + mass >= target_) return i + 1;
    }
    return inside_.size();
  }

  std::vector<double> masses_;
  std::vector<size_t> inside_;
  double target_ = 0.0;
};

// Largest logit that a token may be below and never be drawn, or minus infinity.
double floor_of(const float* logits, int64_t vocab_size, const DrawParams& params, double temperature, float peak) {
  double floor = -std::numeric_limits<double>::infinity();
  if (params.min_p > 0.0) {
    const double lowest = -static_cast<double>(std::numeric_limits<float>::max());
    floor = std::max(static_cast<double>(peak) + temperature * std::log(std::min(params.min_p, 1.0)), lowest);
  }
  if (params.top_k > 0 && params.top_k < vocab_size) {
    floor = std::max(floor, static_cast<double>(kth_largest(logits, vocab_size, params.top_k)));
  }
  return floor;
}

// A piece of the vocabulary on its way through the race of all tokens.
struct Piece {
  static constexpr int64_t SIZE = 1024;  // arbitrary: what is written here stays in the nearest cache
  float bounds[SIZE];
  uint64_t bits[SIZE];
  int32_t shortest[SIZE];  // the upper 23 bits
  int32_t hopeful[SIZE];

  void draw_bits(const Philox& random, int64_t start, int64_t size) {
    for (int64_t i = 0; i < size; i += 4) {
      uint64_t four[4];
      random.block(static_cast<uint64_t>((start + i) / 4), four);
      for (int64_t j = 0; j < 4; ++j) {
        bits[i + j] = four[j];
        shortest[i + j] = static_cast<int32_t>(four[j] >> 41);
      }
    }
  }
};

// All tokens race. The time a token needs is at least u / weight, since -log(1 - u) >= u: whoever is slower than the
// best so far even so is passed over without a logarithm, and a piece in which no u could help, without random numbers.
// The likeliest token sets the pace from the start. It is offered in its turn: the lowest index wins a tie.
int64_t race_of_all(const float* logits, int64_t vocab_size, const Philox& random, int64_t best, float scale) {
  constexpr double HOPELESS = 0x1p-61;  // no wait is shorter than 2^-60
  constexpr double SURELY = (1.0 - 1e-6) * 0x1p-23;  // more than all roundings together; u in units of 2^-23
  const SamplingKernels& kernels = fastest();
  const float peak = logits[best];
  thread_local Piece piece;
  uint64_t bits[4];
  random.block(static_cast<uint64_t>(best / 4), bits);
  const double pace_of_best = 1.0 / wait_of(bits[best % 4]);
  Winner winner;
  for (int64_t start = 0; start < vocab_size; start += Piece::SIZE) {
    const int64_t size = std::min(Piece::SIZE, vocab_size - start);
    const float most = kernels.bounds(logits + start, size, peak, scale, piece.bounds);
    const double pace = std::max(winner.pace, pace_of_best);
    if (static_cast<double>(most) < pace * HOPELESS) continue;
    piece.draw_bits(random, start, size);
    const int64_t count = kernels.hopeful(piece.bounds, piece.shortest, size, static_cast<float>(pace * SURELY),
                                          piece.hopeful);
    for (int64_t h = 0; h < count; ++h) {
      const int64_t i = piece.hopeful[h];
      float weight;
      kernels.weights(logits + start + i, 1, peak, scale, &weight);
      winner.offer(start + i, weight, piece.bits[i]);
    }
  }
  return winner.index;
}

// Ascending indices of logits that are at least `least` (minus infinity: all), and the logits.
void select(const float* logits, int64_t vocab_size, float least, std::vector<int64_t>& tokens,
            std::vector<float>& values) {
  if (std::isinf(least)) {
    tokens.resize(static_cast<size_t>(vocab_size));
    std::iota(tokens.begin(), tokens.end(), 0);
    values.assign(logits, logits + vocab_size);
    return;
  }
  tokens.clear();
  values.clear();
  for (int64_t i = 0; i < vocab_size; ++i) {
    if (!(logits[i] >= least)) continue;
    tokens.push_back(i);
    values.push_back(logits[i]);
  }
}

int64_t race(const std::vector<int64_t>& tokens, const std::vector<float>& weights, const Philox& random) {
  Winner winner;
  uint64_t bits[4];
  int64_t made = -1;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const int64_t block = tokens[i] / 4;
    if (block != made) random.block(static_cast<uint64_t>(block), bits);
    made = block;
    winner.offer(tokens[i], weights[i], bits[tokens[i] % 4]);
  }
  return winner.index;
}

}  // namespace

int64_t draw(const float* logits, int64_t vocab_size, const DrawParams& params) {
  const SamplingKernels& kernels = fastest();
  const double temperature = std::min(params.temperature, MAX_TEMPERATURE);
  const int64_t best = kernels.summary(logits, vocab_size).best;
  const float peak = logits[best];
  const float scale = static_cast<float>(1.0 / temperature);
  const Philox random{params.seed, params.sample_index, params.position};
  const double floor = floor_of(logits, vocab_size, params, temperature, peak);
  if (std::isinf(floor) && params.top_p >= 1.0) return race_of_all(logits, vocab_size, random, best, scale);

  thread_local std::vector<int64_t> tokens;
  thread_local std::vector<float> weights;
  thread_local Nucleus nucleus;
  select(logits, vocab_size, static_cast<float>(floor), tokens, weights);
  kernels.weights(weights.data(), static_cast<int64_t>(weights.size()), peak, scale, weights.data());
  if (params.top_p < 1.0) nucleus.keep(params.top_p, tokens, weights);
  return race(tokens, weights, random);
}

}  // namespace relevo
