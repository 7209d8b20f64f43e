#include "tessera/text/utf8.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>
#include <vector>

namespace tessera::text {
namespace {

std::string assemble(const std::vector<std::string>& pieces) {
  Utf8Assembler assembler;
  std::string out;
  for (const std::string& piece : pieces) {
    std::string part;
    assembler.push(piece, part);
    EXPECT_TRUE(is_valid_utf8(part));
    out += part;
  }
  assembler.flush(out);
  return out;
}

// Encodes any number as UTF-8's bit pattern would, valid or not.
std::string bit_pattern(unsigned c, int length) {
  if (length == 1) return {static_cast<char>(c)};
  std::string bytes(static_cast<std::size_t>(length), '\0');
  for (int i = length - 1; i > 0; --i, c >>= 6)
    bytes[static_cast<std::size_t>(i)] = static_cast<char>(0x80 | (c & 0x3F));
  bytes[0] = static_cast<char>((0xF00 >> length) | c);
  return bytes;
}

TEST(Utf8, AcceptsEveryCodePointInItsShortestFormOnly) {
  for (unsigned c = 0; c < 0x200000; ++c) {
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    const int shortest = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (int length = shortest; length <= 4; ++length) {
      const bool valid = length == shortest && !surrogate && c < 0x110000;
      ASSERT_EQ(is_valid_utf8(bit_pattern(c, length)), valid) << c << " in " << length << " bytes";
    }
  }
}

TEST(Utf8, FindsTheFirstIllFormedByteAtEveryOffset) {
  for (std::size_t before = 0; before < 20; ++before) {
    const std::string text(before, 'x');
    EXPECT_EQ(valid_utf8_prefix(text), before);
    EXPECT_EQ(valid_utf8_prefix(text + "\x80" + "yyyyyyyyyy"), before);
    EXPECT_EQ(valid_utf8_prefix(text + "\xE4\xB8"), before);
    EXPECT_EQ(valid_utf8_prefix(text + "世" + "\xFF"), before + 3);
  }
}

// Tables 3-8 to 3-11 of the Unicode standard 15.0.
TEST(Utf8PrefixWithin, EndsBetweenCharacters) {
  const std::string text = "aé世😀z";  // 1, 2, 3, 4 and 1 bytes.
  const std::size_t expected[] = {0, 1, 1, 3, 3, 3, 6, 6, 6, 6, 10, 11, 11, 11};
  for (std::size_t bytes_max = 0; bytes_max < std::size(expected); ++bytes_max) {
    EXPECT_EQ(utf8_prefix_within(text, bytes_max), expected[bytes_max]) << bytes_max;
    EXPECT_TRUE(is_valid_utf8(text.substr(0, utf8_prefix_within(text, bytes_max))));
  }
  EXPECT_LE(utf8_prefix_within("\x80\x80\x80\x80\x80\x80", 5), 5u);
}

TEST(Utf8Assembler, ReplacesMaximalSubparts) {
  const std::string r = "\uFFFD";
  EXPECT_EQ(assemble({"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"}), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(assemble({"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"}), r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(assemble({"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"}), r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(assemble({"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"}), r + r + r + r + "A");
  EXPECT_EQ(assemble({"\xF0\x9F\x98"}), r);
  EXPECT_EQ(assemble({"\xF0\x9F", "\x98", "\x80"}), "😀");
}

TEST(Utf8Assembler, DoesNotDependOnHowBytesAreCut) {
  EXPECT_TRUE(rc::check("pieces equal the whole", [] {
    const auto piece = rc::gen::oneOf(rc::gen::container<std::string>(rc::gen::arbitrary<char>()),
                                      rc::gen::element<std::string>("", "a", "é", "\xC3", "\xA9", "世", "\xE4\xB8",
                                                                    "\x96", "😀", "\xF0\x9F", "\x98"));
    const auto pieces = *rc::gen::container<std::vector<std::string>>(piece);
    std::string whole;
    for (const std::string& p : pieces) whole += p;
    const std::string expected = assemble({whole});
    RC_ASSERT(is_valid_utf8(expected));
    RC_ASSERT(assemble(pieces) == expected);
    std::vector<std::string> bytes;
    for (const char c : whole) bytes.emplace_back(1, c);
    RC_ASSERT(assemble(bytes) == expected);
    if (is_valid_utf8(whole)) RC_ASSERT(expected == whole);
  }));
}

}  // namespace
}  // namespace tessera::text
