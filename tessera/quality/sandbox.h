// Runs Python that a model wrote, shut in: no network, no files but the interpreter's and an empty folder of its own,
// no other process, little memory and time. Everything is done with what Linux gives an ordinary user (namespaces,
// resource limits, a filter of system calls), so root is not needed, and root's rights are given up first.
//
// It fails closed: where one of its walls cannot be put up, nothing is run, and the error says which and why. No option
// runs code without it. What it does not promise: to withstand a fault of the kernel, or to hide which files the
// system's /usr has and what the clock says.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/base/status.h"

namespace tessera::quality {

struct SandboxLimits {
  std::chrono::milliseconds wall{10'000};
  std::int64_t cpu_seconds = 5;
  std::int64_t memory_bytes = std::int64_t{512} << 20;  // Of address space.
};

// How much of what it prints is kept (the end of it), and may be written to its folder.
inline constexpr std::size_t kSandboxOutputBytes = std::size_t{64} << 10;
inline constexpr std::int64_t kSandboxFileBytes = std::int64_t{16} << 20;

struct SandboxRun {
  bool timed_out = false;  // Killed at the wall limit.
  int exit_code = -1;      // Of a program that ended by itself; else -1.
  int signal = 0;          // That ended it, as at the CPU limit (SIGKILL); else 0.
  std::string output;      // Standard output and error as they came, in bytes.
};

// Immutable: any number of threads at once. A thread that runs something must not end before run() returns.
class Sandbox {
 public:
  // Tries every wall with a program that leans on each. unavailable: which one cannot be put up here, and why.
  static base::Result<Sandbox> create();

  // Runs /usr/bin/python3 on the text, isolated from site and user packages (-I -S), with no environment and an empty
  // working folder of kSandboxFileBytes that vanishes with it. Nothing is left behind when this returns: no process, no
  // file. unavailable: as of create(). internal: this process has no file descriptor or memory left for it.
  base::Result<SandboxRun> run(std::string_view program, const SandboxLimits& limits = {}) const;

 private:
  Sandbox() = default;
};

}  // namespace tessera::quality
