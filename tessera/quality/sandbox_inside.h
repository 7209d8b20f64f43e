// The inner side of the sandbox: what the new process does between its making and the interpreter's start. It is a copy
// of a process with many threads, whose locks may be held by nobody that still exists, so it calls nothing but system
// calls: no allocation, no library with a state.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace tessera::quality {

// Which wall was being put up; the parent says its name.
enum class SandboxStep : std::int32_t {
  kSignals,
  kDescriptors,
  kIdentity,
  kParent,
  kPrivateMounts,
  kRoot,
  kSystemFiles,
  kWorkFolder,
  kProgram,
  kReadOnly,
  kPivot,
  kLimits,
  kCapabilities,
  kFilter,
  kInterpreter,
};
const char* sandbox_step_name(SandboxStep step);

struct SandboxFailure {
  SandboxStep step = SandboxStep::kSignals;
  std::int32_t error = 0;  // errno
};

// A name in the root folder beside /usr: a link where the system has one ("/lib" to "usr/lib"), else a folder that is
// shown as it is. Ended texts.
struct SandboxRootName {
  const char* path = nullptr;         // "/lib"
  const char* inside = nullptr;       // "lib": where it is made, as seen from the new root.
  const char* link_target = nullptr;  // Null: a folder.
};

// What the new process needs; all of it made before, by the parent.
struct SandboxPlan {
  int go = -1;      // A byte arrives here when the identity of the process has been mapped.
  int report = -1;  // Takes a SandboxFailure; closed by the start of the interpreter.
  int output = -1;  // Becomes standard output and error.
  bool drops_groups = false;
  const char* program = nullptr;
  std::size_t program_bytes = 0;
  std::span<const SandboxRootName> root_names;
  std::int64_t cpu_seconds = 0;
  std::int64_t memory_bytes = 0;
  std::int64_t file_bytes = 0;
};

// The identity that it has inside, whoever it is outside.
inline constexpr unsigned kSandboxId = 1000;

[[noreturn]] void run_inside_sandbox(const SandboxPlan& plan);

// Denies what namespaces do not cover or what has often been a way through them; install as the last thing before the
// interpreter. 0 or an errno.
int install_sandbox_filter();

}  // namespace tessera::quality
