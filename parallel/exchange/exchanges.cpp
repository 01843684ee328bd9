// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/exchange/gradient_exchange.hpp"

namespace mylos {

extern const ExchangeKind ddp_exchange;

std::span<const ExchangeKind* const> exchanges() {
  static constexpr const ExchangeKind* all[] = {&ddp_exchange};
  return all;
}

}  // namespace mylos
