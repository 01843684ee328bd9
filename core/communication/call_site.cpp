// SPDX-License-Identifier: BSD-3-Clause
#include "core/communication/call_site.hpp"

namespace mylos {

namespace {

thread_local const CallSite* current = nullptr;

}  // namespace

const CallSite* current_call_site() {
  return current;
}

CallSiteScope::CallSiteScope(const CallSite& site) {
  current = &site;
}

CallSiteScope::~CallSiteScope() {
  current = nullptr;
}

}  // namespace mylos
