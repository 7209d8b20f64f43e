// What a simulation may do to the engines beside serving them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace tessera::simulation {

enum class FaultKind : std::uint8_t {
  kMapping,      // Entries of the device's page table.
  kRecords,      // Tags, owners and positions on the device, in steps and between them.
  kSlots,        // Write slots, and the lease counts that say whether a page may be written.
  kTransport,    // Messages between engines are dropped, doubled, delayed, overtaken, cut or changed.
  kAllocations,  // The page pool has no page although it has.
  kPayload,      // Bytes and scales of pages that a step reads. Engines then check every byte of every step.
  kRestarts,     // Engines end in the middle of everything, and come back empty.
};
inline constexpr std::array<std::string_view, 7> kFaultNames = {"mapping",     "records", "slots",   "transport",
                                                                "allocations", "payload", "restarts"};

class FaultSet {
 public:
  bool has(FaultKind kind) const { return (bits_ >> static_cast<unsigned>(kind) & 1u) != 0; }
  void add(FaultKind kind) { bits_ |= 1u << static_cast<unsigned>(kind); }
  bool empty() const { return bits_ == 0; }

 private:
  unsigned bits_ = 0;
};

// By the name above.
inline std::optional<FaultKind> fault_by_name(std::string_view name) {
  for (std::size_t i = 0; i < kFaultNames.size(); ++i) {
    if (kFaultNames[i] == name) return static_cast<FaultKind>(i);
  }
  return std::nullopt;
}

}  // namespace tessera::simulation
