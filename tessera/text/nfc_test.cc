#include "tessera/text/nfc.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>
#include <stdlib.h>
#include <utf8proc.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

std::string nfc(std::string_view text) {
  std::string buffer;
  return std::string(to_nfc(text, buffer));
}

// utf8proc's own function for whole strings: decomposition, ordering and composition in one.
std::string utf8proc_nfc(std::string text) {
  utf8proc_uint8_t* out =
      utf8proc_NFC(reinterpret_cast<const utf8proc_uint8_t*>(text.c_str()));  // Up to the NUL at its end.
  std::string composed(reinterpret_cast<const char*>(out));
  free(out);
  return composed;
}

TEST(Nfc, ComposesAndOrders) {
  EXPECT_EQ(nfc(""), "");
  EXPECT_EQ(nfc("e\u0301"), "\u00e9");
  EXPECT_EQ(nfc("xe\u0301y e\u0301"), "x\u00e9y \u00e9");
  EXPECT_EQ(nfc("\u0301e"), "\u0301e");
  EXPECT_EQ(nfc("a\u0315\u0300\u05ae\u0300b"), "\u00e0\u05ae\u0300\u0315b");  // By class 228, 230, 232.
  EXPECT_EQ(nfc("\u1112\u1161\u11ab\u1100\u1173\u11af"), "한글");
  EXPECT_EQ(nfc("\uac00\u11a8"), "\uac01");
  EXPECT_EQ(nfc("\u212b\u2126\u1e9b\u0323"), "\u00c5\u03a9\u1e9b\u0323");
  EXPECT_EQ(nfc("\u0958\u2adc"), "\u0915\u093c\u2add\u0338") << "excluded from composition";
  EXPECT_EQ(nfc("\uf900"), "\u8c48") << "a compatibility ideograph with a canonical decomposition";
}

// U+16FF1 has class 6 since Unicode 13, U+11935 and U+11930 compose since then.
TEST(Nfc, LeavesCharactersAloneThatTheLibraryDoesNotKnow) {
  EXPECT_EQ(nfc("a\u0301\U00016ff1\u0323\u0316"), "\u00e1\U00016ff1\u0323\u0316");
  EXPECT_EQ(nfc("\U00016ff1\u0301\u0323"), "\U00016ff1\u0323\u0301");
  EXPECT_EQ(nfc("\U00011935\U00011930"), "\U00011935\U00011930");
  EXPECT_EQ(nfc("\U00011938"), "\U00011938");
}

TEST(Nfc, TextThatIsNfcIsNotCopied) {
  std::string buffer;
  for (const std::string_view text :
       {"plain", "世界 Привет 한글 👩‍👩‍👧‍👦 naïve", "ქართული"}) {
    EXPECT_EQ(to_nfc(text, buffer), text);
  }
  const std::string_view ascii = "plain\r\n";
  EXPECT_EQ(to_nfc(ascii, buffer).data(), ascii.data());
}

// Every character between others with which it might compose, against utf8proc's own normalization of whole strings.
TEST(Nfc, EqualsUtf8procForEveryCharacter) {
  std::size_t differences = 0;
  for (char32_t c = 1; c < 0x110000; ++c) {
    if ((c >= 0xD800 && c < 0xE000) || is_left_alone_by_nfc(c)) continue;
    std::string text = "a";
    append_utf8(c, text);
    text += "\u0323";
    append_utf8(c, text);
    text += "\u0301";
    if (nfc(text) != utf8proc_nfc(text) && ++differences < 5)
      ADD_FAILURE() << std::hex << static_cast<std::uint32_t>(c);
  }
  EXPECT_EQ(differences, 0u);
}

TEST(Nfc, EqualsUtf8procForAnyText) {
  EXPECT_TRUE(rc::check("segments, stable sort and composition equal utf8proc's", [] {
    const auto points = *rc::gen::container<std::vector<char32_t>>(rc::gen::weightedOneOf<char32_t>(
        {{2, rc::gen::inRange<char32_t>(1, 0x80)},
         {4, rc::gen::inRange<char32_t>(0x300, 0x370)},
         {2, rc::gen::element<char32_t>(0x1100, 0x1161, 0x11A8, 0xAC00, 0x0928, 0x093C, 0x0B47, 0x0B3E, 0x0DD9, 0x0DCA,
                                        0x09C7, 0x09BE, 0x1E0A, 0x0344, 0x0F73, 0x0F71, 0x30AB, 0x3099, 0x1D15F)},
         {1, rc::gen::inRange<char32_t>(0x80, 0xD800)},
         {1, rc::gen::inRange<char32_t>(0xE000, 0x110000)}}));
    std::string text;
    for (const char32_t c : points) {
      if (!is_left_alone_by_nfc(c)) append_utf8(c, text);
    }
    RC_ASSERT(nfc(text) == utf8proc_nfc(text));
  }));
}

// A megabyte of marks in the worst order, for which insertion would take a hundred thousand million steps.
TEST(Nfc, OrdersLongRunsOfMarksInNearLinearTime) {
  std::string text = "a";
  std::string expected = "a";
  for (int i = 0; i < 250'000; ++i) text += "\u0315\u0316";  // Classes 232 and 220.
  for (int i = 0; i < 250'000; ++i) expected += "\u0316";
  for (int i = 0; i < 250'000; ++i) expected += "\u0315";
  EXPECT_EQ(nfc(text) == expected, true);
}

}  // namespace
}  // namespace tessera::text
