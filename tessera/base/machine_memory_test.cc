#include "tessera/base/machine_memory.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

namespace tessera::base {
namespace {

constexpr std::int64_t kGiB = std::int64_t{1} << 30;

// A machine of 16 GiB, of which 10 are available.
class MachineMemoryTest : public testing::Test {
 protected:
  MachineMemoryTest() {
    std::string name = testing::TempDir() + "machine_memory_XXXXXX";
    root_ = ::mkdtemp(name.data());
    write("proc/meminfo",
          "MemTotal:       16777216 kB\nMemFree:         1048576 kB\nMemAvailable:   10485760 kB\nCached: 1 kB\n");
    source_ = {root_ / "proc", root_ / "cgroup"};
  }
  ~MachineMemoryTest() override { std::filesystem::remove_all(root_); }
  void write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  MachineMemory read() {
    const auto memory = read_machine_memory(source_);
    EXPECT_TRUE(memory.has_value());
    return memory.value_or(MachineMemory{});
  }

  std::filesystem::path root_;
  MemorySource source_;
};

TEST_F(MachineMemoryTest, WithoutControlGroupsIsThePhysicalMemory) {
  EXPECT_EQ(read().total_bytes, 16 * kGiB);
  EXPECT_EQ(read().available_bytes, 10 * kGiB);
  EXPECT_EQ(read().arithmetic, "physical 16384 MiB, available 10240 MiB");
}

TEST_F(MachineMemoryTest, TheTightestGroupOnTheWayUpCounts) {
  write("proc/self/cgroup", "0::/a/b/c\n");
  write("cgroup/a/b/c/memory.max", "max\n");
  write("cgroup/a/b/memory.max", std::to_string(4 * kGiB) + "\n");
  write("cgroup/a/b/memory.current", std::to_string(3 * kGiB) + "\n");
  write("cgroup/a/b/memory.stat", "anon 5\ninactive_file " + std::to_string(2 * kGiB) + "\n");
  write("cgroup/a/memory.max", std::to_string(8 * kGiB) + "\n");
  write("cgroup/a/memory.current", std::to_string(7 * kGiB) + "\n");
  EXPECT_EQ(read().total_bytes, 4 * kGiB);
  EXPECT_EQ(read().available_bytes, kGiB);  // Of a; b has 3 GiB, as 2 of its file pages can be dropped.
  EXPECT_NE(read().arithmetic.find("control group /a/b: limit 4096 MiB, in use 1024 MiB"), std::string::npos)
      << read().arithmetic;
}

TEST_F(MachineMemoryTest, AContainerSeesItsGroupAsTheRoot) {
  write("proc/self/cgroup", "0::/docker/0123\n");
  write("cgroup/memory.max", std::to_string(2 * kGiB));
  EXPECT_EQ(read().total_bytes, 2 * kGiB);
  EXPECT_EQ(read().available_bytes, 2 * kGiB);
}

TEST_F(MachineMemoryTest, VersionOneCountsToo) {
  write("proc/self/cgroup", "3:cpu,cpuacct:/x\n7:hugetlb,memory:/job\n");
  write("cgroup/memory/job/memory.limit_in_bytes", std::to_string(6 * kGiB));
  write("cgroup/memory/job/memory.usage_in_bytes", std::to_string(5 * kGiB));
  write("cgroup/memory/job/memory.stat", "total_inactive_file " + std::to_string(kGiB) + "\n");
  write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");  // No limit.
  EXPECT_EQ(read().total_bytes, 6 * kGiB);
  EXPECT_EQ(read().available_bytes, 2 * kGiB);
}

TEST_F(MachineMemoryTest, AGroupInWhichEverythingIsUsedLeavesNothing) {
  write("proc/self/cgroup", "0::/\n");
  write("cgroup/memory.max", "1000");
  write("cgroup/memory.current", "5000");
  EXPECT_EQ(read().available_bytes, 0);
}

TEST_F(MachineMemoryTest, NonsenseIsNoMemory) {
  for (const char* text :
       {"", "MemTotal: x kB\nMemAvailable: 1 kB\n", "MemTotal: 5 kB\n", "MemTotal: 5 kB\nMemAvailable: 6 kB\n",
        "MemTotal: 9223372036854775807 kB\nMemAvailable: 1 kB"}) {
    write("proc/meminfo", text);
    EXPECT_EQ(read_machine_memory(source_).error().code(), StatusCode::kUnavailable) << text;
  }
}

TEST(MachineMemory, ThisMachineHasSome) {
  const auto memory = read_machine_memory();
  ASSERT_TRUE(memory.has_value()) << memory.error().message();
  EXPECT_GT(memory->available_bytes, 0);
  EXPECT_LE(memory->available_bytes, memory->total_bytes);
}

}  // namespace
}  // namespace tessera::base
