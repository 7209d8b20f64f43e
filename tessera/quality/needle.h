// Needle in a haystack: one made-up sentence, hidden at a given depth of a novel, is asked for. It tells how far back a
// model, and a KV cache in few bits, still sees.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "tessera/quality/task.h"

namespace tessera::quality {

TaskEntry needle_task();

// The fact of one question: a place, a thing and a number, drawn by `seed`; no such fact is known to anybody.
struct Needle {
  std::string sentence;  // "The access code of the harbour office in Velmora is 4718203."
  std::string question;
  std::string secret;  // "4718203": seven digits, the first not 0.
};
Needle make_needle(std::uint64_t seed);

// The first `bytes` of the book with the sentence at `depth_percent` of them, moved back to where the sentence before
// ends; at 0 it comes first. bytes <= book.size(), and is moved back to the end of a word.
std::string haystack(std::string_view book, std::size_t bytes, int depth_percent, std::string_view sentence);

// How many bytes of the book make a prompt of as many tokens as `tokens_wanted` holds, or a few fewer; `count` says how
// many tokens it is with so many bytes, and grows with them. out_of_range: even none of the book is too much, or all of
// it too little by more than a twentieth; and as `count` fails (out_of_range of it: too much).
base::Result<std::size_t> bytes_for_tokens(std::size_t book_bytes, std::size_t tokens_wanted,
                                           const std::function<base::Result<std::size_t>(std::size_t bytes)>& count);

}  // namespace tessera::quality
