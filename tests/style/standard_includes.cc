#include "tests/style/standard_includes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tests/style/lines.h"

namespace tessera::style {

namespace {

struct Header {
  std::string_view name;
  std::string_view declares;
};

// The names that the project uses, or may well, of the headers that are precompiled. A name that stands with several
// headers may come from any of them; a violation names the first.
constexpr Header kHeaders[] = {
    {"algorithm",
     "adjacent_find all_of any_of binary_search clamp copy copy_if copy_n count count_if equal fill fill_n find "
     "find_if "
     "find_if_not for_each generate includes is_sorted lower_bound make_heap max max_element merge min min_element "
     "minmax mismatch none_of nth_element partial_sort pop_heap push_heap remove remove_if replace reverse rotate "
     "set_difference set_intersection set_union shuffle sort sort_heap stable_sort swap_ranges transform unique "
     "upper_bound"},
    {"array", "array to_array"},
    {"atomic",
     "atomic atomic_ref atomic_thread_fence memory_order_acq_rel memory_order_acquire memory_order_relaxed "
     "memory_order_release memory_order_seq_cst"},
    {"bit",
     "bit_cast bit_ceil bit_floor bit_width byteswap countl_one countl_zero countr_one countr_zero endian "
     "has_single_bit popcount"},
    {"chrono", "chrono"},
    {"cmath",
     "abs atan2 ceil copysign cos erf erfc exp exp2 expm1 fabs floor fma fmax fmin fmod frexp hypot ilogb isfinite "
     "isinf isnan ldexp lgamma llround log log10 log1p log2 lround nearbyint nextafter pow round signbit sin sqrt tanh "
     "trunc"},
    {"cstdint", "int16_t int32_t int64_t int8_t uint16_t uint32_t uint64_t uint8_t uintptr_t"},
    {"cstring", "memcmp memcpy memmove memset strcmp strerror strlen"},
    {"deque", "deque"},
    {"expected", "expected unexpected"},
    {"filesystem", "filesystem"},
    {"fstream", "fstream ifstream ofstream"},
    {"functional", "bind_front cref function greater hash less move_only_function plus reference_wrapper"},
    {"limits", "numeric_limits"},
    {"map", "map multimap"},
    {"memory", "addressof enable_shared_from_this make_shared make_unique shared_ptr to_address unique_ptr weak_ptr"},
    {"mutex", "call_once lock_guard mutex once_flag recursive_mutex scoped_lock unique_lock"},
    {"numeric", "accumulate gcd inner_product iota lcm partial_sum reduce"},
    {"optional", "nullopt optional"},
    {"random",
     "bernoulli_distribution discrete_distribution mt19937 mt19937_64 normal_distribution random_device "
     "uniform_int_distribution uniform_real_distribution"},
    {"set", "multiset set"},
    {"span", "as_bytes as_writable_bytes dynamic_extent span"},
    {"sstream", "istringstream ostringstream stringstream"},
    {"string", "char_traits getline stod stoi stol stoll stoul stoull string to_string"},
    {"string_view", "string_view"},
    {"thread", "jthread this_thread thread"},
    {"unordered_map", "unordered_map unordered_multimap"},
    {"utility",
     "as_const cmp_equal cmp_greater cmp_greater_equal cmp_less cmp_less_equal exchange forward in_range make_pair "
     "move pair swap to_underlying unreachable"},
    {"variant", "get_if holds_alternative monostate variant visit"},
    {"vector", "vector"},
    // What stands above with another header, too.
    {"algorithm", "move"},
    {"cstdio", "remove"},
    {"cstdlib", "abs"},
    {"map", "less pair"},
    {"memory", "hash"},
    {"optional", "hash"},
    {"set", "less"},
    {"string", "hash string_view"},
    {"string_view", "hash swap"},
    {"unordered_map", "pair"},
    {"variant", "hash"},
};

// For every name the headers that declare it.
const std::map<std::string_view, std::vector<std::string_view>>& declaring_headers() {
  static const auto headers = [] {
    std::map<std::string_view, std::vector<std::string_view>> result;
    for (const Header& header : kHeaders) {
      for (std::string_view name : split(header.declares, ' ')) result[name].push_back(header.name);
    }
    return result;
  }();
  return headers;
}

bool is_checked(std::string_view path) {
  if (!path.ends_with(".h") && !path.ends_with(".cc")) return false;
  constexpr std::string_view kFolders[] = {"tessera/", "apps/", "tests/", "bench/"};
  return std::ranges::any_of(kFolders, [&](std::string_view folder) { return path.starts_with(folder); });
}

// Where the comment or literal that begins at `at` ends; `at` where none does.
std::size_t end_of_blank(std::string_view text, std::size_t at) {
  const auto after = [&](std::string_view mark, std::size_t from) {
    const std::size_t found = text.find(mark, from);
    return found == text.npos ? text.size() : found + mark.size();
  };
  const std::string_view rest = text.substr(at);
  const bool in_word = at > 0 && is_word_character(text[at - 1]);
  if (rest.starts_with("//")) return std::min(text.find('\n', at), text.size());
  if (rest.starts_with("/*")) return after("*/", at + 2);
  if (rest.starts_with("R\"") && !in_word) {
    const std::size_t open = std::min(text.find('(', at), text.size());
    return after(fmt::format("){}\"", text.substr(at + 2, open - at - 2)), open);
  }
  // A ' within a number parts its digits.
  if (rest[0] != '"' && (rest[0] != '\'' || in_word)) return at;
  for (std::size_t end = at + 1; end < text.size() && text[end] != '\n'; ++end) {
    if (text[end] == rest[0]) return end + 1;
    if (text[end] == '\\') ++end;
  }
  return at + 1;
}

// The text with a space for every character of a comment or literal but ends of lines.
std::string code_of(std::string_view text) {
  std::string code(text);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = end_of_blank(text, at);
    std::replace_if(code.begin() + at, code.begin() + end, [](char c) { return c != '\n'; }, ' ');
    at = std::max(end, at + 1);
  }
  return code;
}

// Calls f(name) for every std::name and std::ranges::name of the line.
template <typename F>
void for_each_standard_name(std::string_view line, F f) {
  constexpr std::string_view kStd = "std::";
  constexpr std::string_view kRanges = "ranges::";
  for (std::size_t at = line.find(kStd); at != line.npos; at = line.find(kStd, at + 1)) {
    if (at > 0 && is_word_character(line[at - 1])) continue;
    std::string_view name = line.substr(at + kStd.size());
    if (name.starts_with(kRanges)) name.remove_prefix(kRanges.size());
    f(name.substr(0, std::ranges::find_if_not(name, is_word_character) - name.begin()));
  }
}

struct Content {
  std::vector<std::string_view> headers;  // Included, but none of the project's.
  std::vector<std::string_view> project;  // Paths of the project's headers that it includes.
  std::map<std::string_view, int> uses;   // Known names, with the line of the first use.
};

using Contents = std::map<std::string_view, Content>;  // By path.

// Of the files that `contents` has an entry for, the one that `from` means by `header`; empty where none is.
std::string_view included_file(const Contents& contents, std::string_view header, std::string_view from) {
  const std::string beside = fmt::format("{}{}", from.substr(0, from.rfind('/') + 1), header);
  for (std::string_view path : {header, std::string_view(beside)}) {
    if (const auto found = contents.find(path); found != contents.end()) return found->first;
  }
  return {};
}

Contents contents_of(const std::vector<SourceFile>& files) {
  Contents contents;
  for (const SourceFile& file : files) {
    if (is_checked(file.path)) contents.try_emplace(file.path);
  }
  for (const SourceFile& file : files) {
    if (!is_checked(file.path)) continue;
    Content& content = contents.at(file.path);
    const std::string code = code_of(file.text);
    const std::vector<std::string_view> code_lines = split(code, '\n');
    const std::vector<std::string_view> lines = split(file.text, '\n');
    for (std::size_t i = 0; i < lines.size(); ++i) {
      for_each_standard_name(code_lines[i], [&](std::string_view name) {
        const auto known = declaring_headers().find(name);
        if (known != declaring_headers().end()) content.uses.emplace(known->first, static_cast<int>(i) + 1);
      });
      // What is included stands in quotes, which are blank in the code.
      if (!trimmed(code_lines[i]).starts_with('#')) continue;
      const std::string_view header = included_header(lines[i]);
      const std::string_view path = included_file(contents, header, file.path);
      if (path.empty()) {
        content.headers.push_back(header);
      } else {
        content.project.push_back(path);
      }
    }
  }
  return contents;
}

// What the file and all that it includes name of other headers than the project's.
std::set<std::string_view> headers_within_reach(const Contents& contents, std::string_view path) {
  std::set<std::string_view> headers;
  std::set<std::string_view> seen = {path};
  for (std::vector<std::string_view> pending = {path}; !pending.empty();) {
    const Content& content = contents.at(pending.back());
    pending.pop_back();
    headers.insert(content.headers.begin(), content.headers.end());
    for (std::string_view next : content.project) {
      if (seen.insert(next).second) pending.push_back(next);
    }
  }
  return headers;
}

}  // namespace

Violations check_standard_includes(const std::vector<SourceFile>& files) {
  const Contents contents = contents_of(files);
  Violations found;
  for (const auto& [path, content] : contents) {
    const std::set<std::string_view> headers = headers_within_reach(contents, path);
    for (const auto& [name, line] : content.uses) {
      const std::vector<std::string_view>& declaring = declaring_headers().at(name);
      if (std::ranges::any_of(declaring, [&](std::string_view header) { return headers.contains(header); })) continue;
      found.push_back({std::string(path), line, fmt::format("uses std::{} without <{}>", name, declaring.front())});
    }
  }
  return found;
}

}  // namespace tessera::style
