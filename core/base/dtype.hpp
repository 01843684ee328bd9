// SPDX-License-Identifier: BSD-3-Clause
// Element types. bf16 and fp16 are storage formats: kernels accumulate in fp32.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include "core/base/error.hpp"

#if defined(__CUDACC__)
#define MYLOS_HOST_DEVICE __host__ __device__
#else
#define MYLOS_HOST_DEVICE
#endif

namespace mylos {

enum class DType : std::uint8_t { fp32, bf16, fp16, int32, int64, uint8 };

inline constexpr std::size_t num_dtypes = 6;

constexpr std::size_t size_of(DType type) {
  constexpr std::array<std::size_t, num_dtypes> sizes = {4, 2, 2, 4, 8, 1};
  return sizes[static_cast<std::size_t>(type)];
}

constexpr std::string_view name_of(DType type) {
  constexpr std::array<std::string_view, num_dtypes> names = {"fp32",  "bf16",  "fp16",
                                                              "int32", "int64", "uint8"};
  return names[static_cast<std::size_t>(type)];
}

/// Brain floating point: the upper half of an fp32, rounded to nearest, ties to even.
struct bf16 {
  std::uint16_t bits = 0;

  bf16() = default;
  MYLOS_HOST_DEVICE explicit bf16(float value) {
#if defined(__CUDA_ARCH__)
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    std::uint32_t u = std::bit_cast<std::uint32_t>(value);
    const bool is_nan = (u & 0x7fffffffU) > 0x7f800000U;
    const std::uint32_t rounded = u + 0x7fffU + ((u >> 16U) & 1U);
    u = is_nan ? (u | 0x00400000U) : rounded;
    bits = static_cast<std::uint16_t>(u >> 16U);
#endif
  }
  MYLOS_HOST_DEVICE explicit operator float() const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16U);
  }
};
static_assert(sizeof(bf16) == 2);

/// IEEE 754 binary16: 5 exponent bits, 10 mantissa bits. The conversions are branch-free, so that compilers
/// vectorise them. Conversion from float rounds to nearest, ties to even; magnitudes of 65520 and above
/// become infinite.
struct fp16 {
  std::uint16_t bits = 0;

  fp16() = default;
  MYLOS_HOST_DEVICE explicit fp16(float value) {
#if defined(__CUDA_ARCH__)
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
#else
    const std::uint32_t u = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t magnitude = u & 0x7fffffffU;
    const std::uint32_t normal = (magnitude - 0x38000000U + 0x0fffU + ((magnitude >> 13U) & 1U)) >> 13U;
    // The unit in the last place of 0.5F and of binary16's subnormals is 2^-24, so the addition rounds.
    const std::uint32_t subnormal =
        std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5F) - 0x3f000000U;
    const std::uint32_t quiet_nan = 0x7e00U | ((magnitude >> 13U) & 0x03ffU);
    const auto mask_of = [](bool condition) { return 0U - static_cast<std::uint32_t>(condition); };
    const std::uint32_t is_subnormal = mask_of(magnitude < 0x38800000U);
    const std::uint32_t is_finite = mask_of(magnitude < 0x47800000U);
    const std::uint32_t is_nan = mask_of(magnitude > 0x7f800000U);
    const std::uint32_t half = (subnormal & is_subnormal) | (normal & is_finite & ~is_subnormal) |
                               (0x7c00U & ~is_finite) | (quiet_nan & is_nan);
    bits = static_cast<std::uint16_t>(half | ((u >> 16U) & 0x8000U));
#endif
  }
  MYLOS_HOST_DEVICE explicit operator float() const {
#if defined(__CUDA_ARCH__)
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
#else
    // The multiplication adjusts the exponent's bias and makes subnormal numbers normal.
    const float finite = std::bit_cast<float>((bits & 0x7fffU) << 13U) * 0x1.0p112F;
    const std::uint32_t not_finite = (bits & 0x7c00U) == 0x7c00U ? 0x7f800000U : 0U;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(finite) | not_finite |
                                ((bits & 0x8000U) << 16U));
#endif
  }
};
static_assert(sizeof(fp16) == 2);

/// Returns the DType of a C++ element type.
template <class T>
constexpr DType dtype_of() {
  using Element = std::variant<float, bf16, fp16, std::int32_t, std::int64_t, std::uint8_t>;  // as in DType
  return static_cast<DType>(Element(std::in_place_type<T>).index());
}
static_assert(dtype_of<float>() == DType::fp32 && dtype_of<bf16>() == DType::bf16 &&
              dtype_of<fp16>() == DType::fp16 && dtype_of<std::int32_t>() == DType::int32 &&
              dtype_of<std::int64_t>() == DType::int64 && dtype_of<std::uint8_t>() == DType::uint8);

/// Calls `function(T{})`, where T is the storage type of a floating-point `type`. Throws ExitCode::internal
/// for other types.
decltype(auto) dispatch_float(DType type, auto&& function) {
  switch (type) {
    case DType::fp32:
      return function(float{});
    case DType::bf16:
      return function(bf16{});
    case DType::fp16:
      return function(fp16{});
    default:
      fail(ExitCode::internal, "no kernel for element type {}", name_of(type));
  }
}

/// Calls `function(G{})`, where G is the type of the gradients of weights of type T: fp32 or T. Throws
/// ExitCode::internal for other types.
template <class T, class Function>
decltype(auto) dispatch_gradient(DType type, Function&& function) {
  if (type == DType::fp32) return function(float{});
  if (type != dtype_of<T>()) {
    fail(ExitCode::internal, "no kernel for gradients of {} weights in {}", name_of(dtype_of<T>()),
         name_of(type));
  }
  return function(T{});
}

}  // namespace mylos
