// A number that nobody can guess and no other life of the program is likely to have: keys, sessions, first tags.
#pragma once

#include <cstdint>
#include <random>

namespace tessera::base {

// From the system; never 0.
inline std::uint64_t random_number() {
  std::random_device device;
  std::uint64_t number = 0;
  while (number == 0) number = (static_cast<std::uint64_t>(device()) << 32) | device();
  return number;
}

}  // namespace tessera::base
