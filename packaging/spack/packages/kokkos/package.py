# SPDX-License-Identifier: BSD-3-Clause
# Kokkos for a Spack whose own package has no version 5, as that of Spack 0.22, which ends at 4.3. Its recipe builds
# version 5 too. In a newer Spack this class adds nothing.
from spack.package import *

try:  # Spack 1.0 and newer
    from spack_repo.builtin.packages.kokkos.package import Kokkos as BuiltinKokkos
except ImportError:
    from spack.pkg.builtin.kokkos import Kokkos as BuiltinKokkos


class Kokkos(BuiltinKokkos):
    __doc__ = BuiltinKokkos.__doc__

    # Version and sum are those of cmake/sources.txt.
    if Version("5.0.2") not in BuiltinKokkos.versions:
        version(
            "5.0.2",
            sha256="188817bb452ca805ee8701f1c5adbbb4fb83dc8d1c50624566a18a719ba0fa5e",
            url="https://github.com/kokkos/kokkos/releases/download/5.0.2/kokkos-5.0.2.tar.gz",
        )
        conflicts("cxxstd=17", when="@5:")
        # Version 5 has no choice here, and accepts only these values.
        conflicts("~debug_dualview_modify_check", when="@5:")
        conflicts("~cuda_lambda", when="@5: +cuda")
        conflicts("+cuda_ldg_intrinsic", when="@5: +cuda")
        depends_on("cmake@3.22:", type="build", when="@5:")
        depends_on("cuda@12.2:", when="@5: +cuda")
        depends_on("kokkos-nvcc-wrapper@5.0.2", when="@5.0.2 +wrapper")
