# SPDX-License-Identifier: BSD-3-Clause
# Kokkos Kernels for a Spack whose own package has no version 5, as packages/kokkos/package.py for Kokkos.
from spack.package import *

try:  # Spack 1.0 and newer
    from spack_repo.builtin.packages.kokkos_kernels.package import KokkosKernels as BuiltinKokkosKernels
except ImportError:
    from spack.pkg.builtin.kokkos_kernels import KokkosKernels as BuiltinKokkosKernels


class KokkosKernels(BuiltinKokkosKernels):
    __doc__ = BuiltinKokkosKernels.__doc__

    # Version and sum are those of cmake/sources.txt.
    if Version("5.0.2") not in BuiltinKokkosKernels.versions:
        version(
            "5.0.2",
            sha256="7c7af2c3659ecc620cc7b7016876330d9f288e8c6fd7b70b70907687df823b43",
            url="https://github.com/kokkos/kokkos-kernels/releases/download/5.0.2/kokkos-kernels-5.0.2.tar.gz",
        )
        depends_on("kokkos@5.0.2", when="@5.0.2")
