// Python bindings of attention: a paged cache and a step over numpy arrays, for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "attention/attention.h"
#include "cpu/threads.h"

namespace nb = nanobind;

namespace relevo {
namespace {

using Bytes = nb::ndarray<uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstMatrix = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using ConstVector = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ids = nb::ndarray<const int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using IdMatrix = nb::ndarray<const int64_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

void require(bool holds, const char* otherwise) {
  if (!holds) throw std::invalid_argument(otherwise);
}

KVType kv_type(const std::string& name) {
  if (name == "f32") return KVType::f32;
  if (name == "f16") return KVType::f16;
  if (name == "bf16") return KVType::bf16;
  if (name == "i8") return KVType::i8;
  throw std::invalid_argument("'" + name + "' is none of f32, f16, bf16, i8");
}

struct PagedCache {
  Bytes memory;
  KVCache cache;

  PagedCache(const std::string& type, Bytes bytes, int64_t num_layers, int64_t num_kv_heads, int64_t block_size,
             int64_t head_size)
      : memory(bytes) {
    require(num_layers > 0 && num_kv_heads > 0 && block_size > 0, "a cache has layers, heads and tokens");
    require(head_size > 0 && head_size % 8 == 0, "head_size must be a multiple of 8");
    cache = {bytes.data(),  kv_type(type), static_cast<int64_t>(bytes.shape(0)), num_layers, num_kv_heads, block_size,
             head_size};
    require(bytes.shape(1) == cache.block_bytes(), "the memory must be [blocks, bytes per block]");
  }
};

struct Rows {
  Ids row_first_token, context_lengths, block_of_token, offset_of_token;
  IdMatrix block_tables;
  std::optional<ConstVector> sinks;
  AttentionStep step;

  Rows(Ids first_tokens, Ids contexts, IdMatrix tables, Ids blocks, Ids offsets, int64_t sliding_window,
       int64_t num_heads, std::optional<ConstVector> head_sinks)
      : row_first_token(first_tokens),
        context_lengths(contexts),
        block_of_token(blocks),
        offset_of_token(offsets),
        block_tables(tables),
        sinks(head_sinks) {
    const int64_t num_rows = static_cast<int64_t>(contexts.shape(0));
    require(static_cast<int64_t>(first_tokens.shape(0)) == num_rows + 1 && first_tokens(0) == 0,
            "row_first_token must be [B + 1] and begin with 0");
    const int64_t num_tokens = first_tokens(num_rows);
    require(static_cast<int64_t>(blocks.shape(0)) == num_tokens && offsets.shape(0) == blocks.shape(0),
            "block_of_token and offset_of_token must be [T]");
    require(static_cast<int64_t>(tables.shape(0)) == num_rows, "block_tables must have a row for each row of the step");
    require(sliding_window >= 0 && num_heads > 0, "sliding_window or num_heads is negative");
    step = {num_tokens,
            num_rows,
            row_first_token.data(),
            context_lengths.data(),
            block_tables.data(),
            static_cast<int64_t>(tables.shape(1)),
            block_of_token.data(),
            offset_of_token.data(),
            sliding_window,
            num_heads};
    require(!sinks || static_cast<int64_t>(sinks->shape(0)) == num_heads, "sinks must be [H]");
    if (sinks) step.sinks = sinks->data();
    for (int64_t row = 0; row < num_rows; ++row) {
      const int64_t num_queries = first_tokens(row + 1) - first_tokens(row);
      require(num_queries >= 0 && num_queries <= contexts(row), "a row has fewer than 0 tokens or more than its context");
    }
  }

  // Every slot that a kernel will touch is in the cache.
  void require_fits(const KVCache& cache, int64_t layer) const {
    require(layer >= 0 && layer < cache.num_layers, "the cache has no such layer");
    require(step.num_heads % cache.num_kv_heads == 0, "num_heads is no multiple of the cache's KV heads");
    for (int64_t t = 0; t < step.num_tokens; ++t) {
      require(step.block_of_token[t] >= 0 && step.block_of_token[t] < cache.num_blocks, "block_of_token: no such block");
      require(step.offset_of_token[t] >= 0 && step.offset_of_token[t] < cache.block_size, "offset_of_token: no such slot");
    }
    for (int64_t row = 0; row < step.num_rows; ++row) require_row_fits(cache, row);
  }

  void require_row_fits(const KVCache& cache, int64_t row) const {
    const int64_t context = step.context_lengths[row];
    const int64_t num_queries = step.row_first_token[row + 1] - step.row_first_token[row];
    const int64_t first_end = context - num_queries + 1;
    const bool all = step.sliding_window == 0 || step.sliding_window >= first_end;
    const int64_t first_block = (all ? 0 : first_end - step.sliding_window) / cache.block_size;
    const int64_t end_block = (context + cache.block_size - 1) / cache.block_size;
    require(end_block <= step.table_width, "a context is longer than its block table");
    for (int64_t i = first_block; i < end_block; ++i) {
      const int64_t block = step.block_tables[row * step.table_width + i];
      require(block >= 0 && block < cache.num_blocks, "block_tables: no such block");
    }
  }
};

struct AttendJob {
  const AttentionKernels& kernels;
  const KVCache& cache;
  const AttentionStep& step;
  int64_t layer;
  AttentionPlan plan;
  std::unique_ptr<float[]> scratch;
  const float* q;
  int64_t q_stride;
  float* out;
  int64_t out_stride;
  ThreadPool* pool;
  Tasks tasks{}, merges{};

  static void body(void* context, int) {
    AttendJob& job = *static_cast<AttendJob*>(context);
    const AttentionPlan& plan = job.plan;
    for (int64_t i; (i = job.tasks.take(static_cast<int64_t>(plan.tasks.size()))) >= 0;) {
      job.kernels.attend(job.cache, job.layer, job.step, plan.tasks[static_cast<size_t>(i)], job.q, job.q_stride,
                         job.out, job.out_stride, job.scratch.get());
    }
    if (plan.merges.empty()) return;
    job.pool->barrier();
    for (int64_t i; (i = job.merges.take(static_cast<int64_t>(plan.merges.size()))) >= 0;) {
      job.kernels.merge(job.cache, job.step, plan.merges[static_cast<size_t>(i)], job.scratch.get(), job.out,
                        job.out_stride);
    }
  }
};

void store(const std::string& path, PagedCache& paged, const Rows& rows, int64_t layer, ConstMatrix k, ConstMatrix v,
           int64_t first, int64_t end) {
  rows.require_fits(paged.cache, layer);
  const int64_t stride = static_cast<int64_t>(k.shape(1));
  require(k.shape(1) == v.shape(1) && stride >= paged.cache.num_kv_heads * paged.cache.head_size,
          "k and v must be [T, stride] with room for the KV heads");
  require(0 <= first && first <= end && end <= rows.step.num_tokens && static_cast<int64_t>(k.shape(0)) >= end &&
              static_cast<int64_t>(v.shape(0)) >= end,
          "tokens [first, end) are not all there");
  attention_kernels(choose_path(path).path)
      .store(paged.cache, layer, rows.step, k.data(), v.data(), stride, first, end);
}

// Returns (tasks, merges) of the plan.
std::pair<int64_t, int64_t> attend(const std::string& path, PagedCache& paged, const Rows& rows, int64_t layer,
                                   ConstMatrix q, Matrix out, int num_threads) {
  rows.require_fits(paged.cache, layer);
  const int64_t width = rows.step.num_heads * paged.cache.head_size;
  require(static_cast<int64_t>(q.shape(0)) >= rows.step.num_tokens && static_cast<int64_t>(q.shape(1)) >= width,
          "q must be [T, stride] with room for the heads");
  require(static_cast<int64_t>(out.shape(0)) >= rows.step.num_tokens && static_cast<int64_t>(out.shape(1)) >= width,
          "out must be [T, stride] with room for the heads");
  require(num_threads >= 1, "num_threads must be at least 1");
  const AttentionKernels& kernels = attention_kernels(choose_path(path).path);
  AttentionPlan plan = plan_attention(rows.step, paged.cache.num_kv_heads, paged.cache.head_size, num_threads);
  const std::pair<int64_t, int64_t> counts(plan.tasks.size(), plan.merges.size());
  ThreadPool pool(std::vector<int>(static_cast<size_t>(num_threads), -1));
  std::unique_ptr<float[]> scratch(new float[plan.scratch_floats]);
  AttendJob job{kernels,
                paged.cache,
                rows.step,
                layer,
                std::move(plan),
                std::move(scratch),
                q.data(),
                static_cast<int64_t>(q.shape(1)),
                out.data(),
                static_cast<int64_t>(out.shape(1)),
                &pool};
  nb::gil_scoped_release unlocked;
  pool.run(AttendJob::body, &job);
  return counts;
}

}  // namespace

void bind_attention(nb::module_& module) {
  nb::class_<PagedCache>(module, "PagedCache", "A key-value cache over uint8 memory [blocks, bytes per block].")
      .def(nb::init<const std::string&, Bytes, int64_t, int64_t, int64_t, int64_t>(), nb::arg("kv_type"),
           nb::arg("memory").noconvert(), nb::arg("num_layers"), nb::arg("num_kv_heads"), nb::arg("block_size"),
           nb::arg("head_size"));
  nb::class_<Rows>(module, "AttentionRows", "The rows of one step and where their tokens lie.")
      .def(nb::init<Ids, Ids, IdMatrix, Ids, Ids, int64_t, int64_t, std::optional<ConstVector>>(), nb::arg("row_first_token").noconvert(),
           nb::arg("context_lengths").noconvert(), nb::arg("block_tables").noconvert(),
           nb::arg("block_of_token").noconvert(), nb::arg("offset_of_token").noconvert(), nb::arg("sliding_window"),
           nb::arg("num_heads"), nb::arg("sinks") = nb::none());
  module.def(
      "kv_block_bytes",
      [](const std::string& type, int64_t num_layers, int64_t num_kv_heads, int64_t block_size, int64_t head_size) {
        return KVCache{nullptr, kv_type(type), 0, num_layers, num_kv_heads, block_size, head_size}.block_bytes();
      },
      nb::arg("kv_type"), nb::arg("num_layers"), nb::arg("num_kv_heads"), nb::arg("block_size"), nb::arg("head_size"),
      "Bytes of one block.");
  module.def("attention_store", &store, nb::arg("path"), nb::arg("cache"), nb::arg("rows"), nb::arg("layer"),
             nb::arg("k").noconvert(), nb::arg("v").noconvert(), nb::arg("first"), nb::arg("end"),
             "Write k and v of tokens [first, end) into their slots.");
  module.def("attention", &attend, nb::arg("path"), nb::arg("cache"), nb::arg("rows"), nb::arg("layer"),
             nb::arg("q").noconvert(), nb::arg("out").noconvert(), nb::arg("num_threads"),
             "Attend on a team of threads; out [T, H * D]. Returns how many tasks and merges the plan had.");
}

}  // namespace relevo
