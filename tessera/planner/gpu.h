// What plans assume about a GPU: one table. A figure is either the maker's nominal one or given from
// outside, and every plan prints which it used. Flags may override each.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "tessera/base/status.h"

namespace tessera::planner {

enum class FigureSource : std::uint8_t {
  kNominal,  // The maker's data sheet, dense (without structured sparsity): what no kernel quite reaches.
  kGiven,    // By a flag; in the table, a measurement that was given to this project, which holds no record of it.
};

constexpr std::string_view figure_source_name(FigureSource source) {
  switch (source) {
    case FigureSource::kNominal:
      return "nominal";
    case FigureSource::kGiven:
      return "given";
  }
  return "?";
}

struct GpuFigure {
  double value = 0;
  FigureSource source = FigureSource::kNominal;
};

struct Gpu {
  std::string_view name;
  std::string_view description;
  std::int64_t memory_bytes =
      0;                     // Nominal, in bytes of 1e9 to the GB: what a driver leaves of it is the reserve's part.
  GpuFigure read_bandwidth;  // Bytes a second, reading only.
  GpuFigure bf16_flops;      // FLOP/s of a dense matrix product.
  GpuFigure fp8_flops;       // The same; BF16's where the GPU has no FP8 units.
};

std::span<const Gpu> gpus();

// invalid_argument naming what is known.
base::Result<Gpu> find_gpu(std::string_view name);

}  // namespace tessera::planner
