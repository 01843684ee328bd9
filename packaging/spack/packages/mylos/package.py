# SPDX-License-Identifier: BSD-3-Clause
# mylos as a Spack package. It has no archive: it is built from a checkout, in whose root these commands work.
#
#   spack repo add packaging/spack
#   spack dev-build mylos@main                          # for the CPU
#   spack dev-build mylos@main +cuda cuda_arch=90       # for a GPU; 80 for an A100
#
# tests/structure/spack_test.sh builds it with the packages of Debian.
from spack.package import *

try:  # Spack 1.0 and newer
    from spack_repo.builtin.build_systems.cmake import CMakePackage, generator

    compilers_are_dependencies = True
except ImportError:
    compilers_are_dependencies = False


class Mylos(CMakePackage):
    """mylos trains GPT-2 from an input deck, with MPI and Kokkos: the same executable on a laptop and under Slurm."""

    license("BSD-3-Clause")

    version("main")  # without a place to fetch it from

    variant("cuda", default=False, description="Compute on NVIDIA GPUs")
    variant(
        "cuda_arch",
        default="none",
        values=("none", "80", "90"),
        multi=False,
        sticky=True,
        when="+cuda",
        description="Compute capability: 80 for A100, 90 for H100 and H200",
    )
    variant("tests", default=False, description="Build the tests and benchmarks")
    # Spack's compiler wrappers pass the target's -march, which code of mylos gets if MYLOS_ARCH is empty. A later
    # -march=native has the last word, and is right only if this machine also runs what it builds.
    variant("native", default=False, description="Use all instructions of this machine, whatever the target is")
    variant("onednn", default=True, when="~cuda", description="Matrix products by oneDNN on the CPU")
    variant("kokkos_kernels", default=False, when="~cuda", description="Matrix products by Kokkos Kernels on the CPU")

    conflicts("cuda_arch=none", when="+cuda", msg="mylos +cuda needs cuda_arch=80 or cuda_arch=90")
    conflicts("%gcc@:11", msg="mylos is C++20: it needs GCC 12 or Clang 16")
    conflicts("%clang@:15", msg="mylos is C++20: it needs GCC 12 or Clang 16")

    generator("ninja")
    if compilers_are_dependencies:
        depends_on("c", type="build")  # for finding MPI and HDF5
        depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("pkgconfig", type="build")

    # Plugins need one shared Kokkos, without relocatable device code.
    depends_on("kokkos@5.0: +shared +openmp +serial cxxstd=20")
    depends_on("kokkos ~cuda", when="~cuda")
    depends_on("mpi")
    # Not 1.12.0. A parallel HDF5 crashes in MPI_Finalize if a file could not be written.
    depends_on("hdf5@1.10.7:1.11,1.12.1: ~mpi")
    depends_on("boost@1.74: +program_options")
    depends_on("fmt@9:")
    depends_on("hwloc@2:")
    depends_on("nlohmann-json@3.11:")
    depends_on("xxhash@0.8:")

    # compute_onednn sets the number of threads of OpenMP. Newer versions have not been tried.
    depends_on("onednn@2.6:3.7 cpu_runtime=omp", when="+onednn")
    depends_on("kokkos-kernels@5.0: +shared", when="+kokkos_kernels")

    with when("+cuda"):
        depends_on("cuda@12.2:")
        depends_on("kokkos +cuda +wrapper +cuda_constexpr ~cuda_relocatable_device_code")
        for capability in ("80", "90"):
            depends_on(f"kokkos cuda_arch={capability}", when=f"cuda_arch={capability}")
            depends_on(f"nccl cuda_arch={capability}", when=f"cuda_arch={capability}")
        # Used together with its C++ frontend, which `scripts/setup --cuda=90` puts into the checkout.
        depends_on("cudnn")

    with when("+tests"):
        depends_on("googletest@1.12: +gmock")
        depends_on("benchmark@1.7:")
        depends_on("python@3.9:", type="build")

    def cmake_args(self):
        spec = self.spec
        args = [
            self.define_from_variant("MYLOS_TESTS", "tests"),
            self.define("MYLOS_ARCH", "native" if spec.satisfies("+native") else ""),
            # Each of these may be installed twice, and CMake would prefer the system's.
            self.define("HDF5_ROOT", spec["hdf5"].prefix),
            self.define("Kokkos_ROOT", spec["kokkos"].prefix),
            self.define("MPI_C_COMPILER", spec["mpi"].mpicc),
            self.define("MPI_CXX_COMPILER", spec["mpi"].mpicxx),
            self.define("CMAKE_DISABLE_FIND_PACKAGE_KokkosKernels", not spec.satisfies("+kokkos_kernels")),
        ]
        if spec.satisfies("+cuda"):
            args.append(self.define("MYLOS_CUDA_ARCH", spec.variants["cuda_arch"].value))
        else:
            args.append(self.define("CMAKE_UNITY_BUILD", True))
            if not spec.satisfies("+onednn"):
                args.append(self.define("DNNL_LIBRARY", False))
        return args

    @run_after("install")
    @on_package_attributes(run_tests=True)
    def check_installed(self):
        Executable(self.prefix.bin.mylos)("--version")
