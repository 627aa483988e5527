// Owns the replay: how threads share each operation, and where they wait for each other.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "program/program.h"

namespace relevo {

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t PIECES_PER_THREAD = 4;  // of pairs of tokens and experts; arbitrary
constexpr int64_t LEAST_PIECES_PER_THREAD = 16;  // bounds what taking pieces costs; 4 measured the same
constexpr size_t LINE_BYTES = 64;
constexpr int64_t EXPERT_RUN_ROWS = 512;  // arbitrary: bounds the memory of the pairs of tokens and experts

// Cuts `count` units into pieces that threads take in order: each is a share of what is left, so all end at about the
// same time, whoever was interrupted or came late.
class Pieces {
 public:
  Pieces(int64_t count, int num_threads)
      : count_(count),
        share_(num_threads == 1 ? 1 : 2 * num_threads),
        least_(std::max<int64_t>(1, count / (num_threads * LEAST_PIECES_PER_THREAD))) {}
  // To the next piece; false: there is none.
  bool next() {
    first_ = end_;
    end_ = std::min(count_, first_ + std::max(least_, (count_ - first_) / share_));
    return first_ < count_;
  }
  int64_t first() const { return first_; }
  int64_t end() const { return end_; }

 private:
  const int64_t count_, share_, least_;
  int64_t first_ = 0, end_ = 0;
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A new owner's last block starts empty: no token sees what a former owner left in it. Of layers [first, end) only.
void clear_fresh_tails(const KVCache& cache, const LayerPlaces& places, const AttentionStep& step, int64_t first,
                       int64_t end) {
  for (int64_t row = 0; row < step.num_rows; ++row) {
    const int64_t last = step.row_first_token[row + 1] - 1;
    const int64_t used = step.offset_of_token[last] + 1;
    if (used == cache.block_size || used > step.row_first_token[row + 1] - step.row_first_token[row]) continue;
    for (int64_t group = 0; group < places.num_groups; ++group) {
      places.clear(cache, group, step.block_of_token[group * step.num_tokens + last], first, end);
    }
  }
}

}  // namespace

void LayerPlaces::clear(const KVCache& cache, int64_t group, int64_t block, int64_t first, int64_t end) const {
  const size_t layer_bytes = cache.block_bytes() / static_cast<size_t>(cache.num_layers);
  if (is_plain()) {
    std::memset(cache.run(block, first, 0, 0), 0, layer_bytes * static_cast<size_t>(end - first));
    return;
  }
  for (int64_t layer = first; layer < end; ++layer) {
    if (group_of(layer) == group) std::memset(cache.run(block, place_of(layer), 0, 0), 0, layer_bytes);
  }
}

struct StepInProgress {
  const KVCache& cache;
  const LayerPlaces& layers;
  const StepInputs& inputs;
  std::vector<AttentionPlan> plans;  // by reach
  float* logits;
  const StepSummaries& summaries;
};

// One thread's way through the list.
class Walker {
 public:
  Walker(Program& program, StepInProgress& step, int thread)
      : program_(program),
        engine_(program.engine_),
        step_(step),
        thread_(thread),
        num_threads_(engine_.pool.size()),
        num_rows_(step.inputs.attention.num_tokens) {}

  void walk() {
    const bool profiling = program_.profiling_ && thread_ == 0;
    for (const Operation& operation : program_.operations_) {
      if (num_rows_ == 0 || has_failed_) break;
      const Clock::time_point start = profiling ? Clock::now() : Clock::time_point();
      std::visit([this](const auto& kind) { carry_out(kind); }, operation);
      if (profiling) program_.seconds_by_kind_[operation.index()] += seconds_since(start);
    }
  }

 private:
  // Ends a phase. The counter that the phase before used is the next one's: nobody takes from it any more.
  void barrier() {
    if (num_threads_ > 1) engine_.pool.barrier();
    ++phase_;
    if (thread_ == 0) program_.counters_[(phase_ + 1) % 2].reset();
  }

  // The next of `count` pieces of this phase's work, or -1. A phase shares one thing only.
  int64_t take(int64_t count) { return program_.counters_[phase_ % 2].take(count); }

  // Calls body(first, end) on this thread's pieces of the rows; `first` is a multiple of `multiple`.
  template <class Body>
  void share_rows(int64_t multiple, Body body) {
    Pieces pieces((num_rows_ + multiple - 1) / multiple, num_threads_);
    take_pieces(pieces, [&](int64_t first, int64_t end) { body(first * multiple, std::min(num_rows_, end * multiple)); });
  }

  // Calls body(first, end) on this thread's pieces.
  template <class Body>
  void take_pieces(Pieces& pieces, Body body) {
    int64_t number = 0, taken = -1;
    take_pieces(pieces, number, taken, body);
  }

  // The same where the phase shares more than these: `number` is that of the first piece, then of what follows the last;
  // `taken` the one that this thread has taken last.
  template <class Body>
  void take_pieces(Pieces& pieces, int64_t& number, int64_t& taken, Body body) {
    for (; pieces.next(); ++number) {
      if (taken < number) taken = take(INT64_MAX);
      if (taken == number) body(pieces.first(), pieces.end());
    }
  }

  void carry_out(const op::Embed& embed) {
    float* out = program_.column(embed.out);
    const int64_t stride = program_.stride(embed.out);
    share_rows(1, [&](int64_t first, int64_t end) {
      for (int64_t row = first; row < end; ++row) {
        unpack_row(*embed.table, step_.inputs.token_ids[row], engine_.linear, out + row * stride);
        if (embed.scale == 1.0f) continue;
        for (int64_t i = 0; i < embed.table->k; ++i) out[row * stride + i] *= embed.scale;
      }
    });
    barrier();
  }

  void carry_out(const op::RmsNorm& norm) {
    const float* in = program_.column(norm.in);
    float* out = program_.column(norm.out);
    share_rows(1, [&](int64_t first, int64_t end) {
      for (int64_t row = first; row < end; ++row) {
        engine_.elementwise.rms_norm(in + row * program_.stride(norm.in), norm.size, norm.gain, norm.size, norm.eps,
                                     out + row * program_.stride(norm.out), norm.size, 0, norm.num_groups);
      }
    });
    barrier();
  }

  void carry_out(const op::Add& add) {
    share_rows(1, [&](int64_t first, int64_t end) {
      engine_.elementwise.add(program_.column(add.x), program_.stride(add.x), program_.column(add.y),
                              program_.stride(add.y), add.width, first, end);
    });
    barrier();
  }

  void carry_out(const op::Activate& activate) {
    share_rows(1, [&](int64_t first, int64_t end) {
      engine_.elementwise.activate(activate.activation, program_.column(activate.in), program_.stride(activate.in),
                                   activate.width, program_.column(activate.out), program_.stride(activate.out), first,
                                   end);
    });
    barrier();
  }

  void carry_out(const op::Multiply& multiply) {
    const bool overwrites_input = multiply.out.buffer == multiply.in.view.buffer;
    const uint8_t* inputs = prepare(multiply.in, *multiply.matrix, overwrites_input);
    product(*multiply.matrix, inputs, multiply.bias, multiply.accumulate, program_.column(multiply.out),
            program_.stride(multiply.out));
    barrier();
  }

  void carry_out(const op::Rope& rope) {
    share_rows(1, [&](int64_t first, int64_t end) { rotate(rope, first, end); });
    barrier();
  }

  void carry_out(const op::Attend& attend) {
    const bool is_part = attend.first_kv_head >= 0;
    const KVCache cache = is_part ? step_.cache.of_heads(attend.first_kv_head, attend.num_kv_heads) : step_.cache;
    const size_t reach = program_.reach_of(attend);
    AttentionStep step = program_.step_of(step_.inputs.attention, program_.reaches_[reach]);
    const int64_t group = step_.layers.group_of(attend.layer), layer = step_.layers.place_of(attend.layer);
    step.block_tables += group * step.num_rows * step.table_width;
    step.block_of_token += group * step.num_tokens;
    share_rows(1, [&](int64_t first, int64_t end) { place(attend, cache, step, layer, first, end); });
    barrier();
    step.scale = attend.scale;
    step.sinks = attend.sinks;
    const float* q = program_.column(attend.q);
    float* out = program_.column(attend.out);
    const int64_t q_stride = program_.stride(attend.q), out_stride = program_.stride(attend.out);
    float* partials = program_.partials_.floats();
    const auto& tasks = step_.plans[reach].tasks;
    for (int64_t i; (i = take(static_cast<int64_t>(tasks.size()))) >= 0;) {
      engine_.attention.attend(cache, layer, step, tasks[static_cast<size_t>(i)], q, q_stride, out, out_stride,
                               partials);
    }
    barrier();
    const auto& merges = step_.plans[reach].merges;
    if (merges.empty()) return;
    for (int64_t i; (i = take(static_cast<int64_t>(merges.size()))) >= 0;) {
      engine_.attention.merge(cache, step, merges[static_cast<size_t>(i)], partials, out, out_stride);
    }
    barrier();
  }

  void carry_out(const op::MultiplyHeads& multiply) {
    const int64_t count = static_cast<int64_t>(multiply.matrices.size());
    const float* in = program_.column(multiply.in);
    float* out = program_.column(multiply.out);
    const int64_t in_stride = program_.stride(multiply.in), out_stride = program_.stride(multiply.out);
    Area& area = own(program_.own_heads_);
    for (int64_t head; (head = take(count)) >= 0;) {
      const Linear& linear = multiply.matrices[static_cast<size_t>(head)].segments.front().linear;
      area.reserve(engine_.linear.input_bytes(linear.format, num_rows_, linear.k));
      engine_.linear.prepare(linear.format, in + head * linear.k, in_stride, num_rows_, linear.k, 0, num_rows_,
                             area.bytes());
      const int64_t panel_rows = engine_.linear.panel_rows(linear.format);
      engine_.linear.multiply(linear, area.bytes(), num_rows_, 0, (linear.n + panel_rows - 1) / panel_rows, nullptr,
                              false, out + head * linear.n, out_stride);
    }
    barrier();
  }

  void carry_out(const op::AttendLatents& attend) {
    const KVCache cache = program_.shared_by_groups(step_.cache);
    share_rows(1, [&](int64_t first, int64_t end) { place(attend, cache, first, end); });
    barrier();
    AttentionStep step = step_.inputs.attention;
    step.scale = attend.scale;
    step.rotated = program_.column(attend.rotated);
    step.rotated_stride = program_.stride(attend.rotated);
    const float* q = program_.column(attend.q);
    float* out = program_.column(attend.out);
    const int64_t q_stride = program_.stride(attend.q), out_stride = program_.stride(attend.out);
    float* partials = program_.partials_.floats();
    const auto& tasks = step_.plans.front().tasks;
    for (int64_t i; (i = take(static_cast<int64_t>(tasks.size()))) >= 0;) {
      engine_.attention.attend(cache, attend.layer, step, tasks[static_cast<size_t>(i)], q, q_stride, out, out_stride,
                               partials);
    }
    barrier();
    const auto& merges = step_.plans.front().merges;
    if (merges.empty()) return;
    for (int64_t i; (i = take(static_cast<int64_t>(merges.size()))) >= 0;) {
      engine_.attention.merge(cache, step, merges[static_cast<size_t>(i)], partials, out, out_stride);
    }
    barrier();
  }

  void carry_out(const op::PassStates& pass) {
    const DeltaRule rule{pass.sizes, step_.cache.type, pass.convolution.data(), pass.decay.data(),
                         pass.decay_bias.data()};
    const AttentionStep& step = step_.inputs.attention;
    const int64_t num_heads = pass.sizes.num_key_heads;
    const int64_t stride = program_.stride(pass.in), gates_stride = program_.stride(pass.gates);
    const int64_t out_stride = program_.stride(pass.out);
    Area& scratch = own(program_.own_heads_);
    scratch.reserve(static_cast<size_t>(pass.sizes.scratch_floats()) * sizeof(float));
    for (int64_t i; (i = take(step.num_rows * num_heads)) >= 0;) {
      const int64_t row = i / num_heads, first = step.row_first_token[row];
      const int64_t length = step.row_first_token[row + 1] - first;
      const DeltaRow tokens{program_.column(pass.in) + first * stride,
                            stride,
                            program_.column(pass.gates) + first * gates_stride,
                            gates_stride,
                            program_.column(pass.out) + first * out_stride,
                            out_stride,
                            length,
                            step.context_lengths[row] == length,
                            step_.layers.states.find(step_.cache, step_.inputs.states, pass.layer, row)};
      engine_.states.head(rule, tokens, i % num_heads, scratch.floats());
    }
    barrier();
  }

  void carry_out(const op::Gate& gate) {
    const ElementwiseKernels& kernels = engine_.elementwise;
    const float* in = program_.column(gate.in);
    float* out = program_.column(gate.out);
    const int64_t in_stride = program_.stride(gate.in), out_stride = program_.stride(gate.out);
    share_rows(1, [&](int64_t first, int64_t end) {
      for (int64_t row = first; row < end && gate.gain != nullptr; ++row) {
        kernels.rms_norm(in + row * in_stride, gate.head_size, gate.gain, gate.head_size, gate.eps,
                         out + row * out_stride, gate.head_size, 0, gate.width / gate.head_size);
      }
      kernels.gate(gate.gain == nullptr ? in : out, gate.gain == nullptr ? in_stride : out_stride,
                   program_.column(gate.scores), program_.stride(gate.scores), gate.has_one_score, gate.is_silu,
                   gate.width, out, out_stride, first, end);
    });
    barrier();
  }

  void carry_out(const op::Compact& compact) {
    const int64_t num_kept = step_.inputs.num_logit_tokens;
    if (num_kept == num_rows_) return;
    for (size_t i = static_cast<size_t>(thread_); i < compact.buffers.size(); i += static_cast<size_t>(num_threads_)) {
      const View all{compact.buffers[i], 0};
      float* rows = program_.column(all);
      const int64_t width = program_.stride(all);
      for (int64_t kept = 0; kept < num_kept; ++kept) {  // ascending: a source is never behind its target
        const int64_t token = step_.inputs.logit_tokens[kept];
        if (token != kept) std::memcpy(rows + kept * width, rows + token * width, sizeof(float) * width);
      }
    }
    num_rows_ = num_kept;
    barrier();
  }

  void carry_out(const op::Logits& logits) {
    const uint8_t* inputs = prepare(logits.in, *logits.head, false);
    float* values = step_.logits;
    const int64_t vocab_size = logits.head->n;
    product(*logits.head, inputs, nullptr, false, values, vocab_size);
    barrier();
    for (int64_t row; (row = take(num_rows_)) >= 0;) {
      const RowSummary summary = engine_.sampling.summary(values + row * vocab_size, vocab_size);
      step_.summaries.best[row] = summary.best;
      step_.summaries.finite[row] = summary.finite;
    }
  }

  void carry_out(const op::TakeHidden& take) {
    float* out = program_.column(take.out);
    share_rows(1, [&](int64_t first, int64_t end) {
      for (int64_t row = first; row < end; ++row) {
        std::memcpy(out + row * program_.stride(take.out), step_.inputs.taken + row * take.width,
                    sizeof(float) * static_cast<size_t>(take.width));
      }
    });
    barrier();
  }

  void carry_out(const op::GiveHidden& give) {
    const float* in = program_.column(give.in);
    share_rows(1, [&](int64_t first, int64_t end) {
      for (int64_t row = first; row < end; ++row) {
        std::memcpy(step_.inputs.given + row * give.width, in + row * program_.stride(give.in),
                    sizeof(float) * static_cast<size_t>(give.width));
      }
    });
    barrier();
  }

  void carry_out(const op::Experts& experts) {
    const uint8_t* inputs = prepare({Source::plain, experts.in, nullptr, 0.0f, {}}, *experts.router, false);
    product(*experts.router, inputs, experts.logit_bias, false, program_.column(experts.scores), program_.stride(experts.scores));
    barrier();
    for (int64_t first = 0; first < num_rows_ && !has_failed_; first += EXPERT_RUN_ROWS) {
      pass_experts(experts, first, std::min(num_rows_, first + EXPERT_RUN_ROWS));
    }
  }

  void carry_out(const op::Exchange& exchange) {
    exchange_with([&] { exchange.call(program_.column(exchange.x), num_rows_, program_.stride(exchange.x)); });
  }

  // On one thread. An error waits until all threads have come here: then they all leave.
  template <class Call>
  void exchange_with(Call call) {
    if (thread_ == 0) {
      try {
        call();
      } catch (...) {
        program_.failure_ = std::current_exception();
      }
    }
    barrier();  // what was written before it is read after it
    has_failed_ = program_.failure_ != nullptr;
  }

  // ---- matrix products --------------------------------------------------------------------------------------------

  // The inputs of a product, one area per format of the matrix. A single row is prepared by every thread for itself,
  // which costs less than waiting for one of them, unless a faster thread could already overwrite what it reads.
  const uint8_t* prepare(const Input& input, const Matrix& matrix, bool overwrites_input) {
    const bool alone = num_rows_ == 1 && !overwrites_input;
    uint8_t* inputs = alone ? own(program_.own_prepared_).bytes() : program_.prepared_.bytes();
    if (alone) {
      prepare_rows(input, matrix, inputs, 0, 1);
      return inputs;
    }
    const int64_t group = prepared_together(matrix, engine_.linear);
    share_rows(group, [&](int64_t first, int64_t end) {
      for (int64_t row = first; row < end; row += group) {
        prepare_rows(input, matrix, inputs, row, std::min(row + group, end));
      }
    });
    barrier();
    return inputs;
  }

  Area& own(std::vector<std::unique_ptr<Area>>& areas) { return *areas[static_cast<size_t>(thread_)]; }

  // At most one group of rows: what is normed or activated lies in the nearest caches until it is prepared.
  void prepare_rows(const Input& input, const Matrix& matrix, uint8_t* inputs, int64_t first, int64_t end) {
    int64_t stride = program_.stride(input.view);
    const float* x = program_.column(input.view) + first * stride;
    if (input.source != Source::plain) {
      float* transformed = own(program_.own_transformed_).floats();
      if (input.source == Source::norm) {
        engine_.elementwise.rms_norm(x, stride, input.gain, matrix.k, input.eps, transformed, matrix.k, 0, end - first);
      } else {
        engine_.elementwise.activate(input.activation, x, stride, matrix.k, transformed, matrix.k, 0, end - first);
      }
      x = transformed;
      stride = matrix.k;
    }
    for (size_t i = 0; i < matrix.formats.size(); ++i) {
      engine_.linear.prepare(matrix.formats[i], x, stride, num_rows_, matrix.k, first, end,
                             inputs + input_offset(matrix, i));
    }
  }

  // Where the inputs for formats[index] begin.
  size_t input_offset(const Matrix& matrix, size_t index) const {
    size_t offset = 0;
    for (size_t i = 0; i < index; ++i) {
      const size_t bytes = engine_.linear.input_bytes(matrix.formats[i], num_rows_, matrix.k);
      offset += (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    }
    return offset;
  }

  void product(const Matrix& matrix, const uint8_t* inputs, const float* bias, bool accumulate, float* out,
               int64_t stride) {
    int64_t number = 0, taken = -1;  // pieces of all segments are numbered through
    for (const Matrix::Segment& segment : matrix.segments) {
      const int64_t panel_rows = engine_.linear.panel_rows(segment.linear.format);
      Pieces pieces((segment.linear.n + panel_rows - 1) / panel_rows, num_threads_);
      const uint8_t* prepared = inputs + input_offset(matrix, format_index(matrix, segment.linear.format));
      const float* segment_bias = bias == nullptr ? nullptr : bias + segment.first_output;
      take_pieces(pieces, number, taken, [&](int64_t first, int64_t end) {
        engine_.linear.multiply(segment.linear, prepared, num_rows_, first, end, segment_bias, accumulate,
                                out + segment.first_output, stride);
      });
    }
  }

  static size_t format_index(const Matrix& matrix, Format format) {
    return static_cast<size_t>(std::find(matrix.formats.begin(), matrix.formats.end(), format) -
                               matrix.formats.begin());
  }

  // ---- experts ----------------------------------------------------------------------------------------------------

  // Rows [first, end), which have their scores.
  void pass_experts(const op::Experts& experts, int64_t first, int64_t end) {
    ExpertGroups& groups = program_.expert_groups_;
    GroupProducts& up = program_.up_products_;
    GroupProducts& down = program_.down_products_;
    const int64_t num_active = experts.rule.num_active, width = experts.router->k, inner = experts.down.front().k;
    if (thread_ == 0) groups.start(end - first, num_active);
    barrier();
    for (int64_t row; (row = take(end - first)) >= 0;) {
      const float* scores = program_.column(experts.scores) + (first + row) * program_.stride(experts.scores);
      choose_experts(experts.rule, scores, experts.bias, routing_scratch_, groups.chosen(row), groups.weights(row));
    }
    barrier();
    if (thread_ == 0) {
      if (experts.counts != nullptr) groups.count(experts.counts);
      groups.sort(experts.places);
      if (experts.rank_counts != nullptr) groups.count_ranks(experts.rank_counts);
      up.plan(groups, experts.gate_up, experts.gate_up_bias, engine_.linear, num_threads_);
      down.plan(groups, experts.down, experts.down_bias, engine_.linear, num_threads_);
      const size_t num_pairs = static_cast<size_t>(groups.num_pairs());
      const size_t num_rows = num_pairs + static_cast<size_t>(groups.num_received());
      program_.expert_rows_.reserve(num_rows * static_cast<size_t>(width) * sizeof(float));
      program_.expert_inner_.reserve(num_pairs * static_cast<size_t>(3 * inner) * sizeof(float));
      program_.expert_inputs_.reserve(std::max(up.input_bytes(), down.input_bytes()));
    }
    barrier();
    float* rows = program_.expert_rows_.floats();
    float* gate_up = program_.expert_inner_.floats();
    float* activated = gate_up + groups.num_pairs() * 2 * inner;
    uint8_t* prepared = program_.expert_inputs_.bytes();
    const float* in = program_.column(experts.in) + first * program_.stride(experts.in);
    share_groups(groups, up, [&](size_t group, const ExpertGroup& pairs, int64_t begin, int64_t stop) {
      for (int64_t pair = pairs.first_pair + begin; pair < pairs.first_pair + stop; ++pair) {
        const float* from = in + groups.token_of(pair) * program_.stride(experts.in);
        const float weight = experts.weighs_inputs ? groups.weight_of(pair) : 1.0f;
        for (int64_t i = 0; i < width; ++i) rows[pair * width + i] = weight * from[i];
      }
      up.prepare(group, pairs, rows, begin, stop, prepared);
    });
    for (int64_t piece; (piece = take(up.num_pieces())) >= 0;) up.multiply(piece, prepared, gate_up, 2 * inner);
    barrier();
    share_groups(groups, down, [&](size_t group, const ExpertGroup& pairs, int64_t begin, int64_t stop) {
      engine_.elementwise.activate(experts.activation, gate_up, 2 * inner, inner, activated, inner,
                                   pairs.first_pair + begin, pairs.first_pair + stop);
      down.prepare(group, pairs, activated, begin, stop, prepared);
    });
    for (int64_t piece; (piece = take(down.num_pieces())) >= 0;) down.multiply(piece, prepared, rows, width);
    barrier();
    if (groups.most_moved() > 0) {
      exchange_with([&] { experts.move(rows, width, groups); });
      if (has_failed_) return;
    }
    for (int64_t row; (row = take(end - first)) >= 0;) {
      float* out = program_.column(experts.out) + (first + row) * program_.stride(experts.out);
      for (int64_t slice = 0; slice < experts.places.num_slices; ++slice) {
        combine(groups, row, slice, experts, rows, out + slice * width);
      }
    }
    barrier();
  }

  // Calls body(group, pairs, begin, stop) on this thread's pieces of the groups' pairs, then waits for the others.
  template <class Body>
  void share_groups(const ExpertGroups& groups, const GroupProducts& products, Body body) {
    int64_t first_piece = 0, taken = -1;
    const int64_t share = groups.num_pairs() / (num_threads_ * PIECES_PER_THREAD) + 1;
    for (size_t group = 0; group < groups.groups().size(); ++group) {
      const ExpertGroup& pairs = groups.groups()[group];
      const int64_t multiple = products.input_group(group);
      const int64_t piece = num_threads_ == 1 ? pairs.num_pairs : (share + multiple - 1) / multiple * multiple;
      const int64_t count = (pairs.num_pairs + piece - 1) / piece;
      while (true) {
        if (taken < first_piece) taken = take(INT64_MAX);
        if (taken >= first_piece + count) break;
        const int64_t begin = (taken - first_piece) * piece;
        body(group, pairs, begin, std::min(pairs.num_pairs, begin + piece));
        taken = -1;
      }
      first_piece += count;
    }
    barrier();
  }

  // Of a slice, experts ascending: the same sum whatever else is in the step, and whoever computed what is added.
  static void combine(ExpertGroups& groups, int64_t row, int64_t slice, const op::Experts& experts, const float* rows,
                      float* out) {
    const int64_t width = experts.router->k, first_expert = experts.places.first_expert(slice);
    bool is_first = true;
    for (int64_t slot = 0; slot < experts.rule.num_active; ++slot) {
      const int64_t expert = groups.expert_of(row, slot);
      if (expert < first_expert || expert >= first_expert + experts.places.experts_per_slice()) continue;
      const float* from = rows + groups.pair_of(row, slot) * width;
      const float weight = experts.weighs_inputs ? 1.0f : groups.weights(row)[slot];
      for (int64_t i = 0; i < width; ++i) out[i] = is_first ? weight * from[i] : out[i] + weight * from[i];
      is_first = false;
    }
    if (is_first) std::fill(out, out + width, 0.0f);
  }

  // ---- heads ------------------------------------------------------------------------------------------------------

  void rotate(const op::Rope& rope, int64_t first, int64_t end) {
    const Program::Angles& angles = program_.angles_[static_cast<size_t>(rope.angles)];
    engine_.elementwise.rope(program_.column(rope.view), program_.stride(rope.view), rope.num_heads, rope.head_size,
                             program_.rotated(rope.angles), angles.cos.data(), angles.sin.data(), first, end);
  }

  void norm_heads(View view, int64_t num_heads, int64_t size, const float* gain, float eps, int64_t first,
                  int64_t end) {
    for (int64_t row = first; row < end; ++row) {
      float* heads = program_.column(view) + row * program_.stride(view);
      engine_.elementwise.rms_norm(heads, size, gain, size, eps, heads, size, 0, num_heads);
    }
  }

  // Queries, keys and values of tokens [first, end) become what attention reads.
  void place(const op::Attend& attend, const KVCache& cache, const AttentionStep& step, int64_t layer, int64_t first,
             int64_t end) {
    const int64_t size = attend.head_size;
    if (attend.q_gain != nullptr) {
      norm_heads(attend.q, attend.num_heads, size, attend.q_gain, attend.eps, first, end);
    }
    if (attend.k_gain != nullptr) {
      norm_heads(attend.k, attend.num_kv_heads, size, attend.k_gain, attend.eps, first, end);
    }
    if (attend.angles >= 0) {
      rotate({attend.q, attend.num_heads, size, attend.angles}, first, end);
      rotate({attend.k, attend.num_kv_heads, size, attend.angles}, first, end);
    }
    engine_.attention.store(cache, layer, step, program_.column(attend.k), program_.column(attend.v),
                            program_.stride(attend.k), first, end);
  }

  void place(const op::AttendLatents& attend, const KVCache& cache, int64_t first, int64_t end) {
    if (attend.gain != nullptr) norm_heads(attend.latent, 1, attend.latent_size, attend.gain, attend.eps, first, end);
    if (attend.angles >= 0) {
      rotate({attend.rotated, attend.num_heads, attend.key_size, attend.angles}, first, end);
      rotate({attend.key, 1, attend.key_size, attend.angles}, first, end);
    }
    engine_.attention.store(cache, attend.layer, step_.inputs.attention, program_.column(attend.latent), nullptr,
                            program_.stride(attend.latent), first, end);
  }

  Program& program_;
  Engine& engine_;
  StepInProgress& step_;
  const int thread_;
  const int num_threads_;
  int64_t num_rows_;
  unsigned phase_ = 0;
  bool has_failed_ = false;
  std::vector<float> routing_scratch_;
};

double Program::run(const KVCache& cache, const LayerPlaces& places, const StepInputs& inputs,
                    const StepSummaries& summaries) {
  check_cache(cache, places, inputs.attention);
  check_tokens(cache, places, inputs);
  check_states(cache, places, inputs);
  make_room_for_threads();
  make_room(inputs.attention.num_tokens);
  place_angles(inputs);
  if (clears_blocks_ && num_heads_ > 0) clear_fresh_tails(cache, places, inputs.attention, first_layer_, num_layers_);
  for (Tasks& counter : counters_) counter.reset();
  float* logits = vocab_size_ > 0 ? logit_memory(inputs.num_logit_tokens).values.get() : nullptr;
  StepInProgress step{cache, places, inputs, {}, logits, summaries};
  if (num_heads_ > 0) {
    const int64_t value_size = latent_size_ > 0 ? latent_size_ : head_size_;
    for (const Reach& reach : reaches_) {
      step.plans.push_back(plan_attention(step_of(inputs.attention, reach), num_kv_heads_, value_size,
                                          engine_.pool.size()));
      partials_.reserve(step.plans.back().scratch_floats * sizeof(float));
    }
  }
  struct Context {
    Program* program;
    StepInProgress* step;
  } context{this, &step};
  const Clock::time_point start = Clock::now();
  engine_.pool.run(
      [](void* raw, int thread) {
        auto* own = static_cast<Context*>(raw);
        Walker(*own->program, *own->step, thread).walk();
      },
      &context);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
  return seconds_since(start);
}

void draw_rows(Engine& engine, const float* logits, int64_t vocab_size, const std::vector<int64_t>& rows,
               const std::vector<DrawParams>& params, int64_t* drawn) {
  struct Context {
    const float* logits;
    int64_t vocab_size;
    const std::vector<int64_t>& rows;
    const std::vector<DrawParams>& params;
    int64_t* drawn;
    Tasks tasks;
  } context{logits, vocab_size, rows, params, drawn, {}};
  const auto body = [](void* raw, int) {
    auto* own = static_cast<Context*>(raw);
    for (int64_t i; (i = own->tasks.take(static_cast<int64_t>(own->rows.size()))) >= 0;) {
      const size_t place = static_cast<size_t>(i);
      own->drawn[i] = draw(own->logits + own->rows[place] * own->vocab_size, own->vocab_size, own->params[place]);
    }
  };
  if (rows.size() == 1) {
    body(&context, 0);  // nobody needs to be woken
  } else {
    engine.pool.run(body, &context);
  }
}

void mask_rows(Engine& engine, const MaskedRows& wanted) {
  struct Context {
    const SamplingKernels& kernels;
    const MaskedRows& wanted;
    Tasks tasks;
  } context{engine.sampling, wanted, {}};
  const auto body = [](void* raw, int) {
    auto* own = static_cast<Context*>(raw);
    const MaskedRows& wanted = own->wanted;
    for (int64_t i; (i = own->tasks.take(static_cast<int64_t>(wanted.rows.size()))) >= 0;) {
      float* masked = wanted.masked + i * wanted.vocab_size;
      const float* logits = wanted.logits + wanted.rows[static_cast<size_t>(i)] * wanted.vocab_size;
      own->kernels.mask(logits, wanted.masks + i * wanted.mask_size, wanted.vocab_size, masked);
      wanted.best[i] = own->kernels.summary(masked, wanted.vocab_size).best;
    }
  };
  if (wanted.rows.size() == 1) {
    body(&context, 0);  // nobody needs to be woken
  } else {
    engine.pool.run(body, &context);
  }
}

}  // namespace relevo
