// SPDX-License-Identifier: BSD-3-Clause
// Element types: storage only; kernels load, convert to float, compute and store.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/error.hpp"

#if defined(__CUDACC__)
#define MYLOS_HOST_DEVICE __host__ __device__
#else
#define MYLOS_HOST_DEVICE
#endif

namespace mylos {

enum class DType : std::uint8_t { fp32, bf16, fp16, int32, int64, uint8 };

constexpr std::size_t size_of(DType type) {
  switch (type) {
    case DType::fp32:
    case DType::int32:
      return 4;
    case DType::bf16:
    case DType::fp16:
      return 2;
    case DType::int64:
      return 8;
    case DType::uint8:
      return 1;
  }
  return 0;
}

constexpr std::string_view name_of(DType type) {
  switch (type) {
    case DType::fp32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::fp16:
      return "fp16";
    case DType::int32:
      return "int32";
    case DType::int64:
      return "int64";
    case DType::uint8:
      return "uint8";
  }
  return "unknown";
}

/// Brain floating point: the upper half of an fp32, rounded to nearest even.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  MYLOS_HOST_DEVICE explicit bf16(float value) {
    std::uint32_t u = std::bit_cast<std::uint32_t>(value);
    const bool is_nan = (u & 0x7fffffffU) > 0x7f800000U;
    const std::uint32_t rounded = u + 0x7fffU + ((u >> 16U) & 1U);
    u = is_nan ? (u | 0x00400000U) : rounded;
    bits = static_cast<std::uint16_t>(u >> 16U);
  }
  MYLOS_HOST_DEVICE explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
  }
};
static_assert(sizeof(bf16) == 2);

/// The DType of a C++ element type.
template <class T>
constexpr DType dtype_of();
template <>
constexpr DType dtype_of<float>() {
  return DType::fp32;
}
template <>
constexpr DType dtype_of<bf16>() {
  return DType::bf16;
}
template <>
constexpr DType dtype_of<std::int32_t>() {
  return DType::int32;
}
template <>
constexpr DType dtype_of<std::int64_t>() {
  return DType::int64;
}
template <>
constexpr DType dtype_of<std::uint8_t>() {
  return DType::uint8;
}

/// Calls `function(T{})` with the storage type of a floating-point `type`; other types are a defect.
template <class Function>
decltype(auto) dispatch_float(DType type, Function&& function) {
  switch (type) {
    case DType::fp32:
      return function(float{});
    case DType::bf16:
      return function(bf16{});
    default:
      fail(ExitCode::internal, "no kernel for element type {}", name_of(type));
  }
}

}  // namespace mylos
