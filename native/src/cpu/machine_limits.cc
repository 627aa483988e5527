// Times the limit kernels of a path on a set of cores.
#include "cpu/machine_limits.h"

#include <chrono>
#include <exception>
#include <new>
#include <stdexcept>
#include <thread>

#if defined(__linux__)
#include <sched.h>
#include <sys/mman.h>
#endif

#include "cpu/machine_limits_paths.h"
#include "cpu/threads.h"

namespace relevo {
namespace {

constexpr size_t PIECE_WORDS = 32 * 1024;  // 256 KiB: what a thread takes at a time
constexpr size_t HUGE_PAGE_BYTES = 2 << 20;
constexpr uint64_t PATTERN = 0x0101010101010101ULL;

double now_s() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Zeroed words in huge pages where the system gives them.
class Words {
 public:
  explicit Words(size_t num_words) : num_words_(num_words), bytes_(num_words * sizeof(uint64_t) + HUGE_PAGE_BYTES) {
#if defined(__linux__)
    mapping_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) throw std::bad_alloc();
    madvise(mapping_, bytes_, MADV_HUGEPAGE);
#else
    mapping_ = ::operator new(bytes_);
#endif
    const uintptr_t address = reinterpret_cast<uintptr_t>(mapping_);
    first_ = reinterpret_cast<uint64_t*>((address + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES);
  }
  ~Words() {
#if defined(__linux__)
    munmap(mapping_, bytes_);
#else
    ::operator delete(mapping_);
#endif
  }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;
  uint64_t* data() const { return first_; }
  size_t size() const { return num_words_; }

 private:
  size_t num_words_, bytes_;
  void* mapping_;
  uint64_t* first_;
};

// Runs `body` on a thread of its own that is pinned to `core`: whoever measures keeps its own pinning.
template <typename Body>
void run_pinned(int core, Body body) {
  std::exception_ptr failure;
  std::thread thread([&] {
#if defined(__linux__)
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(static_cast<size_t>(core), &cores);
    sched_setaffinity(0, sizeof(cores), &cores);
#else
    (void)core;
#endif
    try {
      body();
    } catch (...) {
      failure = std::current_exception();
    }
  });
  thread.join();
  if (failure) std::rethrow_exception(failure);
}

struct ReadPass {
  const LimitKernels* kernels;
  const Words* words;
  int64_t num_pieces;
  Tasks tasks;
  std::vector<uint64_t> sums;  // per thread

  template <typename Work>
  void pieces(Work work) {
    for (int64_t piece; (piece = tasks.take(num_pieces)) >= 0;) {
      const size_t first = static_cast<size_t>(piece) * PIECE_WORDS;
      const size_t left = words->size() - first;
      work(words->data() + first, left < PIECE_WORDS ? left : PIECE_WORDS);
    }
  }
};

void fill_body(void* context, int) {
  static_cast<ReadPass*>(context)->pieces([](uint64_t* words, size_t count) {
    for (size_t i = 0; i < count; ++i) words[i] = PATTERN;
  });
}

void read_body(void* context, int thread) {
  auto* pass = static_cast<ReadPass*>(context);
  uint64_t sum = 0;
  pass->pieces([&](const uint64_t* words, size_t count) { sum += pass->kernels->read(words, count); });
  pass->sums[static_cast<size_t>(thread)] = sum;
}

struct MultiplyPass {
  double (*multiply)(int64_t rounds);
  int64_t rounds;
  std::vector<double> counted;  // per thread
};

void multiply_body(void* context, int thread) {
  auto* pass = static_cast<MultiplyPass*>(context);
  pass->counted[static_cast<size_t>(thread)] = pass->multiply(pass->rounds);
}

}  // namespace

const char* operand_name(Operand operand) {
  switch (operand) {
    case Operand::f32:
      return "f32";
    case Operand::bf16:
      return "bf16";
    case Operand::int8:
      return "int8";
    case Operand::int4:
      return "int4";
  }
  return "";
}

const LimitKernels& limit_kernels(Path path) {
#if defined(__x86_64__)
  if (path == Path::amx) return limits_amx;
  if (path == Path::avx512) return __builtin_cpu_supports("avx512bf16") ? limits_avx512bf16 : limits_avx512;
  if (path == Path::avx2) return limits_avx2;
#elif defined(__aarch64__)
#if defined(RELEVO_HAS_I8MM)
  if (path == Path::i8mm) return limits_i8mm;
#endif
#if defined(RELEVO_HAS_DOTPROD)
  if (path == Path::dotprod) return limits_dotprod;
#endif
  if (path == Path::neon) return limits_neon;
#endif
  (void)path;
  return limits_portable;
}

std::vector<double> time_reads(const LimitKernels& kernels, size_t num_bytes, const std::vector<int>& cores,
                               int repeats) {
  std::vector<double> seconds;
  run_pinned(cores.at(0), [&] {
    ThreadPool pool(cores);
    const Words words((num_bytes + sizeof(uint64_t) - 1) / sizeof(uint64_t));
    ReadPass pass{&kernels, &words, static_cast<int64_t>((words.size() + PIECE_WORDS - 1) / PIECE_WORDS), {}, {}};
    pass.sums.resize(cores.size());
    pool.run(fill_body, &pass);
    for (int repeat = 0; repeat < repeats; ++repeat) {
      pass.tasks.reset();
      const double started = now_s();
      pool.run(read_body, &pass);
      seconds.push_back(now_s() - started);
      uint64_t total = 0;
      for (const uint64_t sum : pass.sums) total += sum;
      if (total != PATTERN * words.size()) throw std::runtime_error("not all of the memory was read");
    }
  });
  return seconds;
}

MultiplyTimes time_multiplies(const LimitKernels& kernels, Operand operand, int64_t rounds,
                              const std::vector<int>& cores, int repeats) {
  const auto index = static_cast<size_t>(operand);
  const double products = static_cast<double>(kernels.products[index]) * static_cast<double>(rounds);
  MultiplyTimes times{{}, 2.0 * products * static_cast<double>(cores.size())};
  run_pinned(cores.at(0), [&] {
    ThreadPool pool(cores);
    MultiplyPass pass{kernels.multiply[index], rounds, std::vector<double>(cores.size())};
    for (int repeat = 0; repeat < repeats; ++repeat) {
      const double started = now_s();
      pool.run(multiply_body, &pass);
      times.seconds.push_back(now_s() - started);
      for (const double counted : pass.counted) {
        if (counted != products) throw std::runtime_error("not all products were computed");
      }
    }
  });
  return times;
}

}  // namespace relevo
