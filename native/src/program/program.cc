// Owns the recorded list: what may be in it, the memory it works on, the checks of a step's inputs.
#include "program/program.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <stdexcept>
#include <utility>

#include <sys/mman.h>

namespace relevo {

namespace {

constexpr size_t HUGE_PAGE_BYTES = 2u << 20;
constexpr size_t LINE_BYTES = 64;

[[noreturn]] void refuse(const std::string& sentence) { throw std::invalid_argument(sentence); }

std::string text(int64_t value) { return std::to_string(value); }

size_t padded(size_t bytes) { return (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES; }

constexpr int64_t GROUP_HEADS = 16;  // arbitrary, at most: heads that share a converted copy of latents

int64_t grown(int64_t capacity, int64_t needed) {
  capacity = std::max<int64_t>(capacity, 8);
  while (capacity < needed) capacity *= 2;
  return capacity;
}

}  // namespace

Area::~Area() { std::free(data_); }

void Area::reserve(size_t bytes) {
  if (bytes <= size_) return;
  std::free(data_);
  data_ = nullptr;
  size_ = 0;
  const size_t alignment = bytes >= HUGE_PAGE_BYTES ? HUGE_PAGE_BYTES : LINE_BYTES;
  const size_t size = (bytes + alignment - 1) / alignment * alignment;
  data_ = static_cast<uint8_t*>(std::aligned_alloc(alignment, size));
  if (data_ == nullptr) throw std::bad_alloc();
  size_ = size;
#ifdef MADV_HUGEPAGE
  if (alignment == HUGE_PAGE_BYTES) madvise(data_, size, MADV_HUGEPAGE);
#endif
}

Program::Program(Engine& engine) : engine_(engine), seconds_by_kind_(std::variant_size_v<Operation>) {
  make_room_for_threads();
}

void Program::make_room_for_threads() {
  if (own_prepared_.size() >= static_cast<size_t>(engine_.pool.size())) return;
  for (int thread = static_cast<int>(own_prepared_.size()); thread < engine_.pool.size(); ++thread) {
    own_prepared_.push_back(std::make_unique<Area>());
    own_transformed_.push_back(std::make_unique<Area>());
    own_heads_.push_back(std::make_unique<Area>());
  }
  row_capacity_ = 0;
}

int Program::add_buffer(int64_t width) {
  if (width < 1) refuse("a buffer needs at least one column, not " + text(width));
  buffers_.push_back({width, std::make_unique<Area>()});
  row_capacity_ = 0;
  return static_cast<int>(buffers_.size()) - 1;
}

int Program::add_angles(Vector inv_freq, float scale, float growth, float growth_tokens) {
  if (inv_freq.empty()) refuse("a rotation needs at least one frequency");
  Angles angles;
  angles.inv_freq = std::move(inv_freq);
  angles.scale = scale;
  angles.growth = growth;
  angles.growth_tokens = growth_tokens;
  if (!(growth_tokens > 0.0f)) refuse("a scale cannot grow over no tokens");
  angles_.push_back(std::move(angles));
  row_capacity_ = 0;
  return static_cast<int>(angles_.size()) - 1;
}

void Program::add(Operation operation) {
  if (vocab_size_ > 0 || given_width_ > 0) refuse("nothing can follow the logits or the hidden states");
  std::visit([this](const auto& kind) { check(kind); }, operation);
  operations_.push_back(std::move(operation));
  row_capacity_ = 0;
}

// ---- what may be recorded -----------------------------------------------------------------------------------------

void Program::check_view(View view, int64_t width) const {
  if (view.buffer < 0 || view.buffer >= static_cast<int>(buffers_.size())) {
    refuse("buffer " + std::to_string(view.buffer) + " does not exist");
  }
  const int64_t columns = stride(view);
  if (width < 1 || view.offset < 0 || view.offset > columns - width) {
    refuse("columns " + text(view.offset) + " to " + text(view.offset + width) + " are outside a buffer of " +
           text(columns));
  }
}

void Program::check_input(const Input& input, const Matrix& matrix) const {
  check_view(input.view, input.source == Source::activation ? 2 * matrix.k : matrix.k);
  if (input.source == Source::norm && input.gain == nullptr) refuse("a norm needs its weight");
}

void Program::check_angles(int angles, int64_t head_size) const {
  if (angles < 0 || angles >= static_cast<int>(angles_.size())) refuse("these angles do not exist");
  if (rotated(angles) > head_size) {
    refuse("a head of " + text(head_size) + " has room for " + text(head_size / 2) + " frequencies");
  }
}

void Program::check(const op::Embed& embed) {
  check_view(embed.out, embed.table->k);
  num_embeddings_ = num_embeddings_ == 0 ? embed.table->n : std::min(num_embeddings_, embed.table->n);
}

void Program::check(const op::RmsNorm& norm) {
  check_view(norm.in, norm.num_groups * norm.size);
  check_view(norm.out, norm.num_groups * norm.size);
  if (norm.num_groups < 1 || norm.gain == nullptr) refuse("a norm needs its weight and at least one group");
}

void Program::check(const op::Add& add) {
  check_view(add.x, add.width);
  check_view(add.y, add.width);
}

void Program::check(const op::Activate& activate) {
  check_view(activate.in, 2 * activate.width);
  check_view(activate.out, activate.width);
  if (activate.in.buffer == activate.out.buffer) refuse("an activation cannot overwrite its own input");
}

void Program::check(const op::Multiply& multiply) {
  check_input(multiply.in, *multiply.matrix);
  check_view(multiply.out, multiply.matrix->n);
  matrices_.push_back(multiply.matrix);
}

void Program::check(const op::Rope& rope) {
  check_view(rope.view, rope.num_heads * rope.head_size);
  check_angles(rope.angles, rope.head_size);
}

void Program::check(const op::Attend& attend) {
  if (attend.num_heads < 1 || attend.num_kv_heads < 1 || attend.num_heads % attend.num_kv_heads != 0) {
    refuse(text(attend.num_heads) + " query heads cannot share " + text(attend.num_kv_heads) + " key-value heads");
  }
  if (attend.head_size < 8 || attend.head_size > 256 || attend.head_size % 8 != 0) {
    refuse("a head size of " + text(attend.head_size) + " is not implemented; multiples of 8 up to 256 are");
  }
  if (num_heads_ != 0 && (attend.num_heads != num_heads_ || attend.num_kv_heads != num_kv_heads_ ||
                          attend.head_size != head_size_ || latent_size_ != 0)) {
    refuse("layers with different numbers or sizes of heads are not implemented");
  }
  if (attend.first_kv_head < -1 || (attend.first_kv_head < 0 && end_kv_head_ > 0) ||
      (attend.first_kv_head >= 0 && num_heads_ != 0 && end_kv_head_ == 0)) {
    refuse("either all layers write all heads of the cache, or all write a part of them");
  }
  if (attend.first_kv_head >= 0) end_kv_head_ = std::max(end_kv_head_, attend.first_kv_head + attend.num_kv_heads);
  if (attend.k.buffer != attend.v.buffer) refuse("keys and values must lie in one buffer");
  const int64_t width = attend.num_heads * attend.head_size, kv_width = attend.num_kv_heads * attend.head_size;
  check_view(attend.q, width);
  check_view(attend.k, kv_width);
  check_view(attend.v, kv_width);
  check_view(attend.out, width);
  if (attend.angles >= 0) check_angles(attend.angles, attend.head_size);
  if (attend.layer < 0) refuse("a layer's number cannot be negative");
  if (attend.window < 0 || attend.chunk < 0 || !(attend.scale >= 0.0f)) {
    refuse("a window, a chunk or a scale of scores cannot be negative");
  }
  if (reach_of(attend) == reaches_.size()) reaches_.push_back({attend.window, attend.chunk});
  attending_.emplace_back(attend.layer, reach_of(attend));
  num_heads_ = attend.num_heads;
  num_kv_heads_ = attend.num_kv_heads;
  head_size_ = attend.head_size;
  note_layer(attend.layer);
}

void Program::note_layer(int64_t layer) {
  first_layer_ = num_layers_ == 0 ? layer : std::min(first_layer_, layer);
  num_layers_ = std::max(num_layers_, layer + 1);
}

void Program::check(const op::TakeHidden& take) {
  check_view(take.out, take.width);
  if (taken_width_ != 0) refuse("hidden states can be taken once only");
  taken_width_ = take.width;
}

void Program::check(const op::GiveHidden& give) {
  check_view(give.in, give.width);
  if (compacted_) refuse("hidden states are given of all tokens");
  given_width_ = give.width;
}

size_t Program::reach_of(const op::Attend& attend) const {
  size_t place = 0;
  while (place < reaches_.size() &&
         (reaches_[place].window != attend.window || reaches_[place].chunk != attend.chunk)) {
    ++place;
  }
  return place;
}

AttentionStep Program::step_of(const AttentionStep& step, const Reach& reach) const {
  AttentionStep own = step;
  if (reach.window > 0 || reach.chunk > 0) {
    own.sliding_window = reach.window;
    own.chunk = reach.chunk;
  }
  return own;
}

void Program::check(const op::Compact& compact) {
  if (compacted_) refuse("the tokens can be chosen once only");
  for (const int buffer : compact.buffers) check_view({buffer, 0}, 1);
  compacted_ = true;
}

void Program::check(const op::Logits& logits) {
  if (!compacted_) refuse("logits need the choice of their tokens before them");
  check_input(logits.in, *logits.head);
  matrices_.push_back(logits.head);
  vocab_size_ = logits.head->n;
}

namespace {

// Of `count` experts, the matrices of `held` of which are here.
void check_places(const ExpertPlaces& places, int64_t count, int64_t held, bool can_move) {
  const int64_t num_slices = places.num_ranks * places.num_slices;
  if (places.num_ranks < 1 || places.rank < 0 || places.rank >= places.num_ranks || places.num_slices < 1 ||
      places.num_experts() != count || static_cast<int64_t>(places.own.size()) != count || count % num_slices != 0) {
    refuse(text(count) + " experts are not " + text(num_slices) + " equal slices on " + text(places.num_ranks) + " ranks");
  }
  int64_t num_held = 0;
  for (int64_t expert = 0; expert < count; ++expert) {
    const std::vector<int32_t>& ranks = places.ranks[static_cast<size_t>(expert)];
    const int64_t own = places.own[static_cast<size_t>(expert)];
    if (ranks.empty() || std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) != ranks.end() ||
        ranks.front() < 0 || ranks.back() >= places.num_ranks) {
      refuse("expert " + text(expert) + " is on no rank, or not once on each");
    }
    const bool is_here = std::find(ranks.begin(), ranks.end(), places.rank) != ranks.end();
    if (is_here ? own < 0 || own >= held : own >= 0) refuse("expert " + text(expert) + " is not where its matrices are");
    num_held += is_here;
    const int64_t summing = expert / places.experts_per_rank();
    if (!can_move && (ranks.size() > 1 || ranks.front() != summing)) {
      refuse("expert " + text(expert) + " lies apart from its sum, and nothing moves its rows");
    }
  }
  if (num_held != held) refuse(text(held) + " experts have matrices here, and " + text(num_held) + " are placed here");
}

}  // namespace

void Program::check(const op::Experts& experts) {
  const RoutingRule& rule = experts.rule;
  const int64_t count = rule.num_experts;
  const int64_t held = static_cast<int64_t>(experts.gate_up.size());
  if (count < 1 || held < 1 || static_cast<int64_t>(experts.down.size()) != held || experts.router->n != count) {
    refuse(text(count) + " experts need as many scores and matrices");
  }
  check_places(experts.places, count, held, static_cast<bool>(experts.move));
  if (rule.num_active < 1 || rule.num_active > count) refuse(text(rule.num_active) + " of " + text(count) + " experts");
  if (rule.num_groups < 1 || count % rule.num_groups != 0 || rule.num_used_groups < 1 ||
      rule.num_used_groups > rule.num_groups || rule.num_used_groups * (count / rule.num_groups) < rule.num_active) {
    refuse(text(rule.num_used_groups) + " of " + text(rule.num_groups) + " groups do not have the experts to choose from");
  }
  const int64_t width = experts.router->k, inner = experts.down.front().k;
  for (const auto& [biases, size] : {std::pair(&experts.gate_up_bias, 2 * inner), std::pair(&experts.down_bias, width)}) {
    if (!biases->empty() && static_cast<int64_t>(biases->size()) != held) refuse("every expert has a bias or none");
    for (const Vector& bias : *biases) {
      if (static_cast<int64_t>(bias.size()) != size) refuse("an expert's bias needs " + text(size) + " elements");
    }
  }
  for (int64_t i = 0; i < held; ++i) {
    const Matrix& up = experts.gate_up[static_cast<size_t>(i)];
    const Matrix& down = experts.down[static_cast<size_t>(i)];
    if (up.k != width || up.n != 2 * inner || down.k != inner || down.n != width) refuse("experts of different shapes");
  }
  check_view(experts.in, width);
  check_view(experts.out, experts.places.num_slices * width);
  check_view(experts.scores, count);
  if (experts.in.buffer == experts.out.buffer) refuse("experts cannot overwrite their own input");
  matrices_.push_back(experts.router);
}

void Program::check(const op::Exchange& exchange) {
  check_view(exchange.x, exchange.width);
  if (!exchange.call) refuse("an exchange needs a call");
}

void Program::check(const op::MultiplyHeads& multiply) {
  if (multiply.matrices.empty()) refuse("a product of heads needs a matrix for each");
  const int64_t count = static_cast<int64_t>(multiply.matrices.size());
  const Matrix& first = multiply.matrices.front();
  for (const Matrix& matrix : multiply.matrices) {
    if (matrix.n != first.n || matrix.k != first.k || matrix.segments.size() != 1) refuse("heads of different shapes");
  }
  check_view(multiply.in, count * first.k);
  check_view(multiply.out, count * first.n);
  if (multiply.in.buffer == multiply.out.buffer) refuse("heads cannot overwrite their own input");
}

void Program::check(const op::AttendLatents& attend) {
  const int64_t width = attend.latent_size + attend.key_size;
  if (attend.num_heads < 1) refuse("attention needs a head");
  if (attend.latent_size < 8 || attend.latent_size % 8 != 0 || attend.key_size < 8 || width % 8 != 0 || width > 1024) {
    refuse("latents of " + text(attend.latent_size) + " with keys of " + text(attend.key_size) +
           " are not implemented; multiples of 8 up to 1024 together are");
  }
  if (num_heads_ != 0 && (attend.num_heads != num_heads_ || width != head_size_ || attend.latent_size != latent_size_)) {
    refuse("layers with different numbers or sizes of heads are not implemented");
  }
  if (attend.latent.buffer != attend.key.buffer || attend.key.offset != attend.latent.offset + attend.latent_size) {
    refuse("a rotated key must lie behind its latent");
  }
  check_view(attend.q, attend.num_heads * attend.latent_size);
  check_view(attend.rotated, attend.num_heads * attend.key_size);
  check_view(attend.latent, width);
  check_view(attend.out, attend.num_heads * attend.latent_size);
  if (attend.angles >= 0) check_angles(attend.angles, attend.key_size);
  if (attend.layer < 0) refuse("a layer's number cannot be negative");
  num_heads_ = attend.num_heads;
  num_kv_heads_ = 1;
  while (num_heads_ % num_kv_heads_ != 0 || num_heads_ / num_kv_heads_ > GROUP_HEADS) ++num_kv_heads_;
  head_size_ = width;
  latent_size_ = attend.latent_size;
  if (reaches_.empty()) reaches_.push_back({0, 0});
  note_layer(attend.layer);
}

KVCache Program::shared_by_groups(const KVCache& cache) const {
  KVCache shared = cache;
  shared.num_kv_heads = num_kv_heads_;
  shared.latent_size = latent_size_;
  return shared;
}

// ---- a step's inputs ----------------------------------------------------------------------------------------------

void Program::check_cache(const KVCache& cache, const LayerPlaces& places, const AttentionStep& step) const {
  if (vocab_size_ == 0 && given_width_ == 0) refuse("a program without logits cannot run");
  if (latent_size_ > 0 && !(cache.is_latent && cache.num_layers >= num_layers_ && cache.head_size == head_size_)) {
    refuse("the cache is not one of " + text(num_layers_) + " layers of latents of " + text(head_size_));
  }
  if (latent_size_ == 0 && num_heads_ != 0 &&
      (places.num_layers(cache) < num_layers_ || cache.num_kv_heads < end_kv_head_ ||
       (end_kv_head_ == 0 && cache.num_kv_heads != num_kv_heads_) || cache.head_size != head_size_ ||
       cache.is_latent)) {
    refuse("the cache has " + text(places.num_layers(cache)) + " layers of " + text(cache.num_kv_heads) + " heads of " +
           text(cache.head_size) + ", the model needs " + text(num_layers_) + " of " +
           text(std::max(num_kv_heads_, end_kv_head_)) + " of " +
           text(head_size_));
  }
  for (const auto& [layer, reach] : attending_) {
    if (places.group_of(layer) < 0) refuse("the cache has no keys and values of layer " + text(layer));
  }
  if (step.num_tokens < 1 || step.num_rows < 1) refuse("a step needs at least one row of one token");
  if (step.row_first_token[0] != 0 || step.row_first_token[step.num_rows] != step.num_tokens) {
    refuse("rows do not cover the tokens of the step");
  }
  for (int64_t row = 0; row < step.num_rows; ++row) {
    const int64_t length = step.row_first_token[row + 1] - step.row_first_token[row];
    const int64_t context = step.context_lengths[row];
    if (length < 1 || context < length || context > step.table_width * cache.block_size) {
      refuse("row " + text(row) + " has " + text(length) + " tokens, a context of " + text(context) + " and room for " +
             text(step.table_width * cache.block_size));
    }
  }
  for (int64_t group = 0; group < places.num_groups; ++group) check_group(cache, places, step, group);
}

// What a row reads or writes lies in the cache; entries before that may be anything.
void Program::check_group(const KVCache& cache, const LayerPlaces& places, const AttentionStep& step,
                          int64_t group) const {
  std::vector<bool> is_used(reaches_.size(), latent_size_ > 0);
  for (const auto& [layer, reach] : attending_) {
    if (places.group_of(layer) == group) is_used[reach] = true;
  }
  const int64_t* tables = step.block_tables + group * step.num_rows * step.table_width;
  for (int64_t row = 0; row < step.num_rows; ++row) {
    const int64_t context = step.context_lengths[row];
    const int64_t first_end = context - (step.row_first_token[row + 1] - step.row_first_token[row]) + 1;
    int64_t first_key = first_end - 1;
    for (size_t reach = 0; reach < reaches_.size(); ++reach) {
      if (is_used[reach]) first_key = std::min(first_key, step_of(step, reaches_[reach]).first_visible(first_end));
    }
    for (int64_t i = first_key / cache.block_size; i * cache.block_size < context; ++i) {
      const int64_t block = tables[row * step.table_width + i];
      if (block < 0 || block >= cache.num_blocks) refuse("block " + text(block) + " is outside the cache");
    }
  }
}

void Program::check_tokens(const KVCache& cache, const LayerPlaces& places, const StepInputs& inputs) const {
  const AttentionStep& step = inputs.attention;
  for (int64_t row = 0; row < step.num_rows; ++row) {
    const int64_t end = step.row_first_token[row + 1];
    for (int64_t token = step.row_first_token[row]; token < end; ++token) {
      const int64_t position = step.context_lengths[row] - (end - token);
      bool is_there = inputs.positions[token] == position && step.offset_of_token[token] == position % cache.block_size;
      for (int64_t group = 0; group < places.num_groups; ++group) {
        const int64_t place = (group * step.num_rows + row) * step.table_width + position / cache.block_size;
        is_there = is_there && step.block_of_token[group * step.num_tokens + token] == step.block_tables[place];
      }
      if (inputs.token_ids[token] < 0 || (num_embeddings_ > 0 && inputs.token_ids[token] >= num_embeddings_)) {
        refuse("token id " + text(inputs.token_ids[token]) + " is outside the vocabulary");
      }
      if (!is_there) refuse("token " + text(token) + " is not where its row's context ends");
    }
  }
  int64_t previous = -1;
  for (int64_t i = 0; i < inputs.num_logit_tokens; ++i) {
    const int64_t token = inputs.logit_tokens[i];
    if (token <= previous || token >= step.num_tokens) refuse("logits are asked for in ascending order of tokens");
    previous = token;
  }
}

// ---- memory -------------------------------------------------------------------------------------------------------

LogitMemory Program::logit_memory(int64_t num_rows) {
  if (num_rows > logit_capacity_ || logits_ == nullptr) {
    logit_capacity_ = grown(logit_capacity_, num_rows);
    const size_t size = static_cast<size_t>(logit_capacity_ * vocab_size_);
    logits_ = std::shared_ptr<float[]>(
        static_cast<float*>(::operator new[](size * sizeof(float), std::align_val_t(LINE_BYTES))),
        [](float* values) { ::operator delete[](values, std::align_val_t(LINE_BYTES)); });
  }
  return {logits_, logit_capacity_};
}

void Program::make_room(int64_t num_tokens) {
  if (num_tokens <= row_capacity_) return;
  row_capacity_ = grown(row_capacity_, num_tokens);
  const size_t rows = static_cast<size_t>(row_capacity_);
  for (Buffer& buffer : buffers_) buffer.area->reserve(rows * static_cast<size_t>(buffer.width) * sizeof(float));
  for (Angles& angles : angles_) {
    angles.cos.resize(rows * angles.inv_freq.size());
    angles.sin.resize(rows * angles.inv_freq.size());
  }
  size_t prepared_bytes = 0, own_prepared_bytes = 0, transformed_floats = 0;
  for (const Matrix* matrix : matrices_) {
    size_t bytes = 0, own_bytes = 0;
    for (const Format format : matrix->formats) {
      bytes += padded(engine_.linear.input_bytes(format, row_capacity_, matrix->k));
      own_bytes += padded(engine_.linear.input_bytes(format, 1, matrix->k));
    }
    prepared_bytes = std::max(prepared_bytes, bytes);
    own_prepared_bytes = std::max(own_prepared_bytes, own_bytes);
    transformed_floats =
        std::max(transformed_floats, static_cast<size_t>(prepared_together(*matrix, engine_.linear) * matrix->k));
  }
  prepared_.reserve(prepared_bytes);
  for (auto& area : own_prepared_) area->reserve(own_prepared_bytes);
  for (auto& area : own_transformed_) area->reserve(transformed_floats * sizeof(float));
}

void Program::place_angles(const StepInputs& inputs) {
  const int64_t num_tokens = inputs.attention.num_tokens;
  const int64_t needed = 1 + *std::max_element(inputs.positions, inputs.positions + num_tokens);
  for (Angles& angles : angles_) {
    const int64_t half = static_cast<int64_t>(angles.inv_freq.size());
    if (needed > angles.num_positions) {
      const int64_t first = angles.num_positions, end = grown(std::max<int64_t>(first, 512), needed);
      Vector cos(static_cast<size_t>(end * half)), sin(cos.size());
      std::copy(angles.cos_table.begin(), angles.cos_table.end(), cos.begin());
      std::copy(angles.sin_table.begin(), angles.sin_table.end(), sin.begin());
      std::vector<int64_t> positions;
      for (int64_t position = first; position < end; ++position) positions.push_back(position);
      rope_angles(positions.data(), end - first, angles.inv_freq.data(), half, angles.scale, &cos[first * half],
                  &sin[first * half]);
      for (int64_t position = first; angles.growth != 0.0f && position < end; ++position) {
        const float steps = std::floor(static_cast<float>(position + 1) / angles.growth_tokens);
        const float factor = std::log1p(steps) * angles.growth + 1.0f;
        for (int64_t i = position * half; i < (position + 1) * half; ++i) {
          cos[static_cast<size_t>(i)] *= factor;
          sin[static_cast<size_t>(i)] *= factor;
        }
      }
      angles.cos_table = std::move(cos);
      angles.sin_table = std::move(sin);
      angles.num_positions = end;
    }
    const size_t row_bytes = static_cast<size_t>(half) * sizeof(float);
    for (int64_t token = 0; token < num_tokens; ++token) {
      const int64_t position = inputs.positions[token];
      std::memcpy(&angles.cos[token * half], &angles.cos_table[position * half], row_bytes);
      std::memcpy(&angles.sin[token * half], &angles.sin_table[position * half], row_bytes);
    }
  }
}

}  // namespace relevo
