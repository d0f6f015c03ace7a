// Threads of the host: how many a context gets unless told, and the CPUs that its teams run on.
#pragma once

#include <sched.h>

#include <span>
#include <vector>

namespace zerone::kernels::cpu {

/// Threads that can run at once: what OpenMP would start (OMP_NUM_THREADS), but no more than the
/// CPUs that the calling thread may run on and the CPU quota of its cgroups (v2, rounded up).
int usable_threads();
/// The smallest CPU quota, rounded up, of the cgroup at `group` ("/a/b") and of those that hold it,
/// in the hierarchy mounted at `root`; 0 if there is none.
int cgroup_quota(const char* root, const char* group);

/// Which of these CPU numbers this process cannot run on, or does not have.
std::vector<int> unusable_cpus(std::span<const int> cpus);

/// Until the next call, teams that the calling thread starts run on `cpus`; null: wherever the
/// calling thread may.
void run_teams_on(const cpu_set_t* cpus);

/// Puts a team on its CPUs, as run_teams_on says: made before the parallel region, pin() called by
/// each member at its start. Costs nothing where no CPUs were named. Members keep their CPUs; the
/// thread that started the team has its own back at the end of the scope. That a CPU was taken away
/// meanwhile is no error: the member stays where it is.
class TeamCpus {
 public:
  TeamCpus();
  ~TeamCpus();
  TeamCpus(const TeamCpus&) = delete;
  TeamCpus& operator=(const TeamCpus&) = delete;

  bool active() const;
  void pin() const;

 private:
  bool active_ = false;
  cpu_set_t before_, cpus_;  // set if active
};

}  // namespace zerone::kernels::cpu
