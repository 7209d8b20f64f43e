// What a process may take of the machine's memory: the physical memory, or the limit of a control group that it runs
// in, whichever is smaller, less what is in use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

#include "tessera/base/status.h"

namespace tessera::base {

// Where the kernel says so; tests have folders of their own.
struct MemorySource {
  std::filesystem::path proc = "/proc";
  std::filesystem::path cgroup = "/sys/fs/cgroup";
};

struct MachineMemory {
  std::int64_t total_bytes = 0;      // The smaller of the physical memory and every limit.
  std::int64_t available_bytes = 0;  // Of it, not in use. What the kernel can drop at once (clean file pages) is not.
  std::string arithmetic;            // How that came about, for people.
};

// Reads meminfo, and for each control group from the process's own up to the root the limit and the use: version 2
// (memory.max) and version 1 (memory.limit_in_bytes). Files that are not there limit nothing. unavailable when meminfo
// does not say what it should.
Result<MachineMemory> read_machine_memory(const MemorySource& source = {});

}  // namespace tessera::base
