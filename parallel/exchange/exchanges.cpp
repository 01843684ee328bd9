// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/exchange/gradient_exchange.hpp"

namespace mylos {

extern const ExchangeKind ddp_exchange, zero1_exchange, zero2_exchange, zero3_exchange;

std::span<const ExchangeKind* const> exchanges() {
  static constexpr const ExchangeKind* all[] = {&ddp_exchange, &zero1_exchange, &zero2_exchange,
                                                &zero3_exchange};
  return all;
}

std::vector<UnitPart> whole_units(const ParameterTable& table) {
  std::vector<UnitPart> parts;
  for (int unit = 0; unit < table.num_units(); ++unit) parts.push_back({unit, 0, table.unit(unit).size});
  return parts;
}

std::vector<UnitPart> share_of(const std::vector<UnitPart>& parts, int ranks, int rank) {
  std::vector<UnitPart> own;
  for (const UnitPart& part : parts) {
    const auto cut = [&](int place) { return (part.count * place + ranks - 1) / ranks; };
    if (cut(rank) < cut(rank + 1))
      own.push_back({part.unit, part.begin + cut(rank), cut(rank + 1) - cut(rank)});
  }
  return own;
}

std::vector<GradientRange> completions_of(const UnitEvents& events) {
  std::vector<GradientRange> completions;
  for (const UnitEvent& event : events[static_cast<std::size_t>(UnitSequence::step)].events) {
    const auto* completion = std::get_if<GradientCompletion>(&event);
    if (completion != nullptr && completion->is_last) completions.push_back(completion->range);
  }
  return completions;
}

}  // namespace mylos
