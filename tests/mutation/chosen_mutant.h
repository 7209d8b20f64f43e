// Which mutant of the page checks this process is. The sources that check_mutants.py instruments ask at each mutated
// place; nothing else does, and no product includes this.
#pragma once

namespace tessera::mutation {

// Whether mutant `number` was chosen (the variable TESSERA_MUTANT, read once; none: no mutant, the real code).
bool is(int number);

}  // namespace tessera::mutation
