// Who uses a name of the standard library includes its header. The compiler does not say so: it reads the headers that
// most files include from a precompiled one (cmake/TesseraRoom.cmake), whether a file asks for them or not.
#pragma once

#include <vector>

#include "tests/style/rules.h"

namespace tessera::style {

// Every `std::name` of a known list in the .h and .cc files of the project comes with a header that declares it,
// included by the file or by the project's headers that it includes, over however many steps. These are looked for
// among `files`, from the root or beside the file that includes them; one found on an include path gives nothing.
Violations check_standard_includes(const std::vector<SourceFile>& files);

}  // namespace tessera::style
