// A small stand-in for libFuzzer, for builds that have none (the preset `cpu`): every input of the corpus, then COUNT
// inputs made from them by random changes, the same in every run. It does not look at coverage; the preset `cpu-asan`
// does.
//
// NAME COUNT CORPUS_DIR...
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

using Bytes = std::vector<std::uint8_t>;
constexpr std::size_t kBytesMax = 1 << 16;

Bytes read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Mutator {
 public:
  explicit Mutator(std::vector<Bytes> corpus) : corpus_(std::move(corpus)) {}

  Bytes next() {
    Bytes input = corpus_[below(corpus_.size())];
    for (std::size_t changes = 1 + below(4); changes > 0; --changes) change(input);
    input.resize(std::min(input.size(), kBytesMax));
    return input;
  }

 private:
  std::size_t below(std::size_t end) { return static_cast<std::size_t>(random_() % end); }

  void change(Bytes& input) {
    const std::size_t at = below(input.size() + 1);
    const auto place = input.begin() + static_cast<std::ptrdiff_t>(at);
    const std::size_t length = std::min(1 + below(16), input.size() - at);
    switch (below(6)) {
      case 0:
        if (length > 0) *place ^= static_cast<std::uint8_t>(1u << below(8));
        break;
      case 1:
        if (length > 0) *place = static_cast<std::uint8_t>(below(256));
        break;
      case 2:
        input.erase(place, place + static_cast<std::ptrdiff_t>(length));
        break;
      case 3: {  // A piece twice.
        const Bytes piece(place, place + static_cast<std::ptrdiff_t>(length));
        input.insert(place, piece.begin(), piece.end());
        break;
      }
      case 4: {  // The end of another input.
        const Bytes& other = corpus_[below(corpus_.size())];
        const std::size_t from = below(other.size() + 1);
        input.erase(place, input.end());
        input.insert(input.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
        break;
      }
      default:  // Digits, where there is one: sizes are what hostile files lie about.
        if (length > 0 && *place >= '0' && *place <= '9') input.insert(place, 1 + below(18), '9');
        break;
    }
  }

  const std::vector<Bytes> corpus_;
  std::mt19937_64 random_{20261129};
};

}  // namespace

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> files;
  for (int i = 2; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) files.push_back(entry.path());
  }
  std::ranges::sort(files);
  std::vector<Bytes> corpus;
  for (const std::filesystem::path& file : files) corpus.push_back(read_file(file));
  if (argc < 3 || corpus.empty()) {
    std::fprintf(stderr, "usage: %s COUNT CORPUS_DIR..., with a file at least in the folders\n", argv[0]);
    return 2;
  }
  for (const Bytes& input : corpus) LLVMFuzzerTestOneInput(input.data(), input.size());
  Mutator mutator(corpus);
  const long count = std::atol(argv[1]);
  for (long i = 0; i < count; ++i) {
    const Bytes input = mutator.next();
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
  std::printf("%zu inputs and %ld changed ones held\n", corpus.size(), count);
  return 0;
}
