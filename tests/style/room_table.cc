#include "tests/style/room_table.h"

#include <algorithm>

#include "tests/style/lines.h"

namespace tessera::style {

namespace {

using Row = std::vector<std::string>;

std::string without_ticks(std::string_view cell) {
  std::string result;
  std::ranges::copy_if(cell, std::back_inserter(result), [](char c) { return c != '`'; });
  return std::string(trimmed(result));
}

std::set<std::string> names(std::string_view cell) {
  std::set<std::string> result;
  for (std::string_view part : split(cell, ',')) {
    std::string name = without_ticks(part);
    if (!name.empty()) result.insert(std::move(name));
  }
  return result;
}

// The cells of "| a | b |", or nothing where the line is no table row.
Row row_of(std::string_view line) {
  line = trimmed(line);
  if (line.size() < 2 || line.front() != '|' || line.back() != '|') return {};
  Row row;
  for (std::string_view cell : split(line.substr(1, line.size() - 2), '|')) row.emplace_back(trimmed(cell));
  return row;
}

// The rows below the header row whose first cells are `header` and below its rule.
std::vector<Row> table_below(std::string_view markdown, const Row& header) {
  std::vector<Row> rows;
  bool inside = false;
  for (std::string_view line : split(markdown, '\n')) {
    Row row = row_of(line);
    if (row.empty()) {
      if (inside) break;
    } else if (inside) {
      if (!row[0].starts_with("---")) rows.push_back(std::move(row));
    } else if (row.size() >= header.size() && std::equal(header.begin(), header.end(), row.begin())) {
      inside = true;
    }
  }
  return rows;
}

}  // namespace

const Room* RoomTable::find(std::string_view name) const {
  auto found = std::ranges::find(rooms, name, &Room::name);
  return found == rooms.end() ? nullptr : &*found;
}

const Room* RoomTable::room_of(std::string_view path) const {
  for (const Room& room : rooms) {
    if (path.starts_with(room.folder + "/")) return &room;
  }
  return nullptr;
}

std::expected<RoomTable, std::string> parse_room_table(std::string_view markdown) {
  RoomTable table;
  for (const Row& row : table_below(markdown, {"room", "folder", "may include", "its tests also"})) {
    if (row.size() < 4) return std::unexpected("the row of '" + row[0] + "' has fewer than 4 cells");
    Room room{without_ticks(row[0]), without_ticks(row[1]), names(row[2]), names(row[3])};
    if (table.find(room.name) != nullptr) return std::unexpected("room '" + room.name + "' stands twice");
    for (const std::string& other : room.includes) {
      if (table.find(other) == nullptr) {
        return std::unexpected("'" + room.name + "' may include '" + other + "', which does not stand above it");
      }
    }
    table.rooms.push_back(std::move(room));
  }
  if (table.rooms.empty()) return std::unexpected("no table of rooms was found");
  for (const Row& row : table_below(markdown, {"header starts with", "only in"})) {
    table.kept.push_back({without_ticks(row[0]), row.size() > 1 ? names(row[1]) : std::set<std::string>{}});
  }
  for (const Row& row : table_below(markdown, {"room", "never includes"})) {
    table.banned.push_back({without_ticks(row[0]), row.size() > 1 ? names(row[1]) : std::set<std::string>{}});
  }
  std::set<std::string> mentioned;
  for (const Room& room : table.rooms) mentioned.insert(room.test_includes.begin(), room.test_includes.end());
  for (const KeptHeader& kept : table.kept) mentioned.insert(kept.rooms.begin(), kept.rooms.end());
  for (const BannedHeaders& banned : table.banned) mentioned.insert(banned.room);
  for (const std::string& name : mentioned) {
    if (table.find(name) == nullptr) return std::unexpected("'" + name + "' is no room of the table");
  }
  return table;
}

}  // namespace tessera::style
