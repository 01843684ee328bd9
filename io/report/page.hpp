// SPDX-License-Identifier: BSD-3-Clause
// The style sheet and the script of the report: the files in page/, which CMake makes a source of.
#pragma once

#include <string_view>

namespace mylos::html {

extern const std::string_view report_style;
extern const std::string_view report_script;

}  // namespace mylos::html
