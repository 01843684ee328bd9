// SPDX-License-Identifier: BSD-3-Clause
#include "parallel/exchange/exchange.hpp"

namespace mylos {

extern const ExchangeKind ddp_exchange, zero1_exchange, zero2_exchange, zero3_exchange;

std::span<const ExchangeKind* const> exchanges() {
  static constexpr const ExchangeKind* all[] = {&ddp_exchange, &zero1_exchange, &zero2_exchange,
                                                &zero3_exchange};
  return all;
}

}  // namespace mylos
