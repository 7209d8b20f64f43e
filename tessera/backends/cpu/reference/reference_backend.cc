#include "tessera/backends/cpu/reference/reference_backend.h"

#include "tessera/backends/cpu/reference/reference_ops.h"

namespace tessera::backends::cpu {

std::unique_ptr<ops::Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace tessera::backends::cpu
