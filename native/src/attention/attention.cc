// The layout of the cache, the cutting of a step's attention into tasks, and which kernels a path uses.
#include "attention/attention.h"

#include <algorithm>
#include <cstdlib>
#include <new>

#include "attention/attention_scratch.h"

namespace relevo {
namespace {

size_t element_bytes(KVType type) {
  switch (type) {
    case KVType::f32:
      return 4;
    case KVType::f16:
    case KVType::bf16:
      return 2;
    default:
      return 1;
  }
}

int64_t rounded_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }

// What one row of the step needs, for one KV head.
struct RowWork {
  const AttentionStep& step;
  int64_t row, num_queries, context;
  int64_t first_visible(int64_t query) const {
    return step.first_visible(end_visible(query));
  }
  int64_t first_split_key(int64_t query) const { return first_visible(query) / SPLIT_TOKENS * SPLIT_TOKENS; }
  int64_t end_visible(int64_t query) const { return context - num_queries + query + 1; }
  // Keys looked at by queries [first, end), and once more for their conversion. The unit is arbitrary.
  int64_t cost(int64_t first, int64_t end) const {
    const int64_t each = (end_visible(end - 1) - first_visible(end - 1) + end_visible(first) - first_visible(first)) / 2;
    return (end - first + 1) * std::max<int64_t>(each, 1);
  }
};

// Measured: with more queries per task a conversion of keys and values is shared by more, with fewer threads balance
// better; the gain flattens here.
constexpr int64_t MAX_TILE_ROWS = 192;  // queries of a task times query heads per KV head
constexpr int64_t MIN_QUERIES = 16;
constexpr int64_t TASKS_PER_THREAD = 3;
constexpr int64_t LEAST_PER_THREAD = 2;  // tasks of a single row, where longer runs outweigh how even the shares are
// Measured: with so few queries a task waits for memory, which is read faster in longer runs: heads that lie side by side.
constexpr int64_t FEW_QUERIES = 2;

struct Planner {
  int64_t num_kv_heads, heads_per_kv, num_threads, max_cost;
  bool balance;
  AttentionPlan plan{};
  std::vector<int64_t> costs{};
  int64_t next_partial = 0;

  int64_t queries_per_task(const RowWork& work) const {
    const int64_t most = std::max<int64_t>(1, MAX_TILE_ROWS / heads_per_kv);
    int64_t queries = std::min(work.num_queries, most);
    while (balance && queries >= 2 * MIN_QUERIES &&
           work.cost(work.num_queries - queries, work.num_queries) > max_cost) {
      queries /= 2;
    }
    return queries;
  }

  int64_t num_splits(const RowWork& work) const {
    return rounded_up(work.context - work.first_split_key(0), SPLIT_TOKENS) / SPLIT_TOKENS;
  }

  // Tasks among which the keys of this row are to be shared.
  int64_t num_pieces(const RowWork& work, int64_t queries, int64_t heads) const {
    const int64_t cost = heads * work.cost(work.num_queries - queries, work.num_queries);
    return balance ? rounded_up(cost, max_cost) / max_cost : 1;
  }

  // KV heads of a task: all, if there are splits enough to share it out.
  int64_t heads_per_task(const RowWork& work, int64_t queries) const {
    if (work.num_queries > FEW_QUERIES) return 1;
    const int64_t wanted = std::min(num_pieces(work, queries, num_kv_heads), LEAST_PER_THREAD * num_threads);
    return num_splits(work) >= wanted ? num_kv_heads : 1;
  }

  void add(const RowWork& work) {
    const int64_t queries = queries_per_task(work), heads = heads_per_task(work, queries), splits = num_splits(work);
    const int64_t pieces = std::min(splits, num_pieces(work, queries, heads));
    for (int64_t head = 0; head < num_kv_heads; head += heads) {
      if (pieces == 1) {
        add_whole(work, head, heads, queries);
      } else {
        add_pieces(work, head, heads, queries, (splits + pieces - 1) / pieces);
      }
    }
  }

  void add_whole(const RowWork& work, int64_t head, int64_t heads, int64_t queries) {
    for (int64_t first = 0; first < work.num_queries; first += queries) {
      const int64_t end = std::min(first + queries, work.num_queries);
      push({work.row, first, end, head, work.first_split_key(first), work.end_visible(end - 1), -1, heads},
           heads * work.cost(first, end));
    }
  }

  void add_pieces(const RowWork& work, int64_t head, int64_t heads, int64_t queries, int64_t splits) {
    const int64_t first_key = work.first_split_key(0), count = num_splits(work);
    const int64_t records_per_split = work.num_queries * heads_per_kv;
    for (int64_t split = 0; split < count; split += splits) {
      const int64_t from = first_key + split * SPLIT_TOKENS;
      const int64_t to = std::min(from + splits * SPLIT_TOKENS, work.context);
      for (int64_t first = 0; first < work.num_queries; first += queries) {
        const int64_t end = std::min(first + queries, work.num_queries);
        push({work.row, first, end, head, from, to, next_partial + split * records_per_split, heads,
              count * records_per_split},
             heads * (end - first + 1) * (to - from));
      }
    }
    for (int64_t each = head; each < head + heads; ++each) {
      plan.merges.push_back({work.row, each, next_partial, count});
      next_partial += count * records_per_split;
    }
  }

  void push(const AttentionPlan::Task& task, int64_t cost) {
    plan.tasks.push_back(task);
    costs.push_back(cost);
  }

  // Longest first: whoever finishes early takes a short one.
  void sort_by_cost() {
    std::vector<size_t> order(costs.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return costs[a] > costs[b]; });
    std::vector<AttentionPlan::Task> sorted;
    sorted.reserve(order.size());
    for (const size_t i : order) sorted.push_back(plan.tasks[i]);
    plan.tasks.swap(sorted);
  }
};

struct Scratch {
  float* memory = nullptr;
  size_t num_floats = 0;
  ~Scratch() { std::free(memory); }
};

}  // namespace

size_t KVCache::row_bytes() const { return static_cast<size_t>(head_size) * element_bytes(type); }

size_t KVCache::run_bytes() const {
  const size_t scale_bytes = type == KVType::i8 ? sizeof(float) : 0;
  return static_cast<size_t>(block_size) * (row_bytes() + scale_bytes);
}

size_t KVCache::block_bytes() const {
  return static_cast<size_t>(is_latent ? num_layers : num_layers * 2 * heads_in_block()) * run_bytes();
}

KVCache KVCache::of_heads(int64_t first, int64_t count) const {
  KVCache part = *this;
  part.stored_kv_heads = num_kv_heads;
  part.first_kv_head = first;
  part.num_kv_heads = count;
  return part;
}

uint8_t* KVCache::run(int64_t block, int64_t layer, int64_t which, int64_t head) const {
  const int64_t index = is_latent ? layer : (layer * 2 + which) * heads_in_block() + first_kv_head + head;
  return base + static_cast<size_t>(block) * block_bytes() + static_cast<size_t>(index) * run_bytes();
}

int64_t partial_floats(int64_t value_size) { return rounded_up(value_size, 16) + 16; }

AttentionPlan plan_attention(const AttentionStep& step, int64_t num_kv_heads, int64_t value_size, int num_threads) {
  std::vector<RowWork> rows;
  int64_t total = 0;
  for (int64_t row = 0; row < step.num_rows; ++row) {
    const int64_t num_queries = step.row_first_token[row + 1] - step.row_first_token[row];
    if (num_queries == 0) continue;
    rows.push_back({step, row, num_queries, step.context_lengths[row]});
    total += num_kv_heads * rows.back().cost(0, num_queries);
  }
  Planner planner{num_kv_heads, step.num_heads / num_kv_heads, num_threads,
                  std::max<int64_t>(total / (num_threads * TASKS_PER_THREAD), 2 * SPLIT_TOKENS), num_threads > 1};
  for (const RowWork& row : rows) planner.add(row);
  if (num_threads > 1) planner.sort_by_cost();
  planner.plan.scratch_floats = static_cast<size_t>(planner.next_partial * partial_floats(value_size));
  return planner.plan;
}

float* attention_scratch(size_t num_floats) {
  thread_local Scratch scratch;
  if (scratch.num_floats < num_floats) {
    std::free(scratch.memory);
    scratch.num_floats = (num_floats + 15) / 16 * 16;
    scratch.memory = static_cast<float*>(std::aligned_alloc(64, scratch.num_floats * sizeof(float)));
    if (scratch.memory == nullptr) throw std::bad_alloc();
  }
  return scratch.memory;
}

const AttentionKernels& attention_kernels_portable();
#if defined(__x86_64__)
const AttentionKernels& attention_kernels_avx2();
const AttentionKernels& attention_kernels_avx512();
#elif defined(__aarch64__)
const AttentionKernels& attention_kernels_neon();
#endif

const AttentionKernels& attention_kernels(Path path) {
  switch (path) {
#if defined(__x86_64__)
    case Path::amx:
    case Path::avx512:
      return attention_kernels_avx512();
    case Path::avx2:
      return attention_kernels_avx2();
#elif defined(__aarch64__)
    case Path::i8mm:
    case Path::dotprod:
    case Path::neon:
      return attention_kernels_neon();
#endif
    default:
      return attention_kernels_portable();
  }
}

}  // namespace relevo
