// SPDX-License-Identifier: BSD-3-Clause
// Included before everything else if kernels are built for AVX2 with a Kokkos that was built for AVX-512.
#pragma once

#include <Kokkos_Macros.hpp>

#undef KOKKOS_ARCH_AVX512XEON
#undef KOKKOS_ARCH_AVX2
#define KOKKOS_ARCH_AVX2
