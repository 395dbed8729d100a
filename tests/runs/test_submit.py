#!/usr/bin/env python3
"""scripts/slurm/submit on a machine without Slurm: what it refuses, and what its scripts do with the codes of a run."""
import os
import re
import shlex
import subprocess
import sys
import unittest

from harness import FILES, PROGRAM, SOURCE, TINY, USAGE, RunTest, write_script

SUBMIT = SOURCE / "scripts/slurm/submit"
TWO = ("-N", "2", "-n", "4")


class Submit(RunTest):
    def setUp(self):
        super().setUp()
        self.tools = self.folder / "tools"
        self.tools.mkdir()
        self.tool("sbatch", f'for word; do case $word in *.sh) cp "$word" "{self.folder}/submitted" ;; esac; done; echo "$*" >> "{self.folder}/calls"; wc -l < "{self.folder}/calls"')

    def tool(self, name, text):
        write_script(self.tools / name, text)

    def environment(self, more=None):
        return {**os.environ, "PATH": f"{self.tools}:{os.environ['PATH']}", "TESSERA_PROGRAM": str(PROGRAM),
                "TESSERA_SLURM_SITE": os.devnull, **(more or {})}

    def call(self, *words, code=0, says="", deck=TINY, env=None):
        answer = subprocess.run([SUBMIT, deck, f"job.directory={self.folder / 'run'}", *words], env=self.environment(env),
                                capture_output=True, text=True, cwd=self.folder, timeout=60)
        self.assertEqual(answer.returncode, code, answer.stdout + answer.stderr)
        self.assertIn(says, answer.stderr)
        if code != 0:
            self.assertFalse((self.folder / "calls").exists(), "it was submitted all the same")
        return answer.stdout

    def options(self, text):
        return re.findall(r"(?m)^#SBATCH (.*)$", text)


class Refuses(Submit):
    def test_a_deck_with_a_fault_in_the_programs_words(self):
        self.call("train.stepz=3", *TWO, code=USAGE, says="train.stepz")
        self.call(*TWO, deck=self.folder / "none.toml", code=USAGE, says="none.toml")
        self.assertFalse((self.folder / "run").exists())

    def test_command_lines(self):
        for words, says in ((("-N", "2"), "-n RANKS is missing"), (("-n", "2"), "-N NODES is missing"),
                            (("-N", "4", "-n", "2"), "without one"), ((*TWO, "--requeue", "--chain", "2"), "not allowed with"),
                            ((*TWO, "--chain", "0"), "a whole number"), ((*TWO, "--launcher", "ssh"), "invalid choice"),
                            ((*TWO, "--", "gpu"), "options of sbatch"), (("parallel.ranks=8", *TWO), "parallel.ranks = 8"),
                            ((*TWO, "--gpus-per-node", "1", "--preset", "cpu"), "more than 2 x 1 GPUs")):
            with self.subTest(words=words):
                self.call(*words, code=USAGE, says=says)
        self.call(*TWO, code=3, says="no program", env={"TESSERA_PROGRAM": str(self.folder / "none")})
        self.call(*TWO, code=FILES, says="none", env={"TESSERA_SLURM_SITE": str(self.folder / "none")})

    def test_a_directory_of_each_job_in_a_chain(self):
        for number in ("%j", "%A"):
            self.call(f"job.directory=runs/{number}", *TWO, "--chain", "3", code=USAGE, says="each job of a chain")
        self.call("job.directory=runs/%j", *TWO, "--requeue")  # which keeps its number

    def test_a_chain_that_could_not_find_the_run_finished(self):
        self.call("checkpoint.at_end=false", *TWO, "--chain", "3", code=USAGE, says="checkpoint.at_end=false: the jobs of a chain")
        self.call("checkpoint.at_end=false", *TWO, "--requeue")

    def test_a_time_limit_that_leaves_no_time_before_the_signal(self):
        for limit in ("3", "00:02:59", "0-0:2"):
            self.call(*TWO, "--", f"--time={limit}", code=USAGE, says="181 s at least")
        self.call(*TWO, "--", "--time=3", "-t", "0-1", code=0)  # Slurm takes the later

    def test_tables(self):
        path = self.folder / "table"
        for text, code, says in (("optimizer.learning_rate\n", USAGE, "a line of keys"), ("optimizer.learning_rate\n1 2\n", USAGE, "has 2 for 1"),
                                 ("learning_rate\n1\n", USAGE, "learning_rate is none"), ("train.batch_size\n12\n-1\n", USAGE, "train.batch_size=-1: "),
                                 ("train.batch_size\n'12\n", USAGE, "quotation")):
            with self.subTest(text=text):
                path.write_text(text)
                self.call(*TWO, "--array", str(path), code=code, says=says)
        self.call(*TWO, "--array", str(self.folder / "none"), code=FILES, says="none")
        path.write_text("parallel.ranks\n4\n8\n")
        self.call(*TWO, "--array", str(path), code=USAGE, says="parallel.ranks=8: parallel.ranks = 8, but -n 4")
        path.write_text("# a table's comment\ndata.source data.path   # and another\ntokens /a/run#3.bin\n")
        self.assertIn("row=(data.source=tokens 'data.path=/a/run#3.bin')", self.call(*TWO, "--array", str(path), "--dry-run", code=0))

    def test_an_older_python_is_told_so(self):
        for script in ("experiment", "scaling", "plan_sharding", "slurm/submit"):
            text = (f"import runpy, sys; sys.version_info, sys.version = (3, 9, 2), '3.9.2'; sys.modules['tomllib'] = None; sys.argv = ['{script}']; "
                    f"sys.path.insert(0, '{SOURCE}/scripts'); runpy.run_path('{SOURCE}/scripts/{script}', run_name='__main__')")
            answer = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
            self.assertEqual((answer.returncode, answer.stderr.count("\n")), (3, 1), answer.stderr)
            self.assertIn("needs Python 3.11, this is 3.9.2", answer.stderr)

    def test_what_slurm_refuses(self):
        self.tool("sbatch", "echo no such partition >&2; exit 9")
        self.call(*TWO, code=9, says="no such partition")
        self.assertEqual(list(self.folder.glob("run/slurm/*")), [])


class Scripts(Submit):
    def test_the_number_comes_last(self):
        self.assertEqual(self.call(*TWO), "1\n")
        self.assertEqual(self.call(*TWO, "--chain", "3"), "2\n3\n4\n")
        calls = (self.folder / "calls").read_text().splitlines()
        self.assertEqual([re.findall(r"--dependency=\S+", call) for call in calls[1:]], [[], ["--dependency=afterany:2"], ["--dependency=afterany:3"]])
        self.assertRegex(calls[0], r"\.sh$")  # started again by hand, it is another submission
        self.assertEqual(len({call.split(".sh ")[1] for call in calls[1:]}), 1)

    def test_a_dry_run_submits_nothing(self):
        text = self.call(*TWO, "--dry-run", "--", "--time=04:00:00", "-p", "gpu")
        self.assertFalse((self.folder / "calls").exists() or (self.folder / "run").exists())
        options = self.options(text)
        for option in ("--nodes=2", "--ntasks=4", "--ntasks-per-node=2", "--signal=USR1@61", "--open-mode=append", "--no-requeue",
                       "--time=04:00:00", "-p gpu"):
            self.assertIn(option, options)
        self.assertIn("--signal=B:USR1@61", self.options(self.call(*TWO, "--dry-run", "--launcher", "mpirun")))
        self.assertIn("--gpus-per-node=4", self.options(self.call(*TWO, "--dry-run", "--gpus-per-node", "4")))
        self.assertNotIn("--ntasks-per-node", self.call("-N", "2", "-n", "3", "--dry-run"))

    def test_what_is_submitted_is_what_a_dry_run_prints(self):
        dry = self.call(*TWO, "--requeue", "--dry-run")
        self.call(*TWO, "--requeue")
        submitted = (self.folder / "submitted").read_text()
        self.assertEqual(submitted, dry)
        self.assertEqual([path.read_text() for path in (self.folder / "run/slurm").glob("*.sh")], [submitted])

    def test_the_sites_settings(self):
        site = self.folder / "site"
        site.write_text("# a comment\n#SBATCH --account=us\n#SBATCH --time=2:00:00\nexport OF_THE_SITE=1\n")
        text = self.call(*TWO, "--dry-run", "--", "--time=1:00:00", env={"TESSERA_SLURM_SITE": str(site)})
        options = self.options(text)
        self.assertIn("--account=us", options)
        self.assertGreater(options.index("--time=1:00:00"), options.index("--time=2:00:00"))  # Slurm takes the later
        self.assertIn("\nexport OF_THE_SITE=1\n", text)
        self.assertNotIn("a comment", text)

    def test_the_margin_grows_with_the_runs_checkpoints(self):
        (self.folder / "run").mkdir()
        (self.folder / "run/.owner").write_text("longest_checkpoint_s = 40.5\n")
        self.assertIn("--signal=USR1@182", self.options(self.call(*TWO, "--dry-run")))
        (self.folder / "run/.owner").write_text("longest_checkpoint_s = 40.5\nlongest_step_s = 7\n")
        self.assertIn("--signal=USR1@189", self.options(self.call(*TWO, "--dry-run")))

    def test_an_arrays_number_without_an_array_is_refused(self):
        for word in ("%a", "%A"):
            self.call(*TWO, f"job.directory=run/{word}", "--dry-run", code=USAGE, says=f"run/{word}: %a and %A are numbers of an array")

    def test_a_signal_of_the_users_own_gives_the_margin(self):
        text = self.call(*TWO, "--dry-run", "--", "--signal=USR1@600", "--time=30")
        self.assertIn("export TESSERA_MARGIN_S=600\n", text)
        self.assertIn("SIGUSR1 600 s before the job's end: as asked", text)
        self.call(*TWO, "--dry-run", "--", "--signal=USR1@600", "--time=5", code=USAGE, says="ask for 720 s at least")
        for launcher, word, legal in (("srun", "B:USR1@90", "USR1@SECONDS"), ("srun", "TERM@90", "USR1@SECONDS"), ("mpirun", "USR1@90", "B:USR1@SECONDS")):
            self.call(*TWO, "--dry-run", "--launcher", launcher, "--", f"--signal={word}", code=USAGE, says=f"--signal={word}: write --signal={legal}")

    def test_the_margin_of_an_array_is_that_of_its_largest_job(self):
        table = self.folder / "table"
        table.write_text("model.d_ff\n32\n3000000\n64\n")
        alone = self.options(self.call(*TWO, "--dry-run", "model.d_ff=3000000"))
        signal = next(option for option in alone if option.startswith("--signal"))
        self.assertNotEqual(signal, "--signal=USR1@61")
        self.assertIn(signal, self.options(self.call(*TWO, "--array", str(table), "--dry-run")))
        (self.folder / "run/3").mkdir(parents=True)
        (self.folder / "run/3/.owner").write_text("longest_checkpoint_s = 1000\n")
        self.assertIn("--signal=USR1@3060", self.options(self.call(*TWO, "--array", str(table), "--dry-run")))

    def test_arrays(self):
        table = self.folder / "table"
        table.write_text("# two\nmodel.vocab_size data.source data.path   # of each\n300 text 'a b'\n300 tokens c\n")
        text = self.call(*TWO, "--requeue", "--array", str(table), "--dry-run")
        self.assertIn("--array=1-2", self.options(text))
        self.assertIn("  1) row=(model.vocab_size=300 data.source=text 'data.path=a b') ;;\n  2) row=(model.vocab_size=300 data.source=tokens data.path=c) ;;", text)
        self.assertIn("run/%a'", text)
        self.assertIn("*) echo \"no line $SLURM_ARRAY_TASK_ID in the table of this array\" >&2; exit 2 ;;", text)
        # the last task has the array's own number, which would requeue all of it
        self.assertIn('scontrol requeue "${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"', text)

    def test_codes(self):
        """Slurm calls a job whose script ends with 0 completed; only a run that stopped on purpose is requeued."""
        self.tool("sleep", "exec /bin/sleep 0.02")
        for launcher in ("srun", "mpirun"):
            self.tool(launcher, f'[ "$1" != --version ] || exit 0\necho "$*" > "{self.folder}/launch"\n'
                                '[ -z "$END" ] || kill -TERM "$SCRIPT"\n[ "$CODE" != 137 ] || kill -KILL $$\nexit "$CODE"')
            self.tool("scontrol", f'echo "$*" >> "{self.folder}/requeues"\nexit "$REQUEUE"')
            for way in ((), ("--requeue",)):
                text = self.call(*TWO, *way, "--launcher", launcher, "--dry-run")
                for code, requeue, end in ((0, 0, ""), (7, 0, ""), (75, 0, ""), (75, 1, ""), (137, 0, ""), (75, 0, "scancel")):
                    with self.subTest(launcher=launcher, way=way, code=code, requeue=requeue, end=end):
                        requeues = self.folder / "requeues"
                        requeues.unlink(missing_ok=True)
                        script = self.folder / "script"
                        script.write_text(text.replace("cancelled=\n", "cancelled=\nexport SCRIPT=$$\n"))
                        environment = self.environment({"SLURM_JOB_ID": "17", "SLURM_NTASKS": "4", "CODE": str(code), "REQUEUE": str(requeue), "END": end})
                        ended = subprocess.run(["bash", script], env=environment, timeout=60, capture_output=True, text=True)
                        self.assertEqual(ended.returncode, code, ended.stderr)
                        again = code == 75 and way and not end
                        self.assertEqual(requeues.read_text() if requeues.exists() else "", "requeue 17\n" if again else "")
                        launch = (self.folder / "launch").read_text()
                        self.assertTrue(launch.rstrip().endswith("--resume auto"), launch)
                        if launcher == "srun":
                            self.assertTrue(launch.startswith("--mpi=pmix --kill-on-bad-exit=1 --wait=60 --ntasks=4 "), launch)

    def test_scaling_and_experiment_submit_themselves(self):
        def submit(name, *words, code=0, says=""):
            command = [sys.executable, SOURCE / "scripts" / name, *words, "--output", "a 5%/out", "train.batch_size=16"]
            answer = subprocess.run(command, env=self.environment(), capture_output=True, text=True, cwd=self.folder, timeout=60)
            self.assertEqual(answer.returncode, code, answer.stderr)
            self.assertIn(says, answer.stderr)
            return answer.stdout

        deck = SOURCE / "input/scaling/tiny.toml"
        submit("scaling", deck, "train.stepz=3", "--submit", "-n 2", code=USAGE, says="train.stepz")
        submit("experiment", "sharding", "train.stepz=3", "--submit", "-n 2", code=USAGE, says="train.stepz")
        for options, says in (("gpu", "options of sbatch"), ("-p 'gpu", "No closing quotation")):
            submit("scaling", deck, "--submit", options, code=USAGE, says=says)
        self.assertFalse((self.folder / "calls").exists())
        for name, words, requeue in (("scaling", (deck, "--weak"), "--no-requeue"), ("experiment", ("sharding", "--quick"), "--requeue")):
            self.assertRegex(submit(name, *words, "--submit=-N 2 -p gpu --comment='a b'"), r"^\d\n$")
            text = (self.folder / "submitted").read_text()
            self.assertEqual(text, (self.folder / "a 5%/out.sh").read_text())
            options = self.options(text)
            for option in (f"--output='{self.folder}/a 5%%/out.%j.out'", requeue, "-N 2", "-p gpu", "'--comment=a b'"):
                self.assertIn(option, options)
            self.assertEqual(shlex.split(text.splitlines()[-1]), ["exec", str(SOURCE / "scripts" / name), *map(str, words), "--output", "a 5%/out",
                                                                  "train.batch_size=16", "--output", f"{self.folder}/a 5%/out"])
            self.assertIn(f"\nexport TESSERA_PROGRAM={PROGRAM}\n", text)

    def test_a_chain_that_slurm_refuses_in_part_says_what_it_took(self):
        self.tool("sbatch", f'[ ! -e "{self.folder}/calls" ] || exit 9\ntouch "{self.folder}/calls"; echo 7')
        answer = subprocess.run([SUBMIT, TINY, f"job.directory={self.folder / 'run'}", *TWO, "--chain", "3"], env=self.environment(),
                                capture_output=True, text=True, cwd=self.folder, timeout=60)
        self.assertEqual((answer.returncode, answer.stdout), (9, "7\n"), answer.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
