// SPDX-License-Identifier: BSD-3-Clause
// Kokkos' SIMD types for the instructions for which this file is compiled. By itself Kokkos takes those for
// which it was built, which may be more or fewer.
#pragma once

#include <Kokkos_Macros.hpp>

#if defined(__x86_64__) && !defined(KOKKOS_ENABLE_CUDA)
#undef KOKKOS_ARCH_AVX512XEON
#undef KOKKOS_ARCH_AVX2
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define KOKKOS_ARCH_AVX512XEON
#elif defined(__AVX2__)
#define KOKKOS_ARCH_AVX2
#endif
#endif

#include <Kokkos_SIMD.hpp>
