// SPDX-License-Identifier: BSD-3-Clause
// gather_over: gathers up to 255 bytes of text of every rank through a communicator, for a FlightRecorder.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "core/communication/communicator.hpp"

namespace mylos::test {

inline auto gather_over(Communicator& world) {
  return [&world](const std::string& text) {
    using Card = std::array<char, 256>;
    Card own{};
    std::copy_n(text.begin(), std::min(text.size(), own.size() - 1), own.begin());
    std::vector<Card> all(static_cast<std::size_t>(world.size()));
    constexpr auto width = static_cast<std::int64_t>(sizeof(Card));
    world
        .all_gather(TensorRef(own.data(), DType::uint8, {width}),
                    TensorRef(all.data(), DType::uint8, {width * world.size()}))
        .host_wait();
    std::vector<std::string> texts;
    for (const Card& card : all) texts.emplace_back(card.data());
    return texts;
  };
}

}  // namespace mylos::test
