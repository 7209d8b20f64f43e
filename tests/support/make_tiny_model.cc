// make_tiny_model DIR: a small random Llama with a byte-level tokenizer, as a folder that `tessera serve` takes. For
// tests of the whole executable that should run where the imported model is too slow: under the sanitizers.
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "tests/support/byte_tokenizer.h"
#include "tests/support/tiny_checkpoint.h"

int main(int argc, char** argv) {
  using namespace tessera;
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_tiny_model DIR\n");
    return 2;
  }
  const std::filesystem::path dir(argv[1]);
  std::filesystem::create_directories(dir);
  test_support::TinyLlamaOptions options;
  options.vocab_size = test_support::kByteVocabulary;
  options.eos_token_id = test_support::kTurnEnd;
  const base::Status written = test_support::write_tiny_llama(dir, options);
  std::ofstream(dir / "tokenizer.json") << test_support::byte_tokenizer_json();
  if (!written.ok()) std::fprintf(stderr, "%s\n", written.to_string().c_str());
  return written.ok() ? 0 : 1;
}
