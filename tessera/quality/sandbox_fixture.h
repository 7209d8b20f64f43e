// What tests in the sandbox have alike.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "tessera/quality/sandbox.h"

namespace tessera::quality {

class SandboxFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    base::Result<Sandbox> made = Sandbox::create();
    // The only thing that may be missing is the kernel's leave to make namespaces; any other wall must stand.
    if (!made.has_value() && made.error().message().find("making namespaces") != std::string::npos) {
      GTEST_SKIP() << "this kernel permits no user namespaces: " << made.error().message();
    }
    ASSERT_TRUE(made.has_value()) << made.error().message();
    sandbox_ = *made;
  }
  std::optional<Sandbox> sandbox_;
};

}  // namespace tessera::quality
