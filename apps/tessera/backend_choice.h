// Which backend a command computes on, as its flags say: the one place where a backend is chosen, for every command
// that runs a model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/base/machine_memory.h"
#include "tessera/base/status.h"
#include "tessera/ops/backend.h"
#include "tessera/ops/kv_layout.h"

// The library's own name.
namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
}

namespace tessera::app {

struct BackendOptions {
  std::string device = "cpu";        // cpu or cuda
  std::string name = "simd";         // Of the CPU: simd or reference
  std::string simd_target = "best";  // best, avx2, avx512, avx512_bf16
  std::int64_t threads = 0;          // 0: one for each physical core.
};

// Adds --device, --backend, --simd-target and --threads to a command, as the group "Backend" of its help.
void add_backend_options(CLI::App& command, BackendOptions& options);

// unimplemented: the processor lacks the instruction set that was asked for, or this build has no kernels for the GPU.
// unavailable: there is no GPU.
base::Result<std::unique_ptr<ops::Backend>> make_backend(const BackendOptions& options);

// unimplemented: the backend's ops would refuse the model in this folder, as its config.json describes it. To be asked
// before it is loaded.
base::Status check_model(const BackendOptions& options, const std::filesystem::path& dir);

// Of the device that the backend's weights and pages lie on; to be read before they do.
base::Result<base::MachineMemory> read_memory(const BackendOptions& options);

// The format that --kv-cache-dtype and its like name; nothing for "auto".
std::optional<ops::KvFormat> kv_format_of(std::string_view name);

}  // namespace tessera::app
