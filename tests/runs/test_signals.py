#!/usr/bin/env python3
"""Signals to a run that has hardly begun, or has only its sample left; and to jobs that cannot be resumed."""
import os
import signal
import time
import unittest

from harness import STOPPED, TINY, RunTest, Shimmed, column, end_all, latest_step, tensors

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
SHORT = ("train.steps=4", "optimizer.warmup_steps=2", "trace.profile_steps=[]", "train.validate_every=0")
SOON_S = 20  # on a busy machine; what is interrupted would take many times as long


class Early(RunTest):
    """The deck is a pipe: until it has been read, the program is in main and has not started MPI."""

    def start_with_pipe(self, *arguments, ranks=None, **more):
        """The job, and what writes its deck. Each rank has a pipe of its own."""
        pipes = [self.folder / f"deck{rank}.toml" for rank in range(ranks or 1)]
        for pipe in pipes:
            os.mkfifo(pipe)
        own = ("sh", "-c", 'program=$1; shift 2; exec "$program" "deck${OMPI_COMM_WORLD_RANK:-0}.toml" "$@"', "sh")
        job = self.start("unused.toml", *arguments, ranks=ranks, wrapper=own, **more)
        writers = []

        def is_read():
            try:
                while len(writers) < len(pipes):
                    writers.append(os.open(pipes[len(writers)], os.O_WRONLY | os.O_NONBLOCK))
            except OSError:
                return False
            return True

        self.wait_until(is_read, "a program that reads its deck", job)

        def give(text):
            for writer in writers:
                os.write(writer, text.encode())
                os.close(writer)
            for pipe in pipes:
                pipe.unlink()
        return job, give

    def test_training_stops_before_its_first_step(self):
        whole = self.train("whole", *SHORT)
        for number in SIGNALS:
            with self.subTest(signal=number.name):
                directory = self.folder / number.name
                job, give = self.start_with_pipe(f"job.directory={directory}", *SHORT)
                os.kill(job.process.pid, number)
                give(TINY.read_text())
                result = job.wait()
                self.assertEqual(result.code, STOPPED, str(result))
                self.assertIn(f"stopped by {number.name} after step 0: resume with --resume auto", result.out)
                self.run_deck(TINY, f"job.directory={directory}", *SHORT, "--resume", "auto", says="written by 1 rank)")
                self.assert_same_tensors(tensors(directory), tensors(whole))

    def test_one_rank_stops_all(self):
        directory = self.folder / "run"
        job, give = self.start_with_pipe(f"job.directory={directory}", *SHORT, ranks=2)
        end_all(job.ranks()[-1:], signal.SIGTERM)
        give(TINY.read_text())
        result = job.wait()
        self.assertEqual(result.code, STOPPED, str(result))
        self.assertEqual(result.out.count("stopped by SIGTERM after step 0"), 1, str(result))
        self.run_deck(TINY, f"job.directory={directory}", *SHORT, "--resume", "auto", ranks=2, says="written by 2 ranks)")
        self.assertEqual(list(column(directory, "step")), [1, 2, 3, 4])

    def test_a_second_interrupt_does_not_wait(self):
        job, _ = self.start_with_pipe()
        for _ in range(100):  # two that come at once count as one
            end_all([job.process.pid], signal.SIGINT)
            time.sleep(0.05)
            if job.process.poll() is not None:
                break
            end_all([job.process.pid], signal.SIGTERM)  # does not make the first one forgotten
        self.assertEqual(job.wait(SOON_S).code, 130)

    def test_an_ignored_signal_ends_no_benchmark(self):
        job, give = self.start_with_pipe("bench.rows=64", "bench.width=64", "bench.repeats=1",
                                         preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        os.kill(job.process.pid, signal.SIGINT)
        give(TINY.read_text().replace('"train"', '"bench.kernels"'))
        result = job.wait()
        self.assertEqual(result.code, 0, str(result))
        self.assertIn("result in ", result.out)
        job, give = self.start_with_pipe("job.overwrite=true", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
        for number in (signal.SIGTERM, signal.SIGINT):  # the ignored one does not make the first forgotten
            os.kill(job.process.pid, number)
            time.sleep(0.05)
        give(TINY.read_text().replace('"train"', '"bench.kernels"'))
        self.assertEqual(job.wait(SOON_S).code, -signal.SIGTERM)

    def test_what_cannot_go_on_later_ends(self):
        for kind, overrides in (("bench.kernels", ()), ("generate", (f"job.input={self.folder}",))):
            job, give = self.start_with_pipe(*overrides)
            os.kill(job.process.pid, signal.SIGTERM)
            give(TINY.read_text().replace('"train"', f'"{kind}"'))
            result = job.wait(SOON_S)
            self.assertEqual((result.code, result.out), (-signal.SIGTERM, ""), str(result))

    def test_a_benchmark_under_way_ends_and_an_earlier_result_stays(self):
        deck = self.deck(TINY.read_text().replace('"train"', '"bench.kernels"') + "\n[bench]\nrepeats = 1000000\nrow_limit_s = 1\n")
        earlier = self.folder / "kernels.h5"
        earlier.write_text("an earlier result")
        for number in (*SIGNALS, signal.SIGKILL):
            job = self.start(deck, f"job.output={earlier}", "job.overwrite=true",
                             preexec_fn=lambda: [signal.signal(each, signal.SIG_DFL) for each in SIGNALS])  # whatever started the tests
            self.wait_until(lambda: "copy" in job.printed(), "the first row", job)
            os.kill(job.process.pid, number)
            self.assertEqual(job.wait(SOON_S).code, -number)
            self.assertEqual(earlier.read_text(), "an earlier result")
            part = self.folder / f"kernels.h5.part{job.process.pid}"  # the rows that it had
            self.assertEqual({path.name for path in self.folder.glob("kernels.h5*")}, {"kernels.h5", part.name})
            part.unlink()


class Finalized(Shimmed, RunTest):
    """mpirun kills the ranks of a launch in which one ends without MPI_Finalize and with another code than 0."""
    SHIM = r"""
    #include <mpi.h>
    #include <unistd.h>
    int MPI_Finalize(void) {
      const int code = PMPI_Finalize();
      return write(2, "finalized\n", 10) == 10 ? code : 1;
    }
    """

    def test_all_ranks_leave_mpi_before_they_end_with_75(self):
        result = self.run_deck(TINY, *SHORT, "train.time_limit_s=1e-9", ranks=2, code=STOPPED, **self.preload())
        self.assertEqual(result.err.count("finalized"), 2, str(result))


class Late(RunTest):
    def test_a_sample_is_cut_short(self):
        """The training is saved: the run is finished, whichever rank is told to end."""
        starts = {"alone": (None, lambda job: [job.process.pid]), "mpirun": (2, lambda job: [job.process.pid]),
                  "rank 0": (2, lambda job: job.ranks()[:1]), "rank 1": (2, lambda job: job.ranks()[1:])}
        for name, (ranks, victims) in starts.items():
            for number in SIGNALS[2:] if name == "mpirun" else SIGNALS:  # mpirun turns the others into SIGKILL
                with self.subTest(start=name, signal=number.name):
                    folder = f"{name} {number.name}"
                    job = self.start(TINY, f"job.directory={self.folder / folder}", *SHORT, "train.sample_tokens=10000000",
                                     ranks=ranks)
                    self.wait_until(lambda: "4 steps in" in job.printed(), "the end of training", job)
                    end_all(victims(job), number)
                    result = job.wait(SOON_S)
                    self.assertEqual(result.code, 0, str(result))
                    self.assertRegex(result.out, r"--- \d+ tokens? generated from the trained model, then .*the run is finished")
                    self.assertEqual(latest_step(self.folder / folder), 4)

    def test_a_sample_that_nothing_cuts_is_whole_on_any_number_of_ranks(self):
        samples = []
        for ranks in (None, 2):
            out = self.run_deck(TINY, f"job.directory={self.folder / str(ranks)}", *SHORT, "train.sample_tokens=12",
                                ranks=ranks, says="--- 12 tokens generated from the trained model ---").out
            samples.append(out.rpartition("->")[2].split())
        self.assertEqual([len(sample) for sample in samples], [12, 12])


if __name__ == "__main__":
    unittest.main(verbosity=2)  # so that a test that skips itself says so
