// NVTX ranges and the profiler's start/stop window. No cost beyond one flag test while off, and
// no effect in a CPU-only build.
#pragma once

namespace zerone {

/// Turns NVTX ranges on or off for the process. The environment variable ZERONE_NVTX=1 turns them
/// on at start.
void set_profiling(bool on);
bool profiling();  ///< whether ranges are on

/// An NVTX range on the calling thread, from construction to destruction, if profiling() is on.
class ProfileRange {
 public:
  explicit ProfileRange(const char* name);
  ~ProfileRange();
  ProfileRange(const ProfileRange&) = delete;
  ProfileRange& operator=(const ProfileRange&) = delete;

 private:
  bool active_;
};

/// cudaProfilerStart at construction, cudaProfilerStop at destruction, with ranges turned on in
/// between: what Nsight records with --capture-range=cudaProfilerApi (Systems) or
/// --profile-from-start off (Compute).
class ProfileWindow {
 public:
  ProfileWindow();
  ~ProfileWindow();
  ProfileWindow(const ProfileWindow&) = delete;
  ProfileWindow& operator=(const ProfileWindow&) = delete;

 private:
  bool saved_;
};

}  // namespace zerone
