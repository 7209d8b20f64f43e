// Planted faults, each of which a linter must report; compiled into nothing. See tests/style/CMakeLists.txt.
#include <string>
#include <utility>
#include <vector>

namespace planted {

class badly_named {
 public:
  int BadFunction(std::string text) {
    std::string taken = std::move(text);
    return static_cast<int>(taken.size() + text.size());
  }
};

int   badly_formatted( std::vector<int> numbers )
{
  int sum=0;
  for (auto number : numbers) sum += number;
  return sum;
}

}  // namespace planted
