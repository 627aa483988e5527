// The threads of one worker: pinned, asleep when there is nothing to do.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

namespace relevo {

// A team of `cores.size()` threads. The caller of `run` is thread 0 (its pinning is the caller's business), the others
// are pinned to cores[1..]. One team runs one body at a time. A team of one never starts a thread and never waits.
class ThreadPool {
 public:
  explicit ThreadPool(const std::vector<int>& cores);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const;

  // Another team from now on, one thread per core as above. Not while a body runs. Throws as the constructor does; then
  // the team is what it was.
  void use(const std::vector<int>& cores);

  // Calls body(context, thread) on every thread, thread in [0, size()); returns when all have returned.
  void run(void (*body)(void* context, int thread), void* context);

  // Called by every thread of a running body: returns when all have called it. Spins for a few microseconds at most,
  // then sleeps, so that a thread whose core somebody else uses costs little.
  void barrier();

 private:
  struct State;
  State* state_;
};

// A counter that threads share to take work one piece at a time: a thread that is interrupted takes fewer pieces.
class Tasks {
 public:
  void reset() { next_.store(0, std::memory_order_relaxed); }
  // The next piece in [0, count), or -1.
  int64_t take(int64_t count) {
    const int64_t piece = next_.fetch_add(1, std::memory_order_relaxed);
    return piece < count ? piece : -1;
  }

 private:
  alignas(64) std::atomic<int64_t> next_{0};
};

}  // namespace relevo
