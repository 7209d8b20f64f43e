// Shows that each rule of style can fail: a planted file for every fault, and a sound one beside it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "tests/style/room_table.h"
#include "tests/style/rules.h"
#include "tests/style/standard_includes.h"

namespace tessera::style {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr std::string_view kPage = R"(# Rooms
| room | folder | may include | its tests also | holds |
|---|---|---|---|---|
| `base` | `tessera/base` | | | words |
| `ops` | `tessera/ops` | base | | words |
| `scheduler` | `tessera/scheduler` | base | ops | words |

| header starts with | only in |
|---|---|
| `boost/json` | ops |

| room | never includes |
|---|---|
| scheduler | `chrono`, `tessera/base/clock.h` |
)";

RoomTable table() { return parse_room_table(kPage).value(); }

std::string what(const Violations& violations) {
  std::string all;
  for (const Violation& violation : violations) all += violation.to_string() + "\n";
  return all;
}

// The page with `from` replaced by `to`.
std::string page_with(std::string_view from, std::string_view to) {
  std::string page(kPage);
  page.replace(page.find(from), from.size(), to);
  return page;
}

TEST(RoomTableCanary, ReadsAllThreeTables) {
  const RoomTable rooms = table();
  ASSERT_THAT(rooms.rooms, SizeIs(3));
  EXPECT_EQ(rooms.rooms[2].folder, "tessera/scheduler");
  EXPECT_THAT(rooms.rooms[2].includes, ElementsAre("base"));
  EXPECT_THAT(rooms.rooms[2].test_includes, ElementsAre("ops"));
  ASSERT_THAT(rooms.kept, SizeIs(1));
  EXPECT_THAT(rooms.kept[0].rooms, ElementsAre("ops"));
  ASSERT_THAT(rooms.banned, SizeIs(1));
  EXPECT_THAT(rooms.banned[0].headers, ElementsAre("chrono", "tessera/base/clock.h"));
}

TEST(RoomTableCanary, RefusesBadPages) {
  EXPECT_THAT(parse_room_table("# Rooms\n").error(), HasSubstr("no table"));
  EXPECT_THAT(parse_room_table(page_with("| `base` | `tessera/base` | |", "| `base` | `tessera/base` | ops |")).error(),
              HasSubstr("does not stand above"));
  EXPECT_THAT(parse_room_table(page_with("| `ops` | `tessera/ops`", "| `base` | `tessera/ops`")).error(),
              HasSubstr("stands twice"));
  EXPECT_THAT(parse_room_table(page_with("`boost/json` | ops", "`boost/json` | oops")).error(), HasSubstr("no room"));
}

TEST(IncludesCanary, FindsEveryForbiddenInclude) {
  auto check = [](std::string path, std::string text) { return what(check_includes({path, text}, table())); };
  EXPECT_THAT(check("tessera/base/a.h", "#include \"tessera/ops/b.h\"\n"),
              HasSubstr("tessera/base/a.h:1: room 'base'"));
  EXPECT_THAT(check("tessera/base/a.h", "\n  # include <tessera/ops/b.h>\n"), HasSubstr(":2: room 'base' may not"));
  EXPECT_THAT(check("tessera/scheduler/a.cc", "#include \"tessera/ops/b.h\"\n"),
              HasSubstr("may not include room 'ops'"));
  EXPECT_THAT(check("tessera/ops/a.h", "#include \"tessera/nowhere/b.h\"\n"), HasSubstr("in no room"));
  EXPECT_THAT(check("tessera/attic/a.h", "\n"), HasSubstr("lies in no room"));
  EXPECT_THAT(check("tessera/base/a.cc", "#include <boost/json.hpp>\n"), HasSubstr("may not be included"));
  EXPECT_THAT(check("tessera/scheduler/a.cc", "#include <chrono>\n"), HasSubstr("never includes 'chrono'"));
  EXPECT_THAT(check("tessera/scheduler/a.cc", "#include \"tessera/base/clock.h\"\n"), HasSubstr("never includes"));
  EXPECT_THAT(check("tessera/ops/a.cc", "#include \"apps/tessera/main.h\"\n"), HasSubstr("may not include"));
  EXPECT_THAT(check("tessera/ops/a.cc", "#include \"tests/fake.h\"\n"), HasSubstr("only tests"));
}

TEST(IncludesCanary, AllowsTheRest) {
  const std::string own = "#include \"tessera/ops/b.h\"\n#include \"tessera/base/c.h\"\n#include <boost/json.hpp>\n";
  EXPECT_THAT(what(check_includes({"tessera/ops/a.cc", own}, table())), IsEmpty());
  const std::string test = "#include \"tessera/ops/b.h\"\n#include \"tests/fake.h\"\n#include <chrono>\n";
  EXPECT_THAT(what(check_includes({"tessera/scheduler/a_test.cc", test}, table())), IsEmpty());
  EXPECT_THAT(what(check_includes({"apps/tessera/main.cc", "#include \"tessera/ops/b.h\"\n"}, table())), IsEmpty());
}

TEST(RoomDeclarationCanary, ComparesWithTheTable) {
  auto check = [](std::string text) {
    return what(check_room_declaration({"tessera/scheduler/CMakeLists.txt", text}, table()));
  };
  EXPECT_THAT(check("tessera_room(scheduler ROOMS base\n  LIBRARIES x::y TEST_ROOMS ops)\n"), IsEmpty());
  EXPECT_THAT(check("tessera_room(scheduler ROOMS base ops TEST_ROOMS ops)\n"), HasSubstr("may include"));
  EXPECT_THAT(check("tessera_room(scheduler ROOMS base)\n"), HasSubstr("TEST_ROOMS differs"));
  EXPECT_THAT(check("tessera_room(planner ROOMS base TEST_ROOMS ops)\n"), HasSubstr("expected 'scheduler'"));
  EXPECT_THAT(check("add_library(scheduler)\n"), HasSubstr("does not call"));
}

TEST(SizeCanary, CountsLines) {
  auto lines = [](int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += "x\n";
    return text;
  };
  EXPECT_THAT(check_size({"tessera/ops/a.cc", lines(501)}), SizeIs(1));
  EXPECT_THAT(check_size({"tessera/ops/a.cc", lines(500)}), IsEmpty());
  EXPECT_THAT(check_size({"tessera/ops/a.cu", lines(801)}), SizeIs(1));
  EXPECT_THAT(check_size({"tessera/ops/a.cu", lines(800)}), IsEmpty());
  EXPECT_THAT(check_size({"tools/a.py", lines(501)}), SizeIs(1));
}

TEST(UnfinishedCanary, FindsMarksAndSwitchedOffCode) {
  auto check = [](std::string text) { return what(check_unfinished({"tests/a_test.cc", text})); };
  // Written in two parts so that this file is clean.
  EXPECT_THAT(check(std::string("int x;  // TO") + "DO: more\n"), HasSubstr("a_test.cc:1: unfinished"));
  EXPECT_THAT(check(std::string("// FIX") + "ME\n"), HasSubstr("unfinished"));
  EXPECT_THAT(check(std::string("TEST(A, DIS") + "ABLED_B) {}\n"), HasSubstr("switched off"));
  EXPECT_THAT(check(std::string("#if") + " 0\n"), HasSubstr("switched off"));
  EXPECT_THAT(check(std::string("if") + " (false) run();\n"), HasSubstr("switched off"));
  EXPECT_THAT(check(std::string("GTEST_") + "SKIP();\n"), HasSubstr("only for hardware"));
  EXPECT_THAT(check(std::string("GTEST_") + "SKIP() << \"no AVX-512\";\n"), IsEmpty());
  EXPECT_THAT(check(std::string("GTEST_") + "SKIP() << \"no user namespaces\";\n"), IsEmpty());
  EXPECT_THAT(check("// The mode XXXL of a shirt; a photo to dote on.\n"), IsEmpty());
}

TEST(HeaderCanary, WantsPurposeAndGuard) {
  EXPECT_THAT(check_header({"tessera/ops/a.h", "// Says what.\n#pragma once\nint x;\n"}), IsEmpty());
  EXPECT_THAT(what(check_header({"tessera/ops/a.h", "#include <x>\n#pragma once\n"})),
              HasSubstr("open with a comment"));
  EXPECT_THAT(what(check_header({"tessera/ops/a.h", "// Says what.\nint x;\n"})), HasSubstr("no #pragma once"));
}

TEST(MachineWordsCanary, FindsPathsAndRegistries) {
  for (const std::string& word : {std::string("/wo") + "rk/x", std::string("/ho") + "me/x", std::string("/tm") + "p/x",
                                  std::string("https://pypi.") + "org/simple"}) {
    EXPECT_THAT(check_machine_words({"README.md", "See " + word + "\n"}), SizeIs(1)) << word;
  }
  EXPECT_THAT(check_machine_words({"README.md", "See build/cpu/bin and http://127.0.0.1:30000\n"}), IsEmpty());
}

TEST(BannedConstructsCanary, FindsEach) {
  auto check = [](std::string path, std::string text) { return check_banned_constructs({path, text}); };
  EXPECT_THAT(check("tessera/ops/a.cc", "auto p = std::getenv(\"X\");\n"), SizeIs(1));
  EXPECT_THAT(check("tests/a_test.cc", "auto p = std::getenv(\"X\");\n"), IsEmpty());
  EXPECT_THAT(check("tessera/ops/CMakeLists.txt", "add_compile_options(-ffast-math)\n"), SizeIs(1));
  EXPECT_THAT(check("tessera/models/a.cc", "#ifdef X\n#endif\n"), SizeIs(1));
  EXPECT_THAT(check("tessera/ops/a.cc", "#ifdef X\n#endif\n"), IsEmpty());
}

TEST(PageProofCanary, FindsWhoeverProvesPagesWithoutACheck) {
  auto check = [](std::string path, std::string text) { return check_page_proof({path, text}); };
  const std::string derived = "class Lax final\n    : public kv_cache::Verifier {\n};\n";
  EXPECT_THAT(what(check("tests/serving/a_test.cc", derived)), HasSubstr("derives from Verifier"));
  EXPECT_THAT(check("tessera/engine/a.h", "struct Lax : Verifier {};\n"), SizeIs(1));
  EXPECT_THAT(check("tests/a_test.cc", "struct Outer::Lax : public kv_cache::Verifier {};\n"), SizeIs(1));
  EXPECT_THAT(check("apps/tessera_bench/a.h", derived), IsEmpty());
  EXPECT_THAT(what(check("tests/a_test.cc", "using Base = kv_cache::Verifier;\n")), HasSubstr("another name"));
  EXPECT_THAT(check("tests/a_test.cc", "typedef kv_cache::Verifier Base;\n"), SizeIs(1));
  EXPECT_THAT(check("tests/a_test.cc", "using kv_cache::Verifier;\n"), IsEmpty());
  EXPECT_THAT(check("tests/a_test.cc", "class OfTheVerifier { Verifier* verifier; };\n"), IsEmpty());
  EXPECT_THAT(check("tessera/ops/a.h", "class A {\n  friend class kv_cache::Verifier;\n};\n"), IsEmpty());
  EXPECT_THAT(check("apps/tessera/serve.cc", "parts.make_verifier = f;\n"), SizeIs(1));
  for (const std::string made : {"f(ops::VerifiedPages(a, b, 1, 1));", "ops::VerifiedPages p{a, b, 1, 1};",
                                 "ops::WritableSlots slots(a, 1);", "return WritableSlots{a, 1};"}) {
    EXPECT_THAT(check("apps/tessera_bench/a.cc", made + "\n"), SizeIs(1)) << made;
    EXPECT_THAT(check("tessera/kv_cache/verifier.cc", made + "\n"), IsEmpty()) << made;
  }
  EXPECT_THAT(check("tessera/models/a.h", "void f(ops::VerifiedPages pages, int n);\n"), IsEmpty());
}

TEST(FaultSeamsCanary, FindsProductsThatInjectFaults) {
  const std::string derived = "class Quiet final : public engine::StepObserver {};\n";
  EXPECT_THAT(what(check_fault_seams({"apps/tessera/serve.cc", derived})), HasSubstr("only tests may"));
  EXPECT_THAT(check_fault_seams({"tessera/engine/engine_loop.cc", derived}), SizeIs(1));
  EXPECT_THAT(check_fault_seams({"tessera/engine/step_observer.h", derived}), IsEmpty());
  EXPECT_THAT(check_fault_seams({"tests/corruption/injector.h", derived}), IsEmpty());
  EXPECT_THAT(check_fault_seams({"tessera/kv_cache/page_sweep.cc", "pool.allocations_until_failure_ = 3;\n"}),
              SizeIs(1));
}

TEST(FileNameCanary, WantsNamesThatSaySomething) {
  EXPECT_THAT(check_file_name({"tessera/ops/string_utils.cc", ""}), SizeIs(1));
  EXPECT_THAT(check_file_name({"tessera/ops/PagePool.h", ""}), SizeIs(1));
  EXPECT_THAT(check_file_name({"tessera/ops/page-pool.h", ""}), SizeIs(1));
  EXPECT_THAT(check_file_name({"tessera/ops/page_pool.h", ""}), IsEmpty());
  EXPECT_THAT(check_file_name({"tessera/ops/page_pool-inl.h", ""}), IsEmpty());
}

TEST(RegisteredCanary, FindsWhatIsCompiledIntoNothing) {
  const std::string commands = "[{\"command\": \"c++\", \"file\": \"/src/tests/known_test.cc\"}]";
  const SourceFile cmake{"tests/fuzz/CMakeLists.txt", "tessera_fuzz(a SOURCES known_fuzz.cc)\n"};
  auto check = [&](std::string path) { return what(check_registered({cmake, {path, ""}}, "/src", commands)); };
  EXPECT_THAT(check("tests/known_test.cc"), IsEmpty());
  EXPECT_THAT(check("tests/forgotten_test.cc"), HasSubstr("compiled into nothing"));
  EXPECT_THAT(check("tests/fuzz/known_fuzz.cc"), IsEmpty());
  EXPECT_THAT(check("tests/fuzz/forgotten_fuzz.cc"), HasSubstr("does not name"));
  EXPECT_THAT(check("tests/other/known_fuzz.cc"), HasSubstr("does not name"));
  // The CUDA backend, as built with and without a CUDA compiler.
  EXPECT_THAT(check("tessera/backends/cuda/forgotten.cc"), HasSubstr("compiled into nothing"));
  EXPECT_THAT(check("tessera/backends/cuda/absent/cuda_absent.cc"), IsEmpty());
  EXPECT_THAT(check("tests/conformance/cuda_forgotten_test.cc"), HasSubstr("compiled into nothing"));
  const std::string without = "[{\"file\": \"/src/tessera/backends/cuda/absent/cuda_absent.cc\"}]";
  auto check_without = [&](std::string path) { return what(check_registered({{path, ""}}, "/src", without)); };
  EXPECT_THAT(check_without("tessera/backends/cuda/cuda_layers.cc"), IsEmpty());
  EXPECT_THAT(check_without("tests/conformance/cuda_test.cc"), IsEmpty());
  EXPECT_THAT(check_without("tessera/backends/cuda/absent/forgotten.cc"), HasSubstr("compiled into nothing"));
}

// What a project that consists of one file with this text and of `others` lacks.
std::string missing(std::string text, std::vector<SourceFile> others = {}, std::string path = "tessera/ops/a.cc") {
  others.push_back({path, text});
  return what(check_standard_includes(others));
}

TEST(StandardIncludesCanary, FindsWhatIsUsedWithoutItsHeader) {
  const std::string use = "int a = std::max(b, c);\n";
  EXPECT_EQ(missing("\n" + use + use), "tessera/ops/a.cc:2: uses std::max without <algorithm>\n");
  EXPECT_THAT(missing("#include <algorithm>\n" + use), IsEmpty());
  EXPECT_THAT(missing("  # include <algorithm>  // Why.\n" + use), IsEmpty());
  EXPECT_THAT(missing("#include <vector>\n" + use), HasSubstr(":2: uses std::max"));
  EXPECT_THAT(missing("std::ranges::sort(a);\n"), HasSubstr("std::sort without <algorithm>"));
  EXPECT_THAT(missing("std::vector<std::string> a;\n"), AllOf(HasSubstr("<vector>"), HasSubstr("<string>")));
  // Not names of the list, or not the standard library's.
  EXPECT_THAT(missing("std::maximum(a); my_std::max(a); max(a); std::numbers::e;\n"), IsEmpty());
}

TEST(StandardIncludesCanary, LooksOnlyAtCppOfTheProject) {
  for (const std::string path : {"tessera/ops/a.h", "apps/a.cc", "tests/a_test.cc", "bench/a.cc"}) {
    EXPECT_THAT(missing("std::max(a, b);\n", {}, path), HasSubstr("<algorithm>")) << path;
  }
  for (const std::string path : {"tessera/ops/a.cu", "docs/a.md", "tools/a.cc"}) {
    EXPECT_THAT(missing("std::max(a, b);\n", {}, path), IsEmpty()) << path;
  }
}

TEST(StandardIncludesCanary, TakesHeadersOfTheProjectThatAreIncluded) {
  const std::string use = "#include \"tessera/base/b.h\"\nint a = std::max(b, c);\n";
  const SourceFile with{"tessera/base/b.h", "#include <algorithm>\n"};
  const SourceFile without{"tessera/base/b.h", "#include <vector>\n"};
  EXPECT_THAT(missing(use, {with}), IsEmpty());
  EXPECT_THAT(missing(use, {without}), HasSubstr("a.cc:2: uses std::max"));
  EXPECT_THAT(missing("int a = std::max(b, c);\n", {with}), HasSubstr("uses std::max")) << "it is not included";
  // Over two steps, the second of which names a file beside its own.
  const SourceFile step{"tessera/base/b.h", "#include \"c.h\"\n"};
  EXPECT_THAT(missing(use, {step, {"tessera/base/c.h", "#include <algorithm>\n"}}), IsEmpty());
  EXPECT_THAT(missing(use, {step, {"tessera/base/c.h", "\n"}}), HasSubstr("uses std::max"));
  EXPECT_THAT(missing(use, {step, {"tessera/ops/c.h", "#include <algorithm>\n"}}), HasSubstr("uses std::max"));
}

TEST(StandardIncludesCanary, FollowsHeadersThatIncludeEachOther) {
  const SourceFile b{"tessera/base/b.h", "#include \"tessera/base/c.h\"\nstd::vector<int> b();\n"};
  const std::string back = "#include \"tessera/base/b.h\"\n";
  const std::string own = "#include \"tessera/ops/a.cc\"\n";
  EXPECT_THAT(missing(own + back, {b, {"tessera/base/c.h", back + "#include <vector>\n"}}), IsEmpty());
  EXPECT_EQ(missing(own + back, {b, {"tessera/base/c.h", back}}),
            "tessera/base/b.h:2: uses std::vector without <vector>\n");
}

TEST(StandardIncludesCanary, ReadsCodeOnly) {
  const std::string found = "uses std::max without";
  for (const std::string blank :
       {"// std::max", "int a;  /* std::max\n std::max */", "f(\"std::max\");", "f(\"\\\"std::max\");",
        "f(R\"(\" std::max)\");", "f(R\"css(\n)\" std::max)css\");", "f('\"', \"std::max\", '\"');",
        "f('\\'', \"std::max\");", "f(1'000, \"std::max\");", "f(\"// \", \"std::max\");"}) {
    EXPECT_THAT(missing(blank + "\n"), IsEmpty()) << blank;
    // None hides the code behind it, nor an #include.
    EXPECT_THAT(missing(blank + "\nstd::max(a, b);\n"), HasSubstr(found)) << blank;
    EXPECT_THAT(missing(blank + "\n#include <algorithm>\nstd::max(a, b);\n"), IsEmpty()) << blank;
  }
  for (const std::string code :
       {"f(\"//\", std::max(a, b));", "f(\"DIR\", std::max(a, b), \")\");", "f('\"', std::max(a, b), '\"');",
        "f(1'000, std::max(a, b), 2'000);", "f(R\"(\\)\", std::max(a, b));", "f(/* a */ std::max(a, b));"}) {
    EXPECT_THAT(missing(code + "\n"), HasSubstr(found)) << code;
  }
  for (const std::string blank : {"// #include <algorithm>", "/*\n#include <algorithm>\n*/",
                                  "f(R\"(\n#include <algorithm>\n)\");", "f(\"#include <algorithm>\");"}) {
    EXPECT_THAT(missing(blank + "\nstd::max(a, b);\n"), HasSubstr(found)) << blank;
  }
}

TEST(StandardIncludesCanary, TakesAnyHeaderThatDeclaresTheName) {
  for (const std::string header : {"utility", "algorithm"}) {
    EXPECT_THAT(missing("#include <" + header + ">\nf(std::move(a));\n"), IsEmpty()) << header;
  }
  EXPECT_THAT(missing("#include <vector>\nf(std::move(a));\n"), HasSubstr("std::move without <utility>"));
  EXPECT_THAT(missing("#include <cstdio>\nstd::remove(path);\n"), IsEmpty());
  EXPECT_THAT(missing("#include <cstdio>\nstd::remove_if(a, f);\n"), HasSubstr("<algorithm>"));
}

}  // namespace
}  // namespace tessera::style
