#!/usr/bin/env python3
"""Spack's recipe, read with stand-ins for Spack's modules, and the container's commands, run with stand-ins for apt and CMake."""
import contextlib
import importlib.util
import itertools
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest
from pathlib import Path

from harness import SOURCE, write_script

PACKAGING = SOURCE / "scripts/packaging"
CMAKE = "\n".join(path.read_text() for path in (SOURCE / "CMakeLists.txt", SOURCE / "CMakePresets.json", *(SOURCE / "cmake").glob("*.cmake")))

# what CMake looks for -> Spack's name of it
PACKAGES = {"Kokkos": "kokkos", "MPI": "mpi", "HDF5": "hdf5", "toml": "tomlplusplus", "cli11": "cli11", "xxhash": "xxhash", "fmt": "fmt",
            "NCCL": "nccl"}
ONLY_TESTS = {"GoogleTest"}


class Spec:
    """The choice of variants that a recipe asks about."""

    def __init__(self, on, values):
        self.on, self.variants = on, {name: types.SimpleNamespace(value=(value,)) for name, value in values.items()}

    def satisfies(self, question):
        return question[1:] in self.on if question[0] == "+" else question[1:] not in self.on

    def __getitem__(self, package):
        return types.SimpleNamespace(prefix=f"/prefix/{package}")


class CMakePackage:
    def define(self, name, value):
        return f"-D{name}={value}"

    def define_from_variant(self, name, variant):
        return f"-D{name}={variant in self.spec.on}"


class CudaPackage:
    pass


class ROCmPackage:
    pass


def recipe():
    """The recipe's class, and what its directives said: (directive, first word, all words, condition)."""
    said, conditions = [], []

    def directive(name):
        def called(*words, when="", **_):
            said.append((name, words[0], words, " ".join([*conditions, when]).strip()))
        return called

    @contextlib.contextmanager
    def when(condition):
        conditions.append(condition)
        yield
        conditions.pop()

    words = ("license", "version", "variant", "conflicts", "requires", "depends_on", "generator")
    package = types.ModuleType("spack.package")
    package.__dict__.update({name: directive(name) for name in words}, when=when, which=lambda path: lambda: path)
    modules = {"spack": types.ModuleType("spack"), "spack.package": package}
    for name in ("spack_repo", "spack_repo.builtin", "spack_repo.builtin.build_systems"):
        modules[name] = types.ModuleType(name)
    for name, base in (("cmake", CMakePackage), ("cuda", CudaPackage), ("rocm", ROCmPackage)):
        modules[f"spack_repo.builtin.build_systems.{name}"] = types.ModuleType(name)
        setattr(modules[f"spack_repo.builtin.build_systems.{name}"], base.__name__, base)
    path = PACKAGING / "spack_repo/tessera/packages/tessera/package.py"
    sys.modules.update(modules)
    try:
        loaded = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("tessera_recipe", path))
        spec.loader.exec_module(loaded)
    finally:
        for name in modules:
            del sys.modules[name]
    return loaded.Tessera, said


class Spack(unittest.TestCase):
    def setUp(self):
        self.package, self.said = recipe()

    def words(self, directive):
        return [words[0] for name, _, words, _ in self.said if name == directive]

    def arguments(self, on, **values):
        package = self.package()
        package.spec = Spec(on, values)
        return dict(argument[2:].split("=", 1) for argument in package.cmake_args())

    def test_lies_where_spack_looks(self):
        folder = PACKAGING / "spack_repo/tessera"
        self.assertRegex((folder / "repo.yaml").read_text(), r"(?m)^repo:\n  namespace: tessera\n  api: v2\.\d$")
        self.assertEqual(self.package.git, SOURCE.resolve().as_uri())
        self.assertEqual(self.words("version"), ["main"])

    def test_depends_on_all_that_cmake_looks_for(self):
        wanted = set(re.findall(r'tessera_missing\("(\w+)', CMAKE)) | set(re.findall(r"tessera_header_library\((\w+) ", CMAKE)) | {"Kokkos", "NCCL"}
        self.assertGreater(len(wanted), 7)
        there = {re.match(r"[a-z0-9-]+", words)[0] for words in self.words("depends_on")}
        for name in wanted - ONLY_TESTS - {"name"}:
            self.assertIn(PACKAGES.get(name, name), there)
        self.assertIn("mpi", self.words("depends_on"))  # whichever: the site's, too
        self.assertIn("hdf5@1.10.8: ~mpi +hl", self.words("depends_on"))

    def test_has_the_variants(self):
        self.assertTrue(issubclass(self.package, (CudaPackage, ROCmPackage)))
        self.assertLessEqual({"openmp", "lab", "plots"}, set(self.words("variant")))
        for name, word, _, condition in self.said:
            for variant in re.findall(r"[+~](\w+)", condition):
                self.assertIn(variant, {"openmp", "lab", "plots", "cuda", "rocm"}, f"{name} {word}")

    def test_gives_cmake_what_it_knows(self):
        for on in itertools.chain.from_iterable(itertools.combinations(("openmp", "lab", "cuda", "rocm"), n) for n in range(4)):
            given = self.arguments(on, cuda_arch="90")
            for name in given:
                self.assertTrue(name == "CMAKE_CXX_COMPILER" or re.search(rf"\b{name}\b", CMAKE), name)
            self.assertEqual(given["Kokkos_ENABLE_OPENMP"], str("openmp" in on))
            self.assertEqual(given["TESSERA_ENABLE_LAB"], str("lab" in on))
            self.assertEqual("amdclang++" in given.get("CMAKE_CXX_COMPILER", ""), "rocm" in on)

    def test_architectures_are_those_of_the_presets(self):
        wanted = sorted(re.findall(r'"TESSERA_CUDA_ARCH": "(\w+)"', CMAKE))
        architectures = [re.search(r"\d+", word)[0] for words in (w for d, _, w, _ in self.said if d == "requires") for word in words
                         if word.startswith("cuda_arch")]
        self.assertEqual(sorted(self.arguments(("cuda",), cuda_arch=a)["TESSERA_CUDA_ARCH"] for a in architectures), wanted)
        self.assertIn("kokkos+cuda cuda_arch=80", self.words("depends_on"))

    def test_its_own_test_is_the_smoke_test(self):
        package = self.package()
        package.prefix = "/prefix"
        self.assertIn("scripts/smoke", Path(self.package.test_smoke.__code__.co_filename).read_text())
        self.assertTrue((SOURCE / "scripts/smoke").exists())
        package.test_smoke()


class Container(unittest.TestCase):
    def setUp(self):
        """A root folder for what lies in / of the container, and a PATH of basic tools and stand-ins that note their arguments."""
        self.root = Path(tempfile.mkdtemp(prefix="container."))
        self.addCleanup(shutil.rmtree, self.root, ignore_errors=True)
        self.header, *sections = re.split(r"(?m)^%", (PACKAGING / "tessera.def").read_text())
        self.sections = {name: body for name, body in (section.split("\n", 1) for section in sections)}
        self.values = dict(line.strip().split("=", 1) for line in self.sections["arguments"].split())
        self.tools = self.root / "tools"
        for folder in (self.tools, self.root / "usr/local/bin", self.root / "opt/src", self.root / "var/lib/apt/lists"):
            folder.mkdir(parents=True)
        for tool in ("bash", "sh", "dirname", "sed", "grep", "awk", "nproc", "id", "cat", "env", "mkdir", "rm", "ln", "sort"):
            (self.tools / tool).symlink_to(shutil.which(tool))
        self.tool("cmake.installed", f'echo cmake "$@" >> {self.root}/log')
        self.tool("apt-get", f"""echo apt-get "$@" >> {self.root}/log
case " $* " in *" cmake ninja-build "*) ln -s cmake.installed {self.tools}/cmake; ln -s cmake.installed {self.tools}/ninja ;; esac""")
        # Installed is what apt-get was asked for.
        self.tool("dpkg-query", f'for package; do :; done; ! grep -qsw -- "$package" {self.root}/log || printf installed')
        self.tool("dpkg", "")
        shutil.copytree(SOURCE / "scripts", self.root / "opt/src/scripts", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(SOURCE / "CMakePresets.json", self.root / "opt/src")

    def tool(self, name, text):
        write_script(self.tools / name, text)

    def filled_in(self, text, **values):
        return re.sub(r"\{\{ (\w+) \}\}", lambda word: {**self.values, **values}[word[1]], text)

    def post(self, code=0, **values):
        """Runs %post as root would, below the root folder; what the stand-ins noted."""
        script = re.sub(r"(?<![\w.])/(opt|usr/local|var)(?=/)", rf"{self.root}/\1", self.filled_in(self.sections["post"], **values))
        self.tool("id", "echo 0")
        answer = subprocess.run(["sh"], input=script, env={"PATH": str(self.tools), "HOME": "/"}, cwd="/", text=True, capture_output=True,
                                timeout=60)
        self.assertEqual(answer.returncode, code, answer.stdout + answer.stderr)
        return (self.root / "log").read_text().splitlines()

    def test_installs_what_set_up_names_and_builds_the_program(self):
        setup = (SOURCE / "scripts/setup").read_text()
        names = re.search(r"packages=\(\n(.*?)\n\)", setup, re.S)[1].split()
        log = self.post()
        installed = next(line for line in log if line.startswith("apt-get") and " install " in line).split()
        for name in (*(name.split(":")[0] for name in names), "libtrilinos-kokkos-dev", "libtrilinos-kokkos-kernels-dev"):
            self.assertIn(name, installed)
        self.assertNotIn("bible-kjv", installed)
        configured, built, put_down = (line for line in log if line.startswith("cmake "))
        self.assertEqual(configured, "cmake --preset cpu -DTESSERA_ENABLE_TESTS=OFF")
        self.assertRegex(built, r"^cmake --build --preset cpu -j \d+ --target tessera$")
        self.assertEqual(put_down, f"cmake --install build/cpu --prefix {self.root}/opt/tessera --component tessera")
        self.assertFalse((self.root / "opt/src").exists())

    def test_builds_for_gpus(self):
        self.tool("nvcc", "")
        log = self.post(PRESET="cuda", BASE="any")
        self.assertIn("cmake --preset cuda -DTESSERA_ENABLE_TESTS=OFF", log)
        self.assertFalse([line for line in log if "trilinos" in line])

    def test_stops_where_the_build_fails(self):
        self.tool("cmake.installed", f'echo cmake "$@" >> {self.root}/log; exit 1')
        self.assertEqual(len([line for line in self.post(code=3) if line.startswith("cmake")]), 1)

    def test_every_argument_has_a_default(self):
        text = (PACKAGING / "tessera.def").read_text()
        self.assertEqual(set(re.findall(r"\{\{ (\w+) \}\}", text)), set(self.values))
        self.assertIn("From: debian:12\n", self.filled_in(self.header))
        self.assertIn(f'"name": "{self.values["PRESET"]}"', CMAKE)

    def test_tests_itself_by_the_smoke_test(self):
        self.assertIn("/opt/tessera/share/tessera/scripts/smoke", self.sections["test"])
        for section in ("post", "test", "runscript"):
            subprocess.run(["sh", "-n"], input=self.filled_in(self.sections[section]), text=True, check=True)


if __name__ == "__main__":
    unittest.main()
