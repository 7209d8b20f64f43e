#include "tessera/text/byte_level.h"

#include <gtest/gtest.h>

#include <set>

#include "tessera/text/utf8.h"

namespace tessera::text {
namespace {

TEST(ByteLevel, EveryByteHasALetterOfItsOwn) {
  std::set<std::string> letters;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string letter = byte_letter(static_cast<unsigned char>(byte));
    EXPECT_TRUE(is_valid_utf8(letter));
    EXPECT_TRUE(letters.insert(letter).second) << byte;
    EXPECT_EQ(bytes_of_letters(letter), std::string(1, static_cast<char>(byte)));
  }
}

// As every GPT-2 vocabulary spells them.
TEST(ByteLevel, SpellsAsGpt2Does) {
  EXPECT_EQ(byte_letter(' '), "Ġ");
  EXPECT_EQ(byte_letter('\n'), "Ċ");
  EXPECT_EQ(byte_letter('\t'), "ĉ");
  EXPECT_EQ(byte_letter(0x00), "Ā");
  EXPECT_EQ(byte_letter(0x7F), "ġ");
  EXPECT_EQ(byte_letter(0xAD), "Ń");
  EXPECT_EQ(byte_letter('A'), "A");
  EXPECT_EQ(byte_letter(0xE4), "ä");
  EXPECT_EQ(bytes_of_letters("Ġä¸ĸçķĮ"), " 世界");
  EXPECT_EQ(bytes_of_letters(""), "");
}

TEST(ByteLevel, RefusesWhatIsNotALetter) {
  for (const std::string_view text :
       {" ", "a b", "\n", "世", "ń", "\u00AD", "\u0144", "<｜end｜>", "\xC4", "\xFF", "😀"}) {
    EXPECT_EQ(bytes_of_letters(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace tessera::text
