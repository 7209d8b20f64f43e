#include "tessera/planner/gpu.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "tessera/weights/safetensors.h"

namespace tessera::planner {

namespace {

using enum FigureSource;

// h200: given as measured on one, reads alone at 4.50 TB/s, large products at 772 (BF16) and 1388 TFLOP/s (FP8). The
// others are data sheets, SXM modules.
constexpr std::array kGpus = {
    Gpu{"h200", "NVIDIA H200 SXM", 141'000'000'000, {4.50e12, kGiven}, {772e12, kGiven}, {1388e12, kGiven}},
    Gpu{"h100", "NVIDIA H100 SXM", 80'000'000'000, {3.35e12, kNominal}, {989e12, kNominal}, {1979e12, kNominal}},
    Gpu{"b200", "NVIDIA B200 SXM", 180'000'000'000, {7.7e12, kNominal}, {2250e12, kNominal}, {4500e12, kNominal}},
    Gpu{"a100", "NVIDIA A100 SXM 80 GB", 80'000'000'000, {2.039e12, kNominal}, {312e12, kNominal}, {312e12, kNominal}},
};

}  // namespace

std::span<const Gpu> gpus() { return kGpus; }

base::Result<Gpu> find_gpu(std::string_view name) {
  std::string known;
  for (const Gpu& gpu : kGpus) {
    if (gpu.name == name) return gpu;
    known += known.empty() ? "" : ", ";
    known += gpu.name;
  }
  return base::failure(
      base::invalid_argument(fmt::format("GPU {} is unknown, expected one of {}", weights::quote_name(name), known)));
}

}  // namespace tessera::planner
