// SPDX-License-Identifier: BSD-3-Clause
// A line on a terminal is redrawn and never wraps; the time that is left.
#include "app/train/progress_line.hpp"

#include <cstdlib>

#include <gtest/gtest.h>

#include "core/base/clock.hpp"

namespace mylos {
namespace {

TEST(ProgressLine, IsCutToTheColumnsAndRemoved) {
  char* drawn = nullptr;
  std::size_t size = 0;
  std::FILE* stream = ::open_memstream(&drawn, &size);  // no terminal: $COLUMNS counts
  ASSERT_NE(stream, nullptr);
  ::setenv("COLUMNS", "5", 1);
  ProgressLine line(stream);
  EXPECT_FALSE(line.is_on_terminal());
  line.clear();  // nothing is drawn
  line.draw("abcdef");
  line.clear();
  line.draw("gh");
  line.keep();
  line.clear();
  ::unsetenv("COLUMNS");
  std::fclose(stream);
  EXPECT_STREQ(drawn, "\r\033[Kabcd\r\033[K\r\033[Kgh\n");
  std::free(drawn);
}

TEST(ProgressLine, TheRestGoesAsWhatIsDone) {
  EXPECT_EQ(eta_text(10.0, 1.0, 12.3), "ETA 2:03");
  EXPECT_EQ(eta_text(3723.9, 5.0, 5.0), "ETA 1:02:03");
  EXPECT_EQ(eta_text(10.0, 0.0, 5.0), "ETA -:--");
  EXPECT_EQ(eta_text(10.0, 6.0, -1.0), "ETA 0:00");  // a text that grew while it was read
}

TEST(ClockText, HasWholeSeconds) {
  EXPECT_EQ(clock_text(0.0), "0:00");
  EXPECT_EQ(clock_text(59.99), "0:59");
  EXPECT_EQ(clock_text(3600.0), "1:00:00");
  EXPECT_EQ(clock_text(100000.0), "27:46:40");
  EXPECT_EQ(clock_text(-1.0), "0:00");
}

}  // namespace
}  // namespace mylos
