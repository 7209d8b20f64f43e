#include "backend_choice.h"

#include <CLI/CLI.hpp>

#include "tessera/backends/cpu/reference/reference_backend.h"
#include "tessera/backends/cpu/simd/simd_backend.h"
#include "tessera/backends/cuda/cuda_backend.h"
#include "tessera/models/config.h"

namespace tessera::app {

void add_backend_options(CLI::App& command, BackendOptions& options) {
  const std::string group = "Backend";
  CLI::Option* device = command.add_option("--device", options.device, "cpu, or cuda: the first GPU.")
                            ->check(CLI::IsMember({"cpu", "cuda"}))
                            ->capture_default_str()
                            ->group(group);
  command.add_option("--backend", options.name, "Of the CPU: simd, or reference: the slow judge.")
      ->check(CLI::IsMember({"simd", "reference"}))
      ->capture_default_str()
      ->excludes(device)
      ->group(group);
  command.add_option("--simd-target", options.simd_target, "Instruction set: best, avx2, avx512, avx512_bf16.")
      ->check(CLI::IsMember({"best", "avx2", "avx512", "avx512_bf16"}))
      ->capture_default_str()
      ->group(group);
  command.add_option("--threads", options.threads, "Threads of the backend; 0: one for each physical core.")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str()
      ->group(group);
}

base::Result<std::unique_ptr<ops::Backend>> make_backend(const BackendOptions& options) {
  if (options.device == "cuda") return backends::cuda::make_cuda_backend({});
  if (options.name == "reference") return backends::cpu::make_reference_backend();
  backends::cpu::SimdOptions simd;
  simd.threads = static_cast<int>(options.threads);
  using backends::cpu::SimdTarget;
  if (options.simd_target == "avx2") simd.target = SimdTarget::kAvx2;
  if (options.simd_target == "avx512") simd.target = SimdTarget::kAvx512;
  if (options.simd_target == "avx512_bf16") simd.target = SimdTarget::kAvx512Bf16;
  return backends::cpu::make_simd_backend(simd);
}

base::Status check_model(const BackendOptions& options, const std::filesystem::path& dir) {
  if (options.device != "cuda") return base::ok_status();
  TESSERA_ASSIGN_OR_RETURN(const models::ModelConfig config, models::read_config(dir));
  backends::cuda::CudaModelSizes sizes;
  sizes.vocab_size = config.vocab_size;
  if (config.gqa.has_value()) {
    sizes.num_key_value_heads = config.gqa->num_key_value_heads;
    sizes.head_dim = config.gqa->head_dim;
  }
  if (config.dsa.has_value()) {
    sizes.index_n_heads = config.dsa->index_n_heads;
    sizes.index_head_dim = config.dsa->index_head_dim;
  }
  if (config.moe.has_value()) sizes.n_routed_experts = config.moe->n_routed_experts;
  return backends::cuda::check_cuda_model(sizes).with_context((dir / models::kConfigFileName).string());
}

base::Result<base::MachineMemory> read_memory(const BackendOptions& options) {
  return options.device == "cuda" ? backends::cuda::cuda_memory({}) : base::read_machine_memory();
}

std::optional<ops::KvFormat> kv_format_of(std::string_view name) {
  if (name == "bf16") return ops::KvFormat::kBF16;
  if (name == "fp8_e4m3") return ops::KvFormat::kF8E4M3;
  if (name == "f32") return ops::KvFormat::kF32;
  return std::nullopt;
}

}  // namespace tessera::app
