# SPDX-License-Identifier: BSD-3-Clause
# nvcc_wrapper for a Spack whose own package has no version 5, as packages/kokkos/package.py for Kokkos.
from spack.package import *

try:  # Spack 1.0 and newer
    from spack_repo.builtin.packages.kokkos_nvcc_wrapper.package import KokkosNvccWrapper as BuiltinKokkosNvccWrapper
except ImportError:
    from spack.pkg.builtin.kokkos_nvcc_wrapper import KokkosNvccWrapper as BuiltinKokkosNvccWrapper


class KokkosNvccWrapper(BuiltinKokkosNvccWrapper):
    __doc__ = BuiltinKokkosNvccWrapper.__doc__

    # Version and sum are those of cmake/sources.txt.
    if Version("5.0.2") not in BuiltinKokkosNvccWrapper.versions:
        version(
            "5.0.2",
            sha256="188817bb452ca805ee8701f1c5adbbb4fb83dc8d1c50624566a18a719ba0fa5e",
            url="https://github.com/kokkos/kokkos/releases/download/5.0.2/kokkos-5.0.2.tar.gz",
        )
