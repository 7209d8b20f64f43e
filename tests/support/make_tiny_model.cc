// make_tiny_model DIR [CHECKPOINT]: a folder that `tessera serve` takes, for tests of the whole executable. Without a
// name a small random Llama with a byte-level tokenizer, which also runs under the sanitizers; with one, that tiny
// checkpoint of tests/goldens/tiny. make_tiny_model --list prints their names.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string_view>

#include "tests/support/byte_tokenizer.h"
#include "tests/support/recipe_checkpoint.h"
#include "tests/support/tiny_checkpoint.h"

int main(int argc, char** argv) {
  using namespace tessera;
  if (argc == 2 && std::string_view(argv[1]) == "--list") {
    for (const std::string& name : test_support::tiny_checkpoint_names()) std::printf("%s\n", name.c_str());
    return 0;
  }
  if (argc != 2 && argc != 3) {
    std::fprintf(stderr, "usage: make_tiny_model DIR [CHECKPOINT], or make_tiny_model --list\n");
    return 2;
  }
  const std::filesystem::path dir(argv[1]);
  std::filesystem::create_directories(dir);
  base::Status written;
  if (argc == 3) {
    written = test_support::write_recipe_checkpoint(argv[2], dir);
  } else {
    test_support::TinyLlamaOptions options;
    options.vocab_size = test_support::kByteVocabulary;
    options.eos_token_id = test_support::kTurnEnd;
    written = test_support::write_tiny_llama(dir, options);
    std::ofstream(dir / "tokenizer.json") << test_support::byte_tokenizer_json();
  }
  if (!written.ok()) std::fprintf(stderr, "%s\n", written.to_string().c_str());
  return written.ok() ? 0 : 1;
}
