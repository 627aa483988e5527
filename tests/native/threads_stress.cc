// A program that drives ThreadPool hard and says what went wrong. Built by test_thread_pool.py, also with ThreadSanitizer.
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/threads.h"

using relevo::Tasks;
using relevo::ThreadPool;

namespace {

void require(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

// Plain (not atomic) slots: every round is written by one thread and read by all others after the barrier.
struct Rounds {
  ThreadPool* pool;
  int num_rounds;
  std::vector<int> slots;
  Tasks tasks;
  std::vector<int> taken;
};

void write_then_read(void* context, int thread) {
  Rounds& rounds = *static_cast<Rounds*>(context);
  const int size = rounds.pool->size();
  for (int round = 1; round <= rounds.num_rounds; ++round) {
    rounds.slots[thread] = round;
    rounds.pool->barrier();
    for (int other = 0; other < size; ++other) require(rounds.slots[other] == round, "a barrier let a thread through");
    rounds.pool->barrier();
  }
  const int64_t count = static_cast<int64_t>(rounds.taken.size());
  for (int64_t piece; (piece = rounds.tasks.take(count)) >= 0;) rounds.taken[piece] += 1;
}

void stress(int size, int num_runs, int num_rounds) {
  ThreadPool pool(std::vector<int>(size, -1));
  require(pool.size() == size, "size");
  Rounds rounds{&pool, num_rounds, std::vector<int>(size), {}, std::vector<int>(37)};
  for (int run = 0; run < num_runs; ++run) {
    rounds.tasks.reset();
    pool.run(write_then_read, &rounds);
    for (int times : rounds.taken) require(times == run + 1, "a piece was taken twice or not at all");
  }
}

// A team that is replaced between runs, grown and shrunk: as good as one that was made so.
void replace(int num_teams) {
  ThreadPool pool({-1});
  for (int team = 0; team < num_teams; ++team) {
    const int size = 1 + team % 4;
    pool.use(std::vector<int>(size, -1));
    require(pool.size() == size, "size of the new team");
    Rounds rounds{&pool, 3, std::vector<int>(size), {}, std::vector<int>(37)};
    pool.run(write_then_read, &rounds);
    for (int times : rounds.taken) require(times == 1, "a piece was taken twice or not at all by the new team");
  }
}

struct ThreadFacts {
  char state;
  long long ran_ns, switches;
};

ThreadFacts facts_of(const std::string& tid) {
  const std::string folder = "/proc/self/task/" + tid;
  ThreadFacts facts{};
  std::ifstream(folder + "/schedstat") >> facts.ran_ns;
  std::ifstream status(folder + "/status");
  for (std::string word; status >> word;) {
    if (word == "State:") status >> facts.state;
    if (word == "voluntary_ctxt_switches:") status >> facts.switches;
  }
  return facts;
}

struct Tids {
  std::vector<std::string> of_thread;
};

void note_tid(void* context, int thread) {
  static_cast<Tids*>(context)->of_thread[thread] = std::to_string(gettid());
}

// Whether a thread sleeps through a while: then it has run for exactly as long after it as before.
bool sleeps(const std::string& tid) {
  const ThreadFacts before = facts_of(tid);
  usleep(30000);
  const ThreadFacts after = facts_of(tid);
  return before.state == 'S' && after.switches == before.switches && after.ran_ns == before.ran_ns;
}

// The first looks may still see the end of the run; a thread that polls is caught by every look.
void idle() {
  ThreadPool pool({-1, -1, -1});
  Tids tids{std::vector<std::string>(3)};
  pool.run(note_tid, &tids);
  for (int thread = 1; thread < 3; ++thread) {
    int looks = 0;
    while (!sleeps(tids.of_thread[thread])) require(++looks < 100, "an idle thread does not sleep");
  }
}

void pinned() {
  cpu_set_t allowed;
  sched_getaffinity(0, sizeof allowed, &allowed);
  int core = 0;
  while (!CPU_ISSET(core, &allowed)) ++core;
  struct Seen {
    int count, core;
  } seen{};
  ThreadPool pool({-1, core});
  pool.run(
      [](void* context, int thread) {
        if (thread == 0) return;
        cpu_set_t mine;
        sched_getaffinity(0, sizeof mine, &mine);
        Seen& seen = *static_cast<Seen*>(context);
        seen.count = CPU_COUNT(&mine);
        while (!CPU_ISSET(seen.core, &mine)) ++seen.core;
      },
      &seen);
  require(seen.count == 1 && seen.core == core, "a thread is not where it was pinned");
}

void impossible_core() {
  try {
    ThreadPool pool({-1, -1, 1000000});
  } catch (const std::invalid_argument& error) {
    require(std::strstr(error.what(), "1000000") != nullptr, "the error does not name the core");
    return;
  }
  require(false, "a core that does not exist was accepted");
}

void forked() {
  auto pool = std::make_unique<ThreadPool>(std::vector<int>(3, -1));
  Rounds rounds{pool.get(), 5, std::vector<int>(3), {}, std::vector<int>(7)};
  pool->run(write_then_read, &rounds);
  for (const bool runs_again : {true, false}) {
    const pid_t child = fork();
    if (child == 0) {
      rounds.tasks.reset();
      if (runs_again) pool->run(write_then_read, &rounds);
      pool.reset();
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    require(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child could not use or drop the team it inherited");
  }
  rounds.tasks.reset();
  pool->run(write_then_read, &rounds);
}

void throwing() {
  ThreadPool pool({-1, -1});
  pool.run([](void*, int thread) { if (thread == 1) throw std::runtime_error("out of tea"); }, nullptr);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string part = argc > 1 ? argv[1] : "";
  if (part == "stress") {
    for (int size = 1; size <= 5; ++size) stress(size, 60, 20);
    for (int times = 0; times < 50; ++times) stress(2, 0, 0);
    replace(200);
  } else if (part == "idle") {
    idle();
  } else if (part == "pinned") {
    pinned();
    impossible_core();
  } else if (part == "forked") {
    forked();
  } else if (part == "throwing") {
    throwing();
  } else {
    return 2;
  }
  std::puts("ok");
  return 0;
}
