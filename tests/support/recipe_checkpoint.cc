#include "tests/support/recipe_checkpoint.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <system_error>
#include <utility>

#include "tessera/base/arithmetic.h"
#include "tessera/base/check.h"
#include "tessera/weights/checkpoint.h"
#include "tessera/weights/mapped_file.h"
#include "tessera/weights/safetensors_writer.h"

namespace tessera::test_support {

namespace {

namespace fs = std::filesystem;
constexpr std::int64_t kTextBytesMax = 1 << 20;

std::int64_t integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  TESSERA_CHECK(error == std::errc() && end == text.data() + text.size(), "a recipe's number");
  return value;
}

// All names of a pattern such as layers.{1..2}.experts.{0..7}, the last range turning fastest.
void expand(std::string_view done, std::string_view pattern, std::vector<std::string>& names) {
  const std::size_t open = pattern.find('{');
  if (open == std::string_view::npos) {
    names.push_back(fmt::format("{}{}", done, pattern));
    return;
  }
  const std::size_t dots = pattern.find("..", open);
  const std::size_t close = pattern.find('}', open);
  TESSERA_CHECK(dots != std::string_view::npos && close != std::string_view::npos && dots < close, "a recipe's range");
  const std::int64_t last = integer(pattern.substr(dots + 2, close - dots - 2));
  for (std::int64_t i = integer(pattern.substr(open + 1, dots - open - 1)); i <= last; ++i) {
    expand(fmt::format("{}{}{}", done, pattern.substr(0, open), i), pattern.substr(close + 1), names);
  }
}

std::vector<std::int64_t> extents(std::string_view text) {
  std::vector<std::int64_t> shape;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find('x', begin), text.size());
    shape.push_back(integer(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return shape;
}

std::int64_t elements(const RecipeTensor& tensor) {
  std::int64_t product = 1;
  for (const std::int64_t extent : tensor.shape) product *= extent;
  return product;
}

// splitmix64, seeded by the names.
class Words {
 public:
  Words(std::string_view checkpoint, std::string_view tensor) {
    for (const char c : fmt::format("{}/{}", checkpoint, tensor)) {
      state_ = (state_ ^ static_cast<unsigned char>(c)) * 0x100000001b3ull;
    }
  }
  std::uint64_t next() { return base::mix64(state_ += base::kMix64Step); }

 private:
  std::uint64_t state_ = 0xcbf29ce484222325ull;
};

// Every product here is exact in double, so that no compiler's contraction changes a bit.
double draw(const RecipeTensor& tensor, std::uint64_t word) {
  if (tensor.fill == "normal") {
    std::int64_t n = -131070;
    for (int shift = 0; shift < 64; shift += 16) n += static_cast<std::int64_t>((word >> shift) & 0xffff);
    return std::ldexp(static_cast<double>(n) * static_cast<double>(tensor.arguments[0]), -40);
  }
  TESSERA_CHECK(tensor.fill == "uniform");
  const double u = std::ldexp(static_cast<double>(word >> 40), -23) - 1.0;
  return std::ldexp(static_cast<double>(tensor.arguments[0]), -24) +
         std::ldexp(static_cast<double>(tensor.arguments[1]), -24) * u;
}

template <typename T>
void append(std::vector<std::byte>& bytes, T value) {
  const auto raw = std::bit_cast<std::array<std::byte, sizeof(T)>>(value);
  bytes.insert(bytes.end(), raw.begin(), raw.end());
}

void append_code(std::vector<std::byte>& bytes, base::DType dtype, std::uint64_t word) {
  if (dtype == base::DType::kI32) {
    append(bytes, static_cast<std::uint32_t>(word));
    return;
  }
  TESSERA_CHECK(dtype == base::DType::kF8E4M3);
  std::uint8_t code = static_cast<std::uint8_t>(word);
  if ((code & 0x7f) == 0x7f) code ^= 1;
  append(bytes, code);
}

std::string header_line(const RecipeTensor& tensor) {
  std::string shape;
  for (const std::int64_t extent : tensor.shape) shape += fmt::format("{}{}", shape.empty() ? "" : "x", extent);
  return fmt::format("{} {} {}\n", tensor.name, base::dtype_name(tensor.dtype), shape);
}

std::string shard_name(std::int64_t shard, std::int64_t shards) {
  return shards == 0 ? std::string(weights::kSingleFileName)
                     : fmt::format("model-{:05}-of-{:05}.safetensors", shard, shards);
}

}  // namespace

fs::path tiny_goldens_dir() { return fs::path(TESSERA_SOURCE_DIR) / "tests/goldens/tiny"; }

std::vector<std::string> tiny_checkpoint_names() {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(tiny_goldens_dir())) {
    if (fs::exists(entry.path() / "recipe.txt")) names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

base::Result<std::vector<RecipeTensor>> parse_recipe(std::string_view text) {
  std::vector<RecipeTensor> tensors;
  std::int64_t shard = 0;
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line.substr(0, line.find('#')));
    std::string name, dtype_text, shape, word;
    if (!(words >> name)) continue;
    if (name == "shard") {
      ++shard;
      continue;
    }
    RecipeTensor tensor;
    words >> dtype_text >> shape >> tensor.fill;
    const auto dtype = base::dtype_from_name(dtype_text);
    if (!dtype.has_value()) return base::failure(base::invalid_argument("recipe: " + line));
    tensor.dtype = *dtype;
    tensor.shape = extents(shape);
    tensor.shard = shard;
    while (words >> word) tensor.arguments.push_back(integer(word));
    std::vector<std::string> names;
    expand("", name, names);
    for (std::string& resolved : names) {
      tensor.name = std::move(resolved);
      tensors.push_back(tensor);
    }
  }
  return tensors;
}

base::Result<std::vector<RecipeTensor>> read_recipe(std::string_view name) {
  TESSERA_ASSIGN_OR_RETURN(const std::string text,
                           weights::read_text_file(tiny_goldens_dir() / name / "recipe.txt", kTextBytesMax));
  return parse_recipe(text);
}

std::vector<std::byte> recipe_data(std::string_view checkpoint, const RecipeTensor& tensor) {
  std::vector<std::byte> bytes;
  bytes.reserve(static_cast<std::size_t>(elements(tensor) * base::dtype_size(tensor.dtype)));
  if (tensor.fill == "values") {
    TESSERA_CHECK(std::ssize(tensor.arguments) == elements(tensor));
    for (const std::int64_t value : tensor.arguments) {
      if (tensor.dtype == base::DType::kI64) {
        append(bytes, value);
      } else {
        append(bytes, static_cast<std::int32_t>(value));
      }
    }
    return bytes;
  }
  Words words(checkpoint, tensor.name);
  for (std::int64_t i = 0; i < elements(tensor); ++i) {
    const std::uint64_t word = words.next();
    if (tensor.fill == "codes") {
      append_code(bytes, tensor.dtype, word);
      continue;
    }
    const float value = static_cast<float>(draw(tensor, word));
    if (tensor.dtype == base::DType::kF32) {
      append(bytes, value);
    } else {
      append(bytes, base::to_bf16(value));
    }
  }
  return bytes;
}

std::string recipe_fingerprint(std::string_view checkpoint, std::vector<RecipeTensor> tensors) {
  std::ranges::sort(tensors, {}, &RecipeTensor::name);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  TESSERA_CHECK(context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  const auto update = [&](const void* data, std::size_t size) {
    TESSERA_CHECK(EVP_DigestUpdate(context.get(), data, size) == 1);
  };
  for (const RecipeTensor& tensor : tensors) {
    const std::string head = header_line(tensor);
    update(head.data(), head.size());
    const std::vector<std::byte> data = recipe_data(checkpoint, tensor);
    update(data.data(), data.size());
  }
  std::array<unsigned char, 32> sha{};
  TESSERA_CHECK(EVP_DigestFinal_ex(context.get(), sha.data(), nullptr) == 1);
  std::string hex;
  for (const unsigned char byte : sha) {
    for (const int digit : {byte >> 4, byte & 15}) hex += "0123456789abcdef"[digit];
  }
  return hex;
}

base::Status write_recipe_checkpoint(std::string_view name, const fs::path& dir) {
  const fs::path recipe_dir = tiny_goldens_dir() / name;
  std::error_code error;
  for (const fs::path& file : {recipe_dir / "config.json", recipe_dir / "generation_config.json",
                               tiny_goldens_dir() / "tokenizer.json", tiny_goldens_dir() / "tokenizer_config.json"}) {
    fs::copy_file(file, dir / file.filename(), fs::copy_options::overwrite_existing, error);
    if (error) return base::internal_error(fmt::format("{}: {}", file.string(), error.message()));
  }
  TESSERA_ASSIGN_OR_RETURN(const std::vector<RecipeTensor> tensors, read_recipe(name));
  std::map<std::int64_t, std::vector<const RecipeTensor*>> files;
  for (const RecipeTensor& tensor : tensors) files[tensor.shard].push_back(&tensor);
  const std::int64_t shards = files.rbegin()->first;
  std::map<std::string, std::string> weight_map;
  std::int64_t total = 0;
  for (const auto& [shard, contents] : files) {
    const std::string file_name = shard_name(shard, shards);
    std::vector<weights::TensorDeclaration> declarations;
    for (const RecipeTensor* tensor : contents) declarations.push_back({tensor->name, tensor->dtype, tensor->shape});
    TESSERA_ASSIGN_OR_RETURN(weights::SafetensorsWriter writer,
                             weights::SafetensorsWriter::create(dir / file_name, std::move(declarations)));
    for (const RecipeTensor* tensor : contents) {
      const std::vector<std::byte> data = recipe_data(name, *tensor);
      TESSERA_RETURN_IF_ERROR(writer.write(tensor->name, data));
      weight_map[tensor->name] = file_name;
      total += std::ssize(data);
    }
    TESSERA_RETURN_IF_ERROR(writer.finish());
  }
  return shards == 0 ? base::ok_status() : weights::write_checkpoint_index(dir, weight_map, total);
}

}  // namespace tessera::test_support
