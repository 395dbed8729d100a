"""Spack's recipe for Tessera: builds the checkout that holds this file, against Spack's or the site's own libraries."""
from pathlib import Path

from spack_repo.builtin.build_systems.cmake import CMakePackage
from spack_repo.builtin.build_systems.cuda import CudaPackage
from spack_repo.builtin.build_systems.rocm import ROCmPackage

from spack.package import *

CHECKOUT = next((folder for folder in Path(__file__).resolve().parents if (folder / "CMakePresets.json").exists()), Path("/"))


class Tessera(CMakePackage, CudaPackage, ROCmPackage):
    """Trains transformer language models as an HPC application: Kokkos kernels, MPI ranks, HDF5 out."""

    git = CHECKOUT.as_uri()

    license("Apache-2.0")

    version("main", branch="main")

    variant("openmp", default=False, description="Threads within a rank")
    variant("lab", default=True, description="Benchmarks and experiments")
    variant("plots", default=True, description="Python for plots, reports and the comparison of the smoke test")

    conflicts("+cuda", when="+rocm", msg="one kind of GPU at a time")
    # Kokkos takes one architecture; Hopper's instructions and Ampere's are what the kernels know.
    requires("cuda_arch=80", "cuda_arch=90", policy="one_of", when="+cuda")
    requires("amdgpu_target=gfx90a", when="+rocm", msg="only gfx90a has been compiled")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.22:", type="build")
    generator("ninja")

    depends_on("mpi")
    depends_on("hdf5@1.10.8: ~mpi +hl")
    depends_on("tomlplusplus@3.1:")
    depends_on("cli11@2.1:")
    depends_on("fmt@9:")
    depends_on("xxhash")
    depends_on("nccl", when="+cuda")

    # Ranks are one thread each: a BLAS with threads of its own would compete with them and round differently.
    depends_on("openblas threads=none", when="~openmp")
    depends_on("openblas threads=pthreads", when="+openmp")

    depends_on("kokkos@4.6: +serial")
    depends_on("kokkos-kernels@4.6: +serial +blas")
    depends_on("kokkos+openmp", when="+openmp")
    depends_on("kokkos-kernels+openmp", when="+openmp")
    with when("+cuda"):
        depends_on("cuda@12.2:")
        depends_on("kokkos@5.0.2: +wrapper")
        depends_on("kokkos-kernels@5.0.2: +cublas")
        for architecture in ("80", "90"):
            depends_on(f"kokkos+cuda cuda_arch={architecture}", when=f"cuda_arch={architecture}")
            depends_on(f"kokkos-kernels+cuda cuda_arch={architecture}", when=f"cuda_arch={architecture}")
    depends_on("kokkos+rocm amdgpu_target=gfx90a", when="+rocm")

    with when("+plots"):
        depends_on("python@3.11:", type="run")
        for module in ("py-h5py", "py-numpy", "py-matplotlib"):
            depends_on(module, type="run")

    def cmake_args(self):
        spec = self.spec
        arguments = [
            self.define("TESSERA_ENABLE_TESTS", False),  # the suite is for checkouts; test_smoke is for sites
            self.define("TESSERA_FETCH_KOKKOS", False),
            self.define("TESSERA_MARCH", ""),  # Spack's compiler wrapper names the processor
            self.define_from_variant("TESSERA_ENABLE_LAB", "lab"),
            self.define_from_variant("Kokkos_ENABLE_OPENMP", "openmp"),
            self.define_from_variant("Kokkos_ENABLE_CUDA", "cuda"),
            self.define_from_variant("Kokkos_ENABLE_HIP", "rocm"),
        ]
        if spec.satisfies("+cuda"):
            architecture = spec.variants["cuda_arch"].value[0]
            arguments += [
                self.define("TESSERA_CUDA_ARCH", "90a" if architecture == "90" else architecture),
                self.define("NCCL_ROOT", spec["nccl"].prefix),
            ]
        if spec.satisfies("+rocm"):
            arguments.append(self.define("CMAKE_CXX_COMPILER", f"{spec['llvm-amdgpu'].prefix}/bin/amdclang++"))
        return arguments

    def test_smoke(self):
        """A minute's checks of what is installed."""
        which(f"{self.prefix}/share/tessera/scripts/smoke")()
