#!/usr/bin/env python3
"""What cmake --install puts down works without the checkout, and scripts/smoke says so, or what is wrong."""
import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

from harness import ENVIRONMENT, FINISHED, PATIENCE, SOURCE, USAGE, write_script

BUILD = os.environ.get("TESSERA_BUILD_DIR", str(SOURCE / "build/cpu"))


class Smoke(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(tempfile.mkdtemp(prefix="an installation "))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        subprocess.run([os.environ.get("TESSERA_CMAKE", "cmake"), "--install", BUILD, "--prefix", cls.folder, "--component", "tessera"],
                       check=True, capture_output=True)

    def call(self, *arguments, code, says, script="scripts/smoke", env=None):
        environment = {name: value for name, value in os.environ.items() if name != "TESSERA_PROGRAM"}
        answer = subprocess.run([self.folder / "share/tessera" / script, *arguments], cwd="/", env={**environment, **(env or {})}, text=True,
                                capture_output=True, timeout=240 * PATIENCE)
        self.assertEqual(answer.returncode, code, answer.stdout + answer.stderr)
        self.assertIn(says, answer.stdout + answer.stderr)
        return answer.stdout

    def program(self, text):
        """A program of that text around the installed one, whose path is $real."""
        path = self.folder / "changed"
        write_script(path, f"real='{self.folder}/bin/tessera'\n{text}")
        return {"TESSERA_PROGRAM": str(path)}

    def test_every_check_passes(self):
        printed = self.call(code=FINISHED, says="every check passed")
        for check in ("trains (once", "a resumed run ends like one without a stop", "generates text", "attention is NumPy's"):
            self.assertIn(f"ok       {check}", printed)
        self.assertNotIn("FAILED", printed)

    def test_a_program_that_trains_otherwise_fails(self):
        slower = self.program('for word; do case $word in job.directory=*/sharded) exec "$real" "$@" optimizer.learning_rate=2e-3 ;; esac; done\n'
                              'exec "$real" "$@"')
        printed = self.call(code=1, says="1 of the checks failed", env=slower)
        self.assertIn("FAILED   validation loss", printed)

    def test_a_program_that_cannot_start_fails(self):
        self.assertIn("FAILED   starts: exit code 9, not 0", self.call(code=1, says="checks failed", env=self.program("exit 9")))

    def test_refuses(self):
        self.call("--ranks", "2", code=USAGE, says="unknown argument '--ranks'")
        self.call("-n", "5", code=USAGE, says="not '5'")
        self.call("-n", code=USAGE, says="-n takes a value")
        self.call(code=ENVIRONMENT, says="there is no program /nowhere", env={"TESSERA_PROGRAM": "/nowhere"})

    def test_every_script_of_an_installation_finds_what_it_imports(self):
        folder = self.folder / "share/tessera/scripts"
        scripts = [path.relative_to(folder.parent) for path in folder.rglob("*") if path.is_file() and os.access(path, os.X_OK)]
        self.assertGreater(len(scripts), 6)
        for script in scripts:
            self.call("--help", code=FINISHED, says="Exit code", script=script)
        imported = {name for path in folder.glob("*") if path.is_file()
                    for name in re.findall(r"(?m)^ *(?:import|from) (\w+)", path.read_text()) if (SOURCE / f"scripts/{name}.py").exists()}
        self.assertEqual({name for name in imported if not (folder / f"{name}.py").exists()}, set())

    def test_an_installation_runs_and_plots_decks(self):
        directory = self.folder / "run"
        self.call(self.folder / "share/tessera/input/tiny.toml", f"job.directory={directory}", code=FINISHED, says="after step 30", script="scripts/run")
        self.call(directory / "run.h5", "-o", directory / "run.png", code=FINISHED, says="", script="scripts/plot_run")
        self.assertGreater((directory / "run.png").stat().st_size, 10000)


if __name__ == "__main__":
    unittest.main()
