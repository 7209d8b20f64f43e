// docs/rooms.md as data: which room may include which, and which headers stay in their place.
#pragma once

#include <expected>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::style {

struct Room {
  std::string name;
  std::string folder;
  std::set<std::string> includes;       // Names of rooms, its own not among them.
  std::set<std::string> test_includes;  // What its tests may include besides.
};

// Headers whose name starts with `prefix` are included only in `rooms`.
struct KeptHeader {
  std::string prefix;
  std::set<std::string> rooms;
};

struct BannedHeaders {
  std::string room;
  std::set<std::string> headers;
};

struct RoomTable {
  std::vector<Room> rooms;
  std::vector<KeptHeader> kept;
  std::vector<BannedHeaders> banned;

  // The room of that name, or null.
  const Room* find(std::string_view name) const;
  // The room in whose folder `path` lies directly or deeper, or null.
  const Room* room_of(std::string_view path) const;
};

// Reads the three tables of the page; the error says what is wrong with it. Refused: no table of rooms, a name twice,
// an unknown room, a room that may include one that stands below it (which would allow a cycle).
std::expected<RoomTable, std::string> parse_room_table(std::string_view markdown);

}  // namespace tessera::style
