#include <zerone/kernels/cpu/threads.h>

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>

namespace zerone::kernels::cpu {
namespace {

/// What the calling thread's teams are to run on, and whether its last one was put on CPUs. The
/// runtime keeps the members of a team for the next one, so they have to be sent back, too.
struct Teams {
  bool restricted = false, were_restricted = false;
  cpu_set_t cpus;
};
thread_local Teams teams;

}  // namespace

int cgroup_quota(const char* root, const char* group) {
  int smallest = 0;
  for (std::string path = group;; path.erase(path.rfind('/'))) {
    std::ifstream file(root + path + "/cpu.max");
    double quota = 0, period = 0;  // "max 100000" leaves quota at 0
    if (file >> quota >> period && quota > 0 && period > 0) {
      const int threads = static_cast<int>(std::ceil(quota / period));
      smallest = smallest == 0 ? threads : std::min(smallest, threads);
    }
    if (path.find('/') == std::string::npos) return smallest;
  }
}

int usable_threads() {
  int threads = omp_get_max_threads();
  cpu_set_t own;
  if (sched_getaffinity(0, sizeof(own), &own) == 0) threads = std::min(threads, CPU_COUNT(&own));
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!line.starts_with("0::")) continue;
    const int quota = cgroup_quota("/sys/fs/cgroup", line.c_str() + 3);
    if (quota > 0) threads = std::min(threads, quota);
  }
  return std::max(threads, 1);
}

std::vector<int> unusable_cpus(std::span<const int> cpus) {
  if (cpus.empty()) return {};
  cpu_set_t before, wanted, granted;
  CPU_ZERO(&wanted);
  CPU_ZERO(&granted);
  for (const int cpu : cpus)
    if (cpu >= 0 && cpu < CPU_SETSIZE) CPU_SET(cpu, &wanted);
  // Only the system knows, and tells by what it grants.
  if (sched_getaffinity(0, sizeof(before), &before) == 0 &&
      sched_setaffinity(0, sizeof(wanted), &wanted) == 0) {
    sched_getaffinity(0, sizeof(granted), &granted);
    sched_setaffinity(0, sizeof(before), &before);
  }
  std::vector<int> unusable;
  for (const int cpu : cpus)
    if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_ISSET(cpu, &granted)) unusable.push_back(cpu);
  return unusable;
}

void run_teams_on(const cpu_set_t* cpus) {
  teams.restricted = cpus != nullptr;
  if (cpus) teams.cpus = *cpus;
}

TeamCpus::TeamCpus() {
  if (!teams.restricted && !teams.were_restricted) return;
  if (sched_getaffinity(0, sizeof(before_), &before_) != 0) return;
  active_ = true;
  cpus_ = teams.restricted ? teams.cpus : before_;
  teams.were_restricted = teams.restricted;
}

bool TeamCpus::active() const {
  return active_;
}

void TeamCpus::pin() const {
  if (active_) sched_setaffinity(0, sizeof(cpus_), &cpus_);
}

TeamCpus::~TeamCpus() {
  if (active_) sched_setaffinity(0, sizeof(before_), &before_);
}

}  // namespace zerone::kernels::cpu
