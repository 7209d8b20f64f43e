#include "tests/mutation/chosen_mutant.h"

#include <cstdlib>

namespace tessera::mutation {

bool is(int number) {
  static const int chosen = [] {
    const char* text = std::getenv("TESSERA_MUTANT");
    return text == nullptr ? 0 : std::atoi(text);
  }();
  return number == chosen;
}

}  // namespace tessera::mutation
