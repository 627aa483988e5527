// Python bindings of programs: engine, weights, cache, recorded operations, steps and draws.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>
#include <optional>
#include <stdexcept>

#include "program/program.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace relevo {

namespace {

template <class T>
using Array1 = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Array2 = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
// Of each KV group one behind the other; of one group the first dimension may be missing.
using GroupedIds = nb::ndarray<const int64_t, nb::c_contig, nb::device::cpu>;
template <class T>
using Output = nb::ndarray<T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = Output<uint8_t>;
using Given = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Columns = std::pair<int, int64_t>;  // buffer, offset

// A weight of one dimension: a norm's or a bias.
struct VectorWeight {
  Vector values;
};

// A cache over memory that Python owns.
struct BoundCache {
  KVCache cache;
  LayerPlaces places;
  Bytes memory;
};

[[noreturn]] void refuse(const std::string& sentence) { throw nb::value_error(sentence.c_str()); }

void require(bool holds, const char* sentence) {
  if (!holds) refuse(sentence);
}

// One caller of an engine at a time, also while the interpreter lock is free.
class Turn {
 public:
  explicit Turn(Engine& engine) : engine_(engine) {
    if (engine_.busy.exchange(true)) throw std::runtime_error("this engine is computing for another thread");
  }
  ~Turn() { engine_.busy.store(false); }

 private:
  Engine& engine_;
};

const std::map<std::string, Format>& formats() {
  static const std::map<std::string, Format> named = {
      {"float32", Format::f32}, {"float16", Format::f16}, {"bfloat16", Format::bf16},       {"q8_0", Format::q8_0},
      {"q4_0", Format::q4_0},   {"q4_1", Format::q4_1},   {"q8_channel", Format::q8_channel},
      {"q5_0", Format::q5_0},   {"q5_1", Format::q5_1},   {"q4_k", Format::q4_k},             {"q5_k", Format::q5_k},
      {"q6_k", Format::q6_k}};
  return named;
}

Format format_named(const std::string& name) {
  const auto found = formats().find(name);
  if (found == formats().end()) refuse("no weights are stored as " + name);
  return found->second;
}

std::vector<std::string> format_names(const Matrix& matrix) {
  std::vector<std::string> names;
  for (const auto& [name, format] : formats()) {
    if (std::find(matrix.formats.begin(), matrix.formats.end(), format) != matrix.formats.end()) names.push_back(name);
  }
  return names;
}

KVType kv_type_named(const std::string& name) {
  static const std::map<std::string, KVType> types = {
      {"float32", KVType::f32}, {"float16", KVType::f16}, {"bfloat16", KVType::bf16}, {"int8", KVType::i8}};
  const auto found = types.find(name);
  if (found == types.end()) refuse("a cache cannot be stored as " + name);
  return found->second;
}

bool is_plain(Format format) { return format == Format::f32 || format == Format::f16 || format == Format::bf16; }

// ---- weights ------------------------------------------------------------------------------------------------------

// (stored, packed, uint8 [rows, bytes of a row])
using Part = std::tuple<std::string, std::string, Array2<uint8_t>>;

Matrix make_matrix(Engine& engine, const std::vector<Part>& parts, int64_t k) {
  std::vector<StoredRows> rows;
  for (const auto& [stored_name, packed_name, data] : parts) {
    const Format stored = format_named(stored_name), packed = format_named(packed_name);
    require(stored == packed || is_plain(stored), "only floats can be converted");
    require(packed == stored || is_plain(packed) || packed == Format::q8_channel,
            "floats can be packed as floats or as q8_channel");
    require(stored != Format::q8_channel, "q8_channel is made while packing");
    const bool blocks = !is_plain(packed) && packed != Format::q8_channel;
    require(k >= 1 && !(blocks && k % 32 != 0), "blocks of 32 weights need a row length that is a multiple of 32");
    require(!is_super(packed) || k % 256 == 0, "blocks of 256 weights need a row length that is a multiple of 256");
    require(data.shape(0) >= 1 && data.shape(1) == raw_row_bytes(stored, k), "rows have the wrong number of bytes");
    rows.push_back({stored, packed, static_cast<int64_t>(data.shape(0)), data.data()});
  }
  require(!rows.empty(), "a matrix needs at least one part");
  nb::gil_scoped_release released;
  Turn turn(engine);
  return pack_matrix(rows, k, engine.linear, engine.pool, engine.region);
}

VectorWeight make_vector(const std::string& stored_name, const Array1<uint8_t>& data) {
  const Format stored = format_named(stored_name);
  require(is_plain(stored), "a vector is stored as floats");
  const size_t item_bytes = stored == Format::f32 ? 4 : 2;
  require(data.shape(0) % item_bytes == 0, "a vector has the wrong number of bytes");
  VectorWeight vector{Vector(data.shape(0) / item_bytes)};
  to_float(stored, data.data(), static_cast<int64_t>(vector.values.size()), vector.values.data());
  return vector;
}

// ---- the cache ----------------------------------------------------------------------------------------------------

// (layers, bytes of a sequence in one of them), of a group of states
using StateGroup = std::pair<std::vector<int64_t>, size_t>;

// Notes of each layer of a group the group and the layer's place in it; `taken`: layers of any group.
void note_places(const std::vector<int64_t>& numbers, size_t group, std::vector<bool>& taken,
                 std::vector<int64_t>& groups, std::vector<int64_t>& places) {
  for (size_t place = 0; place < numbers.size(); ++place) {
    const int64_t layer = numbers[place];
    require(layer >= 0 && layer < static_cast<int64_t>(taken.size()) && !taken[static_cast<size_t>(layer)],
            "every layer is in one group, and they are numbered from 0 on");
    taken[static_cast<size_t>(layer)] = true;
    groups[static_cast<size_t>(layer)] = static_cast<int64_t>(group);
    places[static_cast<size_t>(layer)] = static_cast<int64_t>(place);
  }
}

// `layers_of_groups`: of each KV group the layers whose numbers are in its blocks; none: one group of all.
LayerPlaces places_of(const std::vector<std::vector<int64_t>>& layers_of_groups, const std::vector<StateGroup>& states,
                      const KVCache& cache) {
  LayerPlaces layers;
  require(states.empty() || !layers_of_groups.empty(), "beside states, the layers of every group are listed");
  if (layers_of_groups.empty()) return layers;
  layers.num_groups = static_cast<int64_t>(layers_of_groups.size());
  size_t count = 0;
  for (const auto& group : layers_of_groups) count += group.size();
  for (const auto& [numbers, state_bytes] : states) count += numbers.size();
  std::vector<bool> taken(count);
  for (auto* each : {&layers.groups, &layers.places, &layers.states.groups, &layers.states.places}) {
    each->assign(count, -1);
  }
  for (size_t group = 0; group < layers_of_groups.size(); ++group) {
    const auto& numbers = layers_of_groups[group];
    require(static_cast<int64_t>(numbers.size()) <= cache.num_layers,
            "a block does not have room for the layers of a group");
    note_places(numbers, group, taken, layers.groups, layers.places);
  }
  for (const auto& [numbers, state_bytes] : states) {
    require(state_bytes >= 1 && state_bytes <= cache.block_bytes(), "a block does not have room for a state");
    note_places(numbers, layers.states.state_bytes.size(), taken, layers.states.groups, layers.states.places);
    layers.states.state_bytes.push_back(state_bytes);
  }
  return layers;
}

BoundCache make_cache(Bytes memory, const std::string& dtype, int64_t num_blocks, int64_t num_layers,
                      int64_t num_kv_heads, int64_t block_size, int64_t head_size, bool is_latent,
                      const std::vector<std::vector<int64_t>>& layers_of_groups,
                      const std::vector<StateGroup>& states) {
  require(num_blocks >= 1 && num_layers >= 1 && num_kv_heads >= 1 && block_size >= 1 && head_size >= 1,
          "every size of a cache is at least 1");
  KVCache cache{memory.data(), kv_type_named(dtype), num_blocks, num_layers, num_kv_heads, block_size, head_size};
  cache.is_latent = is_latent;
  require(states.empty() || (cache.type != KVType::i8 && !is_latent),
          "states lie beside keys and values of floats, not of int8, and not beside latents");
  require(!is_latent || cache.type != KVType::i8, "a cache of latents cannot be stored as int8");
  require(memory.shape(0) >= static_cast<size_t>(num_blocks) * cache.block_bytes(), "the memory is too small");
  return {cache, places_of(layers_of_groups, states, cache), memory};
}

// What layers [first, end) of the model have in these blocks, of each KV group its own.
void clear_blocks(BoundCache& bound, const std::vector<std::vector<int64_t>>& blocks_of_groups, int64_t first,
                  int64_t end) {
  const KVCache& cache = bound.cache;
  const LayerPlaces& places = bound.places;
  require(first >= 0 && first <= end && end <= places.num_layers(cache), "a layer is outside the cache");
  require(static_cast<int64_t>(blocks_of_groups.size()) == places.num_groups, "blocks are listed for each KV group");
  for (size_t group = 0; group < blocks_of_groups.size(); ++group) {
    for (const int64_t block : blocks_of_groups[group]) {
      require(block >= 0 && block < cache.num_blocks, "a block is outside the cache");
      places.clear(cache, static_cast<int64_t>(group), block, first, end);
    }
  }
}

void copy_blocks(BoundCache& bound, const std::vector<std::pair<int64_t, int64_t>>& copies) {
  const KVCache& cache = bound.cache;
  for (const auto& [source, target] : copies) {
    require(source >= 0 && source < cache.num_blocks && target >= 0 && target < cache.num_blocks,
            "a block is outside the cache");
    if (source != target) {
      std::memcpy(cache.run(target, 0, 0, 0), cache.run(source, 0, 0, 0), cache.block_bytes());
    }
  }
}

// ---- operations ---------------------------------------------------------------------------------------------------

View view_of(const Columns& columns) { return {columns.first, columns.second}; }

const float* data_of(const VectorWeight* vector, int64_t size) {
  if (vector == nullptr) return nullptr;
  if (static_cast<int64_t>(vector->values.size()) != size) {
    refuse("a weight has " + std::to_string(vector->values.size()) + " elements, " + std::to_string(size) +
           " are needed");
  }
  return vector->values.data();
}

Activation activation_of(const std::string& name, float alpha, float limit) {
  using Kind = Activation::Kind;
  static const std::map<std::string, Kind> kinds = {
      {"silu", Kind::silu}, {"gelu_tanh", Kind::gelu_tanh}, {"clamped", Kind::clamped}};
  const auto found = kinds.find(name);
  if (found == kinds.end()) refuse("there is no activation " + name);
  return {found->second, alpha, limit};
}

Input input_of(const std::string& source, const Columns& columns, const VectorWeight* gain, float eps,
               const Matrix& matrix, float alpha, float limit) {
  const View view = view_of(columns);
  if (source == "plain") return {Source::plain, view, nullptr, eps, {}};
  if (source == "norm") return {Source::norm, view, data_of(gain, matrix.k), eps, {}};
  return {Source::activation, view, nullptr, eps, activation_of(source, alpha, limit)};
}

std::vector<Vector> copies_of(const std::vector<const VectorWeight*>& weights) {
  std::vector<Vector> copies;
  for (const VectorWeight* weight : weights) copies.push_back(weight->values);
  return copies;
}

// [C, kernel size] -> [kernel size, C]
Vector by_tap(const Vector& weights, int64_t kernel_size) {
  const size_t taps = kernel_size > 0 ? static_cast<size_t>(kernel_size) : 1, width = weights.size() / taps;
  require(width * taps == weights.size(), "a convolution needs a weight for each column and token");
  Vector turned(weights.size());
  for (size_t column = 0; column < width; ++column) {
    for (size_t tap = 0; tap < taps; ++tap) turned[tap * width + column] = weights[column * taps + tap];
  }
  return turned;
}

// Rows of a buffer as an array, for as long as the call that gets it.
nb::ndarray<nb::numpy, float> rows_array(float* rows, int64_t num_rows, int64_t width, int64_t stride) {
  nb::capsule nothing(rows, [](void*) noexcept {});
  const size_t shape[] = {static_cast<size_t>(num_rows), static_cast<size_t>(width)};
  const int64_t strides[] = {stride, 1};
  return nb::ndarray<nb::numpy, float>(rows, 2, shape, nothing, strides);
}

ExpertPlaces places_of(std::vector<std::vector<int32_t>> ranks, int64_t rank, int64_t num_ranks, int64_t num_slices,
                       int64_t count) {
  if (ranks.empty()) ranks.assign(static_cast<size_t>(count), {static_cast<int32_t>(rank)});
  std::vector<int64_t> own;
  int64_t num_held = 0;
  for (const std::vector<int32_t>& able : ranks) {
    own.push_back(std::find(able.begin(), able.end(), rank) != able.end() ? num_held++ : -1);
  }
  return {std::move(ranks), std::move(own), rank, num_ranks, num_slices};
}

op::Experts::Move move_by(nb::callable move) {
  return [=](float* rows, int64_t width, const ExpertGroups& groups) {
    nb::gil_scoped_acquire acquired;
    const auto by_rank = [&](const std::vector<int64_t>& firsts) {
      nb::list found;
      for (size_t rank = 0; rank + 1 < firsts.size(); ++rank) {
        found.append(rows_array(rows + firsts[rank] * width, firsts[rank + 1] - firsts[rank], width, width));
      }
      return found;
    };
    move(by_rank(groups.departures()), by_rank(groups.arrivals()), groups.most_moved());
  };
}

void bind_operations(nb::class_<Program>& program) {
  program.def("add_buffer", &Program::add_buffer, "width"_a, "A new buffer of `width` columns; its number.");
  program.def(
      "add_angles",
      [](Program& self, const Array1<float>& inv_freq, float scale, float growth, float growth_tokens) {
        return self.add_angles(Vector(inv_freq.data(), inv_freq.data() + inv_freq.shape(0)), scale, growth,
                               growth_tokens);
      },
      "inv_freq"_a, "scale"_a, "growth"_a = 0.0f, "growth_tokens"_a = 1.0f);
  program.def(
      "embed",
      [](Program& self, const Matrix* table, Columns out, float scale) {
        self.add(op::Embed{table, view_of(out), scale});
      },
      nb::keep_alive<1, 2>(), "table"_a, "out"_a, "scale"_a = 1.0f);
  program.def(
      "rms_norm",
      [](Program& self, Columns in, Columns out, int64_t num_groups, const VectorWeight* gain, float eps) {
        const int64_t size = static_cast<int64_t>(gain->values.size());
        self.add(op::RmsNorm{view_of(in), view_of(out), num_groups, size, gain->values.data(), eps});
      },
      nb::keep_alive<1, 5>(), "in_"_a, "out"_a, "num_groups"_a, "gain"_a, "eps"_a);
  program.def(
      "add_into",
      [](Program& self, Columns x, Columns y, int64_t width) { self.add(op::Add{view_of(x), view_of(y), width}); },
      "x"_a, "y"_a, "width"_a);
  program.def(
      "activate",
      [](Program& self, Columns in, Columns out, int64_t width, const std::string& activation, float alpha,
         float limit) {
        self.add(op::Activate{view_of(in), view_of(out), width, activation_of(activation, alpha, limit)});
      },
      "in_"_a, "out"_a, "width"_a, "activation"_a = "silu", "alpha"_a = 1.0f, "limit"_a = 0.0f);
  program.def(
      "multiply",
      [](Program& self, const std::string& source, Columns in, const VectorWeight* gain, float eps,
         const Matrix* matrix, const VectorWeight* bias, Columns out, bool accumulate, float alpha, float limit) {
        self.add(op::Multiply{input_of(source, in, gain, eps, *matrix, alpha, limit), matrix, data_of(bias, matrix->n),
                              view_of(out), accumulate});
      },
      nb::keep_alive<1, 4>(), nb::keep_alive<1, 6>(), nb::keep_alive<1, 7>(), "source"_a, "in_"_a, "gain"_a.none(),
      "eps"_a, "matrix"_a, "bias"_a.none(), "out"_a, "accumulate"_a, "alpha"_a = 1.0f, "limit"_a = 0.0f);
  program.def(
      "rope",
      [](Program& self, Columns x, int64_t num_heads, int64_t head_size, int angles) {
        self.add(op::Rope{view_of(x), num_heads, head_size, angles});
      },
      "x"_a, "num_heads"_a, "head_size"_a, "angles"_a);
  program.def(
      "attend",
      [](Program& self, Columns q, Columns k, Columns v, Columns out, int64_t num_heads, int64_t num_kv_heads,
         int64_t head_size, int64_t layer, const VectorWeight* q_gain, const VectorWeight* k_gain, float eps,
         int angles, int64_t window, int64_t chunk, float scale, const VectorWeight* sinks, int64_t first_kv_head) {
        self.add(op::Attend{view_of(q), view_of(k), view_of(v), view_of(out), num_heads, num_kv_heads, head_size,
                            layer, data_of(q_gain, head_size), data_of(k_gain, head_size), eps, angles, window, chunk,
                            scale, data_of(sinks, num_heads), first_kv_head});
      },
      nb::keep_alive<1, 10>(), nb::keep_alive<1, 11>(), nb::keep_alive<1, 17>(), "q"_a, "k"_a, "v"_a, "out"_a, "num_heads"_a,
      "num_kv_heads"_a, "head_size"_a, "layer"_a, "q_gain"_a.none(), "k_gain"_a.none(), "eps"_a, "angles"_a,
      "window"_a = 0, "chunk"_a = 0, "scale"_a = 0.0f, "sinks"_a = nb::none(), "first_kv_head"_a = -1);
  program.def(
      "experts",
      [](Program& self, Columns in, Columns scores, Columns out, const Matrix* router, const VectorWeight* bias,
         const std::vector<const Matrix*>& gate_up, const std::vector<const Matrix*>& down, int64_t num_active,
         bool is_sigmoid, bool normalises, float scale, int64_t num_groups, int64_t num_used_groups,
         const VectorWeight* logit_bias, const std::vector<const VectorWeight*>& gate_up_bias,
         const std::vector<const VectorWeight*>& down_bias, const std::string& activation, float alpha, float limit,
         bool weighs_inputs, int64_t group_sum_of, std::optional<Output<int64_t>> counts,
         std::vector<std::vector<int32_t>> ranks, int64_t rank, int64_t num_ranks, int64_t num_slices,
         std::optional<nb::callable> move, std::optional<Output<int64_t>> rank_counts) {
        const int64_t count = router->n;
        require(!gate_up.empty() && down.size() == gate_up.size(), "every expert needs two matrices");
        require(!counts || static_cast<int64_t>(counts->size()) == count, "every expert needs a count");
        require(!rank_counts || static_cast<int64_t>(rank_counts->size()) == num_ranks, "every rank needs a count");
        std::vector<Matrix> up, back;
        for (const Matrix* matrix : gate_up) up.push_back(*matrix);
        for (const Matrix* matrix : down) back.push_back(*matrix);
        self.add(op::Experts{view_of(in), view_of(scores), view_of(out), router, data_of(bias, count),
                             data_of(logit_bias, count), std::move(up), std::move(back), copies_of(gate_up_bias),
                             copies_of(down_bias), activation_of(activation, alpha, limit), weighs_inputs,
                             {count, num_active, is_sigmoid, normalises, scale, num_groups, num_used_groups,
                              group_sum_of},
                             places_of(std::move(ranks), rank, num_ranks, num_slices, count),
                             counts ? counts->data() : nullptr, move ? move_by(*move) : op::Experts::Move(),
                             rank_counts ? rank_counts->data() : nullptr});
      },
      nb::keep_alive<1, 5>(), nb::keep_alive<1, 6>(), nb::keep_alive<1, 15>(), nb::keep_alive<1, 23>(), nb::keep_alive<1, 29>(), "in_"_a, "scores"_a, "out"_a, "router"_a, "bias"_a.none(),
      "gate_up"_a, "down"_a, "num_active"_a, "is_sigmoid"_a, "normalises"_a, "scale"_a, "num_groups"_a,
      "num_used_groups"_a, "logit_bias"_a = nb::none(), "gate_up_bias"_a = std::vector<const VectorWeight*>(),
      "down_bias"_a = std::vector<const VectorWeight*>(), "activation"_a = "silu", "alpha"_a = 1.0f, "limit"_a = 0.0f,
      "weighs_inputs"_a = false, "group_sum_of"_a = 2, "counts"_a = nb::none(),
      "ranks"_a = std::vector<std::vector<int32_t>>(), "rank"_a = 0, "num_ranks"_a = 1, "num_slices"_a = 1,
      "move"_a = nb::none(), "rank_counts"_a = nb::none(),
      "`ranks`, by expert: those that have its matrices, ascending; none: this one has all. `num_slices`: whose sums a\n"
      "rank makes. `move(outgoing, incoming, most_rows)`, rows by rank: sends some and fills the others; `most_rows`:\n"
      "that any rank sends to another.");
  program.def(
      "multiply_heads",
      [](Program& self, Columns in, Columns out, const std::vector<const Matrix*>& matrices) {
        std::vector<Matrix> by_head;
        for (const Matrix* matrix : matrices) by_head.push_back(*matrix);
        self.add(op::MultiplyHeads{view_of(in), view_of(out), std::move(by_head)});
      },
      "in_"_a, "out"_a, "matrices"_a);
  program.def(
      "attend_latents",
      [](Program& self, Columns q, Columns rotated, Columns latent, Columns key, Columns out, int64_t num_heads,
         int64_t latent_size, int64_t key_size, int64_t layer, const VectorWeight* gain, float eps, int angles,
         float scale) {
        self.add(op::AttendLatents{view_of(q), view_of(rotated), view_of(latent), view_of(key), view_of(out), num_heads,
                                   latent_size, key_size, layer, data_of(gain, latent_size), eps, angles, scale});
      },
      nb::keep_alive<1, 11>(), "q"_a, "rotated"_a, "latent"_a, "key"_a, "out"_a, "num_heads"_a, "latent_size"_a,
      "key_size"_a, "layer"_a, "gain"_a.none(), "eps"_a, "angles"_a, "scale"_a);
  program.def(
      "pass_states",
      [](Program& self, Columns in, Columns gates, Columns out, int64_t layer, int64_t num_key_heads,
         int64_t num_value_heads, int64_t key_size, int64_t value_size, int64_t kernel_size, int64_t num_state_heads,
         int64_t first_head, bool is_tiled, const VectorWeight& convolution, const VectorWeight& decay,
         const VectorWeight& decay_bias) {
        const DeltaSizes sizes{num_key_heads, num_value_heads, key_size, value_size, kernel_size, num_state_heads,
                               first_head, is_tiled};
        self.add(op::PassStates{view_of(in), view_of(gates), view_of(out), layer, sizes,
                                by_tap(convolution.values, kernel_size), decay.values, decay_bias.values});
      },
      "in_"_a, "gates"_a, "out"_a, "layer"_a, "num_key_heads"_a, "num_value_heads"_a, "key_size"_a, "value_size"_a,
      "kernel_size"_a, "num_state_heads"_a, "first_head"_a, "is_tiled"_a, "convolution"_a, "decay"_a, "decay_bias"_a,
      "`convolution` [C, kernel size], as checkpoints have it.");
  program.def(
      "gate",
      [](Program& self, Columns in, Columns scores, Columns out, int64_t width, bool has_one_score, bool is_silu,
         const VectorWeight* gain, float eps) {
        const int64_t head_size = gain == nullptr ? 0 : static_cast<int64_t>(gain->values.size());
        self.add(op::Gate{view_of(in), view_of(scores), view_of(out), width, has_one_score, is_silu,
                          gain == nullptr ? nullptr : gain->values.data(), head_size, eps});
      },
      nb::keep_alive<1, 8>(), "in_"_a, "scores"_a, "out"_a, "width"_a, "has_one_score"_a = false, "is_silu"_a = false,
      "gain"_a = nb::none(), "eps"_a = 0.0f);
  program.def(
      "exchange",
      [](Program& self, Columns x, int64_t width, nb::callable call) {
        self.add(op::Exchange{view_of(x), width, [=](float* rows, int64_t num_rows, int64_t stride) {
                                nb::gil_scoped_acquire acquired;
                                call(rows_array(rows, num_rows, width, stride));
                              }});
      },
      "x"_a, "width"_a, "call"_a, "`call` adds to the rows [T, width], in place, those of other programs.");
  program.def(
      "compact", [](Program& self, std::vector<int> buffers) { self.add(op::Compact{std::move(buffers)}); },
      "buffers"_a, "From here on only rows whose logits were asked for are computed.");
  program.def(
      "take_hidden",
      [](Program& self, Columns out, int64_t width) { self.add(op::TakeHidden{view_of(out), width}); }, "out"_a,
      "width"_a, "What the step brings, in place of embeddings.");
  program.def(
      "give_hidden", [](Program& self, Columns in, int64_t width) { self.add(op::GiveHidden{view_of(in), width}); },
      "in_"_a, "width"_a, "What the step takes away, in place of logits.");
  program.def(
      "logits",
      [](Program& self, const std::string& source, Columns in, const VectorWeight* gain, float eps,
         const Matrix* head) { self.add(op::Logits{input_of(source, in, gain, eps, *head, 1.0f, 0.0f), head}); },
      nb::keep_alive<1, 4>(), nb::keep_alive<1, 6>(), "source"_a, "in_"_a, "gain"_a.none(), "eps"_a, "head"_a);
}

// ---- a step -------------------------------------------------------------------------------------------------------

// The memory for logits as an array [rows, V], which keeps the memory alive.
nb::ndarray<nb::numpy, float> logit_array(Program& program, int64_t num_rows) {
  require(num_rows >= 0 && program.vocab_size() > 0, "a program without logits has no memory for them");
  LogitMemory memory = program.logit_memory(num_rows);
  float* data = memory.values.get();
  auto* owner = new std::shared_ptr<float[]>(std::move(memory.values));
  nb::capsule capsule(owner, [](void* raw) noexcept { delete static_cast<std::shared_ptr<float[]>*>(raw); });
  return nb::ndarray<nb::numpy, float>(
      data, {static_cast<size_t>(memory.num_rows), static_cast<size_t>(program.vocab_size())}, capsule);
}

double run(Program& program, const BoundCache& cache, const Array1<int64_t>& token_ids,
           const Array1<int64_t>& positions, const GroupedIds& block_of_token,
              const Array1<int64_t>& offset_of_token, const Array1<int64_t>& row_first_token,
              const Array1<int64_t>& context_lengths, const GroupedIds& block_tables, int64_t sliding_window,
              const Array1<int64_t>& logit_tokens, Output<int64_t> best, Output<bool> finite,
              const std::optional<Array2<float>>& taken, const std::optional<Given>& given,
              const std::vector<Array2<int64_t>>& state_blocks) {
  const size_t num_tokens = token_ids.shape(0), num_rows = context_lengths.shape(0);
  const size_t num_groups = static_cast<size_t>(cache.places.num_groups);
  require(positions.shape(0) == num_tokens && block_of_token.size() == num_groups * num_tokens &&
              offset_of_token.shape(0) == num_tokens,
          "every token needs a position, a block and an offset");
  require(row_first_token.shape(0) == num_rows + 1 && num_rows > 0 && block_tables.ndim() >= 2 &&
              block_tables.size() == num_groups * num_rows * block_tables.shape(block_tables.ndim() - 1),
          "every row needs its first token, and a block table for each KV group of the cache");
  require(sliding_window >= 0, "a window cannot be negative");
  StepInputs inputs{};
  inputs.attention = {static_cast<int64_t>(num_tokens),
                      static_cast<int64_t>(num_rows),
                      row_first_token.data(),
                      context_lengths.data(),
                      block_tables.data(),
                      static_cast<int64_t>(block_tables.shape(block_tables.ndim() - 1)),
                      block_of_token.data(),
                      offset_of_token.data(),
                      sliding_window,
                      program.num_heads()};
  inputs.token_ids = token_ids.data();
  inputs.positions = positions.data();
  inputs.logit_tokens = logit_tokens.data();
  inputs.num_logit_tokens = static_cast<int64_t>(logit_tokens.shape(0));
  require(best.shape(0) >= logit_tokens.shape(0) && finite.shape(0) >= logit_tokens.shape(0),
          "every row of logits needs room for its summary");
  const size_t taken_width = static_cast<size_t>(program.taken_width());
  const size_t given_width = static_cast<size_t>(program.given_width());
  require(taken.has_value() == (taken_width > 0) &&
              (!taken.has_value() || (taken->shape(0) == num_tokens && taken->shape(1) == taken_width)),
          "a step brings the hidden states of all its tokens to a program that takes them, and to no other");
  require(given.has_value() == (given_width > 0) &&
              (!given.has_value() || (given->shape(0) == num_tokens && given->shape(1) == given_width)),
          "a step has room for the hidden states of all its tokens where a program gives them, and nowhere else");
  if (taken.has_value()) inputs.taken = taken->data();
  if (given.has_value()) inputs.given = given->data();
  for (const auto& blocks : state_blocks) {
    require(blocks.shape(0) == num_rows, "every row needs the blocks of its state");
    inputs.states.push_back({blocks.data(), static_cast<int64_t>(blocks.shape(1))});
  }
  const StepSummaries summaries{best.data(), finite.data()};
  nb::gil_scoped_release released;
  Turn turn(program.engine());
  return program.run(cache.cache, cache.places, inputs, summaries);
}

// ---- draws --------------------------------------------------------------------------------------------------------

// (row, temperature, min_p, top_p, top_k, seed, sample_index, position)
using Draw = std::tuple<int64_t, double, double, double, int64_t, uint64_t, uint64_t, uint64_t>;

std::vector<int64_t> draw_tokens(Engine& engine, const Array2<float>& logits, const std::vector<Draw>& draws) {
  std::vector<int64_t> rows;
  std::vector<DrawParams> params;
  for (const auto& [row, temperature, min_p, top_p, top_k, seed, sample_index, position] : draws) {
    require(row >= 0 && row < static_cast<int64_t>(logits.shape(0)), "a draw names a row that is not there");
    require(temperature > 0.0, "temperature must be above 0; the best token needs no draw");
    rows.push_back(row);
    params.push_back({temperature, min_p, top_p, top_k, seed, sample_index, position});
  }
  require(logits.shape(1) >= 1, "a row needs at least one logit");
  std::vector<int64_t> drawn(rows.size());
  nb::gil_scoped_release released;
  Turn turn(engine);
  draw_rows(engine, logits.data(), static_cast<int64_t>(logits.shape(1)), rows, params, drawn.data());
  return drawn;
}

// ---- masks --------------------------------------------------------------------------------------------------------

using Masked = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::vector<int64_t> mask(Engine& engine, const Array2<float>& logits, const std::vector<int64_t>& rows,
                          const Array2<uint32_t>& masks, const Masked& masked) {
  const size_t vocab_size = logits.shape(1);
  require(vocab_size >= 1, "a row needs at least one logit");
  for (const int64_t row : rows)
    require(row >= 0 && row < static_cast<int64_t>(logits.shape(0)), "a mask is for a row that is not there");
  require(masks.shape(0) == rows.size() && masked.shape(0) == rows.size(), "every row needs a mask and a place");
  require(masks.shape(1) == (vocab_size + 31) / 32, "a mask has one bit for each logit");
  require(masked.shape(1) == vocab_size, "a masked row is as long as the row");
  std::vector<int64_t> best(rows.size());
  nb::gil_scoped_release released;
  Turn turn(engine);
  mask_rows(engine, {logits.data(), static_cast<int64_t>(vocab_size), rows, masks.data(),
                     static_cast<int64_t>(masks.shape(1)), masked.data(), best.data()});
  return best;
}

}  // namespace

void bind_program(nb::module_& module) {
  nb::class_<Engine>(module, "Engine", "A worker's threads, kernels and memory of weights. One caller at a time.")
      .def(nb::init<const std::string&, const std::vector<int>&>(), "path"_a, "cores"_a)
      .def_prop_ro("path", [](const Engine& self) { return path_name(self.choice.path); })
      .def_prop_ro("reason", [](const Engine& self) { return self.choice.reason; })
      .def_prop_ro("num_threads", [](const Engine& self) { return self.pool.size(); })
      .def("use_cores", [](Engine& self, const std::vector<int>& cores) {
             nb::gil_scoped_release released;
             Turn turn(self);
             self.pool.use(cores);
           },
           "cores"_a, "Compute on one thread per core from now on; the caller's is the first.")
      .def_prop_ro("weight_bytes", [](const Engine& self) { return self.region.used_bytes(); })
      .def("matrix", &make_matrix, nb::keep_alive<0, 1>(), "parts"_a, "k"_a,
           "Pack parts (stored, packed, uint8 [rows, bytes of a row]), stacked along their rows.")
      .def("draw", &draw_tokens, "logits"_a, "draws"_a,
           "One token per (row, temperature, min_p, top_p, top_k, seed, sample_index, position).")
      .def("mask", &mask, "logits"_a.noconvert(), "rows"_a, "masks"_a.noconvert(), "masked"_a.noconvert(),
           "Into masked [N, V] what masks [N, ceil(V / 32)], a bit for each token, leave of these rows of logits "
           "[R, V]; elsewhere minus infinity. The best token of each.");
  nb::class_<Matrix>(module, "Matrix")
      .def_prop_ro("shape", [](const Matrix& self) { return std::pair(self.n, self.k); })
      .def_prop_ro("formats", &format_names, "What its rows are stored as.")
      .def("wide", [](const Matrix& self) { return twin(self, widened); }, nb::keep_alive<0, 1>(),
           "The same packed weights, whose products round inputs to 16 bits where they are integers.")
      .def("rounded", [](const Matrix& self) { return twin(self, rounded); }, nb::keep_alive<0, 1>(),
           "The same packed weights, whose products round inputs to bfloat16 where they are bfloat16.");
  nb::class_<VectorWeight>(module, "Vector")
      .def("__init__",
           [](VectorWeight* self, const std::string& stored, const Array1<uint8_t>& data) {
             new (self) VectorWeight(make_vector(stored, data));
           })
      .def_prop_ro("size", [](const VectorWeight& self) { return self.values.size(); });
  nb::class_<BoundCache>(module, "KVCache")
      .def("__init__",
           [](BoundCache* self, Bytes memory, const std::string& dtype, int64_t num_blocks, int64_t num_layers,
              int64_t num_kv_heads, int64_t block_size, int64_t head_size, bool is_latent,
              const std::vector<std::vector<int64_t>>& layers_of_groups, const std::vector<StateGroup>& states) {
             new (self) BoundCache(make_cache(memory, dtype, num_blocks, num_layers, num_kv_heads, block_size,
                                              head_size, is_latent, layers_of_groups, states));
           },
           "memory"_a, "dtype"_a, "num_blocks"_a, "num_layers"_a, "num_kv_heads"_a, "block_size"_a, "head_size"_a,
           "is_latent"_a = false, "layers_of_groups"_a = std::vector<std::vector<int64_t>>(),
           "states"_a = std::vector<StateGroup>())
      .def("clear", &clear_blocks, "blocks_of_groups"_a, "first"_a, "end"_a,
           "What layers [first, end) of the model have in blocks, of each KV group its own.")
      .def("copy", &copy_blocks, "copies"_a, "Whole blocks, (source, target), in order.");
  auto program = nb::class_<Program>(module, "Program", "Operations recorded once, replayed by one call per step.");
  program.def(nb::init<Engine&>(), nb::keep_alive<1, 2>(), "engine"_a);
  bind_operations(program);
  program.def("run", &run, "cache"_a, "token_ids"_a, "positions"_a, "block_of_token"_a,
              "offset_of_token"_a, "row_first_token"_a, "context_lengths"_a, "block_tables"_a, "sliding_window"_a,
              "logit_tokens"_a, "best"_a, "finite"_a, "taken"_a.noconvert() = nb::none(),
              "given"_a.noconvert() = nb::none(), "state_blocks"_a = nb::list(),
              "Compute a step into the first rows of logit_memory, best and finite; the seconds its operations took.");
  program.def("logit_memory", &logit_array, "num_rows"_a,
              "Where steps leave their logits: [at least num_rows, V], until a step needs more rows.");
  program.def_prop_ro("hidden_size", &Program::given_width, "Of the hidden states that it gives; 0: it gives none.");
  program.def_prop_rw(
      "clears_blocks", [](const Program& self) { return self.clears_blocks(); },
      [](Program& self, bool on) { self.set_clears_blocks(on); });
  program.def_prop_rw(
      "profiling", [](const Program& self) { return self.is_profiling(); },
      [](Program& self, bool on) { self.set_profiling(on); });
  program.def_prop_ro("seconds_by_kind", [](const Program& self) {
    static const char* const names[] = {"embed", "rms_norm", "add",    "activate", "multiply",
                                        "rope",  "attend",   "compact", "logits",   "experts",
                                        "multiply_heads", "attend_latents", "exchange", "take_hidden", "give_hidden",
                                        "pass_states", "gate"};
    static_assert(std::size(names) == std::variant_size_v<Operation>);
    nb::dict seconds;
    for (size_t kind = 0; kind < std::size(names); ++kind) seconds[names[kind]] = self.seconds_by_kind()[kind];
    return seconds;
  });
}

}  // namespace relevo
