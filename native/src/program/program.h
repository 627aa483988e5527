// A model's operations, recorded once and replayed by one call per step.
//
// Operations work on numbered buffers, float32 [tokens of the step, width], which grow with the largest step. All threads
// walk the list together; each operation is shared by rows, panels or attention tasks, and ends at a barrier. Nothing is
// allocated in a step that is not larger than an earlier one, but for the plan of its attention.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "program/engine.h"
#include "program/expert_groups.h"
#include "rows/routing.h"
#include "states/state_places.h"

namespace relevo {

using Vector = std::vector<float>;

// Columns [offset, offset + width) of a buffer; the operation knows the width.
struct View {
  int buffer;
  int64_t offset;
};

// What a matrix is multiplied with: the columns themselves, their norm, or their activation (first half: the gates).
enum class Source { plain, norm, activation };

struct Input {
  Source source;
  View view;
  const float* gain;  // of the norm
  float eps;
  Activation activation;
};

namespace op {

struct Embed {
  const Matrix* table;
  View out;
  float scale;
};

struct RmsNorm {  // num_groups groups of `size` per token
  View in, out;
  int64_t num_groups, size;
  const float* gain;
  float eps;
};

struct Add {  // x += y
  View x, y;
  int64_t width;
};

struct Activate {
  View in, out;
  int64_t width;  // of out
  Activation activation;
};

struct Multiply {
  Input in;
  const Matrix* matrix;
  const float* bias;  // or null
  View out;
  bool accumulate;
};

struct Rope {
  View view;
  int64_t num_heads, head_size;
  int angles;
};

// Each token through the experts that its scores choose: out = sum of weight * down(activation of gate and up), of each
// slice in columns of its own, one after the other.
struct Experts {
  // On one thread, where ranks compute pairs for each other: give the rows [pairs, width] that others sum, and fill in
  // those that are summed here, behind them. What it throws ends the step, as of Exchange.
  using Move = std::function<void(float* rows, int64_t width, const ExpertGroups& groups)>;
  View in, scores, out;
  const Matrix* router;
  const float* bias;  // of the choice, or null
  const float* logit_bias;  // of the scores, or null
  std::vector<Matrix> gate_up, down;  // by expert
  std::vector<Vector> gate_up_bias, down_bias;  // by expert; empty: there are none
  Activation activation;
  bool weighs_inputs;  // instead of what experts give
  RoutingRule rule;
  ExpertPlaces places;
  int64_t* counts = nullptr;  // by expert, of all: tokens that chose it are added; null: they are not counted
  Move move{};  // empty: no pair has to be moved
  int64_t* rank_counts = nullptr;  // by rank: pairs that it computes are added; null: they are not counted
};

// Norms of q's and k's heads (if any), rotation (if any), the writes into the cache, then attention.
struct Attend {
  View q, k, v, out;  // k and v in one buffer
  int64_t num_heads, num_kv_heads, head_size, layer;
  const float* q_gain;  // or null
  const float* k_gain;
  float eps;
  int angles;  // or -1
  int64_t window = 0, chunk = 0;  // as in AttentionStep; both 0: the step's
  float scale = 0.0f;
  const float* sinks = nullptr;
  int64_t first_kv_head = -1;  // of the cache, that k and v begin at; -1: they are all of them
};

// Each head times its own matrix.
struct MultiplyHeads {
  View in, out;
  std::vector<Matrix> matrices;  // by head, all of one shape
};

// The latent's norm (if any), rotation (if any), the writes into the cache, then attention of all heads over it.
struct AttendLatents {
  View q, rotated, latent, key, out;  // the key lies behind the latent in one buffer
  int64_t num_heads, latent_size, key_size, layer;
  const float* gain;  // or null
  float eps;
  int angles;  // or -1
  float scale;
};

// Each row goes on from its state, which it leaves changed.
struct PassStates {
  View in, gates, out;
  int64_t layer;
  DeltaSizes sizes;
  Vector convolution;  // [kernel size, C]
  Vector decay, decay_bias;  // as in DeltaRule
};

// The norm of x's heads (if any), times the sigmoid of scores, one for each number or one for all, or times their SiLU.
struct Gate {
  View in, scores, out;
  int64_t width;
  bool has_one_score, is_silu;
  const float* gain;  // [head size], or null: there is no norm
  int64_t head_size;
  float eps;
};

// From here on only the tokens whose logits were asked for are computed: their rows of `buffers` move to the front.
struct Compact {
  std::vector<int> buffers;
};

struct Logits {
  Input in;
  const Matrix* head;
};

// What another program has made of the step's tokens so far; the step brings it.
struct TakeHidden {
  View out;
  int64_t width;
};

// What this one leaves for another that goes on with it, in place of logits.
struct GiveHidden {
  View in;
  int64_t width;
};

// The rows are added up with those of other programs, in place, by who else computes this step. Called on one thread;
// what it throws ends the step, and run() throws it.
struct Exchange {
  using Call = std::function<void(float* rows, int64_t num_rows, int64_t stride)>;
  View x;
  int64_t width;
  Call call;
};

}  // namespace op

using Operation = std::variant<op::Embed, op::RmsNorm, op::Add, op::Activate, op::Multiply, op::Rope, op::Attend,
                               op::Compact, op::Logits, op::Experts, op::MultiplyHeads, op::AttendLatents,
                               op::Exchange, op::TakeHidden, op::GiveHidden, op::PassStates, op::Gate>;

// One step's inputs; the caller checks them (Program::check). All arrays stay the caller's.
struct StepInputs {
  AttentionStep attention;      // of the first KV group; the tables and blocks of the others lie behind its own
  const int64_t* token_ids;     // [T]
  const int64_t* positions;     // [T]
  const int64_t* logit_tokens;  // [R], ascending, no repeats
  int64_t num_logit_tokens;
  const float* taken = nullptr;  // [T, taken_width], of programs that take hidden states
  float* given = nullptr;        // [T, given_width], of programs that give them
  std::vector<StateTable> states{};  // by group of states
};

// Where the layers of a model lie in the blocks of a cache: in which KV group, and at which place of its blocks. A layer
// that keeps a state is in none, -1.
struct LayerPlaces {
  int64_t num_groups = 1;
  std::vector<int64_t> groups, places;  // by layer; empty: one group, with each layer at its own number
  StatePlaces states;
  bool is_plain() const { return groups.empty(); }
  int64_t num_layers(const KVCache& cache) const {
    return is_plain() ? cache.num_layers : static_cast<int64_t>(groups.size());
  }
  int64_t group_of(int64_t layer) const { return is_plain() ? 0 : groups[static_cast<size_t>(layer)]; }
  int64_t place_of(int64_t layer) const { return is_plain() ? layer : places[static_cast<size_t>(layer)]; }
  // What layers [first, end) of the model have in a block of a group; what others have in it is other programs'.
  void clear(const KVCache& cache, int64_t group, int64_t block, int64_t first, int64_t end) const;
};

// Where a step leaves the summaries of its logits.
struct StepSummaries {
  int64_t* best;  // [R]
  bool* finite;   // [R]
};

// Memory for logits, as long as somebody holds it; its content lasts until the next step.
struct LogitMemory {
  std::shared_ptr<float[]> values;  // [num_rows, V]
  int64_t num_rows;
};

// Memory that only grows, 64-byte aligned, with huge pages where it is large. Growing loses the content.
class Area {
 public:
  Area() = default;
  ~Area();
  Area(const Area&) = delete;
  Area& operator=(const Area&) = delete;
  void reserve(size_t bytes);
  uint8_t* bytes() const { return data_; }
  float* floats() const { return reinterpret_cast<float*>(data_); }

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

class Program {
 public:
  explicit Program(Engine& engine);

  int add_buffer(int64_t width);
  // A table of cosines and sines [position, size of inv_freq], filled as positions come up.
  // `growth`: both times 1 + growth * log(1 + floor((position + 1) / growth_tokens)).
  int add_angles(Vector inv_freq, float scale, float growth = 0.0f, float growth_tokens = 1.0f);
  // Checks buffers, columns and shapes; throws std::invalid_argument with a sentence.
  void add(Operation operation);

  // Where logits go, with room for `num_rows` at least. Every call may replace the memory by a larger one.
  LogitMemory logit_memory(int64_t num_rows);

  // Compute a step; its logits are the first rows of the logit memory. Returns the seconds between entering and leaving
  // the list. Throws std::invalid_argument if a token, position, block or shape is out of range.
  double run(const KVCache& cache, const LayerPlaces& places, const StepInputs& inputs, const StepSummaries& summaries);

  // Whether a step clears what a former owner left in blocks it enters. Off: who shares the cache does it.
  void set_clears_blocks(bool on) { clears_blocks_ = on; }
  bool clears_blocks() const { return clears_blocks_; }

  // Seconds per kind of operation (index in Operation) on the calling thread, barriers included, of all steps while
  // profiling was on.
  void set_profiling(bool on) { profiling_ = on; }
  const std::vector<double>& seconds_by_kind() const { return seconds_by_kind_; }

  bool is_profiling() const { return profiling_; }
  Engine& engine() { return engine_; }
  int64_t vocab_size() const { return vocab_size_; }
  int64_t num_heads() const { return num_heads_; }
  // Of the hidden states that steps bring and take away; 0: none.
  int64_t taken_width() const { return taken_width_; }
  int64_t given_width() const { return given_width_; }

 private:
  friend class Walker;
  struct Buffer {
    int64_t width;
    std::unique_ptr<Area> area;
  };
  struct Angles {
    Vector inv_freq;
    float scale, growth, growth_tokens;
    int64_t num_positions = 0;  // in the table
    Vector cos_table, sin_table;
    Vector cos, sin;  // [T, half], of the step's tokens
  };
  void check_view(View view, int64_t width) const;
  void check_input(const Input& input, const Matrix& matrix) const;
  void check_angles(int angles, int64_t head_size) const;
  // How much of each head these angles rotate.
  int64_t rotated(int angles) const { return 2 * static_cast<int64_t>(angles_[static_cast<size_t>(angles)].inv_freq.size()); }
  void check(const op::Embed& embed);
  void check(const op::RmsNorm& norm);
  void check(const op::Add& add);
  void check(const op::Activate& activate);
  void check(const op::Multiply& multiply);
  void check(const op::Rope& rope);
  void check(const op::Attend& attend);
  void check(const op::Compact& compact);
  void check(const op::Logits& logits);
  void check(const op::Experts& experts);
  void check(const op::MultiplyHeads& multiply);
  void check(const op::AttendLatents& attend);
  void check(const op::TakeHidden& take);
  void check(const op::GiveHidden& give);
  void check(const op::PassStates& pass);
  void check(const op::Gate& gate);
  void note_layer(int64_t layer);
  void check(const op::Exchange& exchange);
  // The cache as layers of latents read it: its groups of heads are what threads share.
  KVCache shared_by_groups(const KVCache& cache) const;
  void check_cache(const KVCache& cache, const LayerPlaces& places, const AttentionStep& step) const;
  void check_group(const KVCache& cache, const LayerPlaces& places, const AttentionStep& step, int64_t group) const;
  void check_states(const KVCache& cache, const LayerPlaces& places, const StepInputs& inputs) const;
  void check_tokens(const KVCache& cache, const LayerPlaces& places, const StepInputs& inputs) const;
  void make_room(int64_t num_tokens);
  // The team may have grown since the last step; what was sized for fewer threads is sized again by make_room.
  void make_room_for_threads();
  void place_angles(const StepInputs& inputs);
  float* column(View view) const { return buffers_[static_cast<size_t>(view.buffer)].area->floats() + view.offset; }
  int64_t stride(View view) const { return buffers_[static_cast<size_t>(view.buffer)].width; }

  Engine& engine_;
  std::vector<Operation> operations_;
  Tasks counters_[2];  // of this phase and the next; a phase is what happens between two barriers
  std::vector<Buffer> buffers_;
  std::vector<Angles> angles_;
  // How far back layers see; all with the same share the cutting of a step's attention.
  struct Reach {
    int64_t window, chunk;
  };
  size_t reach_of(const op::Attend& attend) const;
  AttentionStep step_of(const AttentionStep& step, const Reach& reach) const;
  std::vector<Reach> reaches_;
  std::vector<std::pair<int64_t, size_t>> attending_;  // (layer, place of its reach), of keys and values
  std::vector<std::pair<int64_t, DeltaSizes>> passing_;  // (layer, sizes), of states
  std::vector<const Matrix*> matrices_;
  int64_t vocab_size_ = 0;
  int64_t num_embeddings_ = 0;
  int64_t first_layer_ = 0, num_layers_ = 0, num_heads_ = 0, num_kv_heads_ = 0, head_size_ = 0;  // of attention; 0: there is none
  int64_t latent_size_ = 0;  // 0: keys and values of their own
  int64_t taken_width_ = 0, given_width_ = 0;
  bool compacted_ = false;
  int64_t end_kv_head_ = 0;  // of the cache, where layers write a part of its heads; 0: they write all
  bool clears_blocks_ = true;
  std::exception_ptr failure_;  // of an exchange of this step
  int64_t row_capacity_ = 0;
  int64_t logit_capacity_ = 0;
  Area prepared_;  // a product's inputs, all rows
  Area partials_;  // of attention
  ExpertGroups expert_groups_;
  GroupProducts up_products_, down_products_;
  Area expert_rows_, expert_inputs_, expert_inner_;  // of the pairs of a run: inputs, then outputs; prepared; between
  std::vector<std::unique_ptr<Area>> own_heads_;     // per thread, a head's inputs
  std::vector<std::unique_ptr<Area>> own_prepared_;  // per thread, one row
  std::vector<std::unique_ptr<Area>> own_transformed_;  // per thread, a group of rows: normed or activated, to be prepared
  std::shared_ptr<float[]> logits_;
  bool profiling_ = false;
  std::vector<double> seconds_by_kind_;
};

// One draw per entry of `rows` from the rows of logits [R, V], shared by the threads of the engine.
void draw_rows(Engine& engine, const float* logits, int64_t vocab_size, const std::vector<int64_t>& rows,
               const std::vector<DrawParams>& params, int64_t* drawn);

// What masks leave of rows of logits, and the best token of each; shared by the threads of the engine.
struct MaskedRows {
  const float* logits;               // [R, V]
  int64_t vocab_size;                // V
  const std::vector<int64_t>& rows;  // [N], of the logits
  const uint32_t* masks;             // [N, W], as SamplingKernels::mask has them
  int64_t mask_size;                 // W
  float* masked;                     // [N, V]; may be `logits` where row i is i
  int64_t* best;                     // [N]
};
void mask_rows(Engine& engine, const MaskedRows& wanted);

}  // namespace relevo
