// Reading tokenizer.json: what tokenizer.h says is accepted, checked; the rest refused by name.
#pragma once

#include <string_view>

#include "tessera/base/status.h"
#include "tessera/text/vocabulary.h"

namespace tessera::text {

base::Result<Vocabulary> parse_tokenizer_json(std::string_view text);

}  // namespace tessera::text
