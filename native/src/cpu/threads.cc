// The team: worker threads asleep on a futex between runs, and a barrier that spins briefly before it sleeps.
#include "cpu/threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <chrono>
#include <climits>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#else
#include <condition_variable>
#include <mutex>
#endif

namespace relevo {
namespace {

// Arbitrary: longer than the usual gap between two threads that share work evenly, far shorter than a time slice.
constexpr std::chrono::microseconds SPIN{8};
constexpr int LOOKS_PER_CLOCK_READ = 16;

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A counter to wait on. Who advances it pays for a system call only if somebody sleeps.
class Gate {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }

  void advance() {
    value_.fetch_add(1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) != 0) wake_all();
  }

  // Returns when the value is no longer `old`. Whoever goes to sleep counts itself first and looks again afterwards, and
  // whoever advances looks at the count afterwards: one of the two sees the other.
  void wait(uint32_t old) {
    if (spin(old)) return;
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    while (value_.load(std::memory_order_seq_cst) == old) sleep(old);
    sleepers_.fetch_sub(1, std::memory_order_relaxed);
  }

 private:
  bool spin(uint32_t old) const {
    const auto until = std::chrono::steady_clock::now() + SPIN;
    do {
      for (int look = 0; look < LOOKS_PER_CLOCK_READ; ++look) {
        if (value() != old) return true;
        pause_briefly();
      }
    } while (std::chrono::steady_clock::now() < until);
    return false;
  }

#if defined(__linux__)
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a plain 32-bit word");
  void sleep(uint32_t old) { syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, old, nullptr, nullptr, 0); }
  void wake_all() { syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0); }
#else
  void sleep(uint32_t old) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [&] { return value() != old; });
  }
  void wake_all() {
    { std::lock_guard<std::mutex> lock(mutex_); }
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
#endif

  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};

// How often this process came out of a fork: threads that were started under another number are not here.
std::atomic<uint32_t> fork_count{0};

void count_forks() {
  static const int registered = pthread_atfork(nullptr, nullptr, [] { fork_count.fetch_add(1); });
  (void)registered;
}

// Signals meant for the process are its main thread's; faults of this thread stay with it.
void leave_signals_to_others() {
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
}

void call_body(void (*body)(void*, int), void* context, int thread) {
  try {
    body(context, thread);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "relevo: a body of ThreadPool::run threw: %s\n", error.what());
    std::terminate();
  } catch (...) {
    std::fputs("relevo: a body of ThreadPool::run threw\n", stderr);
    std::terminate();
  }
}

}  // namespace

struct ThreadPool::State {
  const std::vector<int> cores;
  const uint32_t forks_at_start;
  void (*body)(void*, int) = nullptr;  // null: the team goes home
  void* context = nullptr;
  alignas(64) Gate runs;
  alignas(64) Gate phases;
  alignas(64) std::atomic<int> arrived{0};
  std::vector<std::thread> workers;

  explicit State(const std::vector<int>& cores_) : cores(cores_), forks_at_start(fork_count.load()) {}

  int size() const { return static_cast<int>(cores.size()); }

  // Throws if a thread cannot be started or pinned; then none is left.
  void start() {
    try {
      for (int thread = 1; thread < size(); ++thread) {
        workers.emplace_back([this, thread] { work(thread); });
        pin(workers.back(), cores[thread]);
      }
    } catch (...) {
      stop();
      throw;
    }
  }

  void stop() {
    body = nullptr;
    runs.advance();
    for (std::thread& worker : workers) worker.join();
    workers.clear();
  }

  static void pin(std::thread& worker, int core) {
#if defined(__linux__)
    if (core < 0) return;
    const size_t set_bytes = CPU_ALLOC_SIZE(core + 1);
    cpu_set_t* set = CPU_ALLOC(core + 1);
    if (set == nullptr) throw std::bad_alloc();
    CPU_ZERO_S(set_bytes, set);
    CPU_SET_S(core, set_bytes, set);
    const int failed = pthread_setaffinity_np(worker.native_handle(), set_bytes, set);
    CPU_FREE(set);
    if (failed != 0) throw std::invalid_argument("a thread cannot be pinned to core " + std::to_string(core));
#else
    (void)worker;
    (void)core;
#endif
  }

  void work(int thread) {
    leave_signals_to_others();
    for (uint32_t seen = 0;; ++seen) {
      runs.wait(seen);
      if (body == nullptr) return;
      call_body(body, context, thread);
      barrier();
    }
  }

  void run(void (*next_body)(void*, int), void* next_context) {
    body = next_body;
    context = next_context;
    runs.advance();
    call_body(next_body, next_context, 0);
    barrier();
  }

  void barrier() {
    const uint32_t phase = phases.value();
    if (arrived.fetch_add(1, std::memory_order_acq_rel) + 1 < size()) {
      phases.wait(phase);
      return;
    }
    arrived.store(0, std::memory_order_relaxed);
    phases.advance();
  }
};

ThreadPool::ThreadPool(const std::vector<int>& cores) {
  if (cores.empty()) throw std::invalid_argument("a team has at least one thread");
  count_forks();
  state_ = new State(cores);
  try {
    state_->start();
  } catch (...) {
    delete state_;
    throw;
  }
}

ThreadPool::~ThreadPool() {
  if (state_->forks_at_start != fork_count.load()) return;  // the threads stayed in the parent: nothing to join
  state_->stop();
  delete state_;
}

int ThreadPool::size() const { return state_->size(); }

void ThreadPool::use(const std::vector<int>& cores) {
  ThreadPool next(cores);
  std::swap(state_, next.state_);  // the old team ends with `next`
}

void ThreadPool::run(void (*body)(void* context, int thread), void* context) {
  if (state_->size() == 1) {
    call_body(body, context, 0);
    return;
  }
  if (state_->forks_at_start != fork_count.load()) {
    State* fresh = new State(state_->cores);  // the old one is the parent's, in whatever state the fork found it
    fresh->start();
    state_ = fresh;
  }
  state_->run(body, context);
}

void ThreadPool::barrier() {
  if (state_->size() > 1) state_->barrier();
}

}  // namespace relevo
