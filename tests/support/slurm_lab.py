#!/usr/bin/env python3
"""A Slurm of two nodes, n1 and n2, on one Debian host, as root: for tests, and to try things by hand.

    eval "$(tests/support/slurm_lab.py up FOLDER)"     starts it; prints the variables that sbatch and squeue then need
    tests/support/slurm_lab.py down FOLDER             cancels its jobs and ends its daemons

All of it lies in FOLDER, which must be new: munge's key and socket, the configuration, state and logs. Each node's slurmd has
a host name, a network address and a PMIx folder of its own (namespaces), so that programs there see two hosts. Nothing outside
FOLDER changes but the bridge tessera0 and two network namespaces, which `down` deletes; one lab at a time.

Exit codes: 0 done, 2 command line, 3 what is missing here (not root, no Slurm, no namespaces), or a daemon that did not start.
"""
import contextlib
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "munged", "ip", "unshare")
BRIDGE, HEAD = "tessera0", "10.99.7.1"
NODES = {"n1": "10.99.7.11", "n2": "10.99.7.12"}
CPUS = 64  # that each node says it has, whatever the host has
START_S = 30

CONFIGURATION = """\
ClusterName=tessera
SlurmctldHost={host}({head})
SlurmctldPort=16817
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=15
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmdPidFile={folder}/%n.pid
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
# no controller is used: neither systemd nor cgroups need to be here
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
SlurmdTimeout=15
KillWait=10
MinJobAge=3600
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2,bf_interval=5,batch_sched_delay=0,sched_min_interval=200000
{nodes}
PartitionName=batch Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=OFF
# jobs of spare make room for those of urgent
PartitionName=spare Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=10
PartitionName=urgent Nodes=n1,n2 MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


class Missing(Exception):
    """Why there can be no lab here."""


def run(*command, code=0, **more):
    """Its standard output; Missing if it ends with another code."""
    answer = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60, **more)
    if code is not None and answer.returncode != code:
        raise Missing(f"{shlex.join(map(str, command))}: {(answer.stderr or answer.stdout).strip()[-500:]}")
    return answer.stdout


def require():
    if os.geteuid() != 0:
        raise Missing("a Slurm of one's own needs root")
    for program in PROGRAMS:
        if shutil.which(program) is None:
            raise Missing(f"there is no {program}; scripts/setup --slurm installs Slurm from Debian's packages")
    probe = subprocess.run(["unshare", "--net", "--uts", "--mount", "true"], capture_output=True, text=True)
    if probe.returncode != 0:
        raise Missing(f"no namespaces here: {probe.stderr.strip()}")
    run("ip", "link", "add", "tessera_probe", "type", "bridge")  # Missing where containers may not
    run("ip", "link", "del", "tessera_probe")


def environment(folder):
    """What the commands of Slurm need, jobs included."""
    return {"SLURM_CONF": f"{folder}/slurm.conf", "TESSERA_SLURM_SITE": os.devnull}


class Lab:
    def __init__(self, folder):
        self.folder = Path(folder).absolute()
        self.environment = environment(self.folder)
        self.has_network = (self.folder / "n1.pid").exists()

    def up(self):
        require()
        self.folder.mkdir(mode=0o755)  # munged wants every folder above its socket closed to others' writes
        try:
            self._start()
        except BaseException:
            self.down()
            raise
        return self

    def _start(self):
        for name in ("state", *NODES, *(f"{node}.tmp" for node in NODES), "pmix"):
            (self.folder / name).mkdir()
        self._start_munge()
        self._make_network()
        nodes = "\n".join(f"NodeName={node} NodeHostname={node} NodeAddr={address} CPUs={CPUS} RealMemory=4000"
                          for node, address in NODES.items())
        (self.folder / "slurm.conf").write_text(
            CONFIGURATION.format(host=socket.gethostname().split(".")[0], head=HEAD, folder=self.folder, nodes=nodes))
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")  # 22.05 has none that needs no cgroups
        # steps of two nodes have the same folder's name, hence a mount namespace for each node
        (self.folder / "mpi.conf").write_text(f"PMIxCliTmpDirBase={self.folder}/pmix\n")
        outside = {**os.environ, **self.environment}
        run("slurmctld", env=outside)
        for node in NODES:
            self._start_node(node)
        self._await_nodes()

    def _start_node(self, node):
        inside = f'hostname {node} && mount --bind "$1/{node}.tmp" "$1/pmix" && exec slurmd -N {node}'
        run("ip", "netns", "exec", f"tessera_{node}", "unshare", "--uts", "--mount", "sh", "-c", inside, "sh",
            self.folder, env={**os.environ, **self.environment})

    def _await_nodes(self):
        outside = {**os.environ, **self.environment}
        end = time.monotonic() + START_S
        while len(run("sinfo", "-h", "-N", "-p", "batch", "-t", "idle", env=outside, code=None).split("\n")) <= len(NODES):
            if time.monotonic() > end:
                logs = "\n".join(path.read_text()[-1000:] for path in self.folder.glob("*.log"))
                raise Missing(f"Slurm's nodes did not come up in {START_S} s:\n{logs}")
            time.sleep(0.1)

    def _start_munge(self):
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        run("munged", "--force", f"--key-file={key}", f"--socket={self.folder}/munge.socket", f"--pid-file={self.folder}/munge.pid",
            f"--log-file={self.folder}/munge.log", f"--seed-file={self.folder}/munge.seed")

    def _make_network(self):
        if pids := " ".join(run("ip", "netns", "pids", f"tessera_{node}", code=None).strip() for node in NODES).split():
            raise Missing(f"another lab is up: slurm_lab.py down FOLDER ends it, or end {' '.join(pids)}")
        self._delete_network()
        self.has_network = True
        run("ip", "link", "add", BRIDGE, "type", "bridge")
        run("ip", "addr", "add", f"{HEAD}/24", "dev", BRIDGE)
        run("ip", "link", "set", BRIDGE, "up")
        for node, address in NODES.items():
            name, link = f"tessera_{node}", f"tessera{node}"
            run("ip", "netns", "add", name)
            run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            run("ip", "link", "set", link, "master", BRIDGE, "up")
            run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                run("ip", "-n", name, "link", "set", device, "up")
            run("ip", "-n", name, "route", "add", "default", "via", HEAD)

    @staticmethod
    def _delete_network():
        for node in NODES:
            run("ip", "netns", "del", f"tessera_{node}", code=None)
            run("ip", "link", "del", f"tessera{node}", code=None)
        run("ip", "link", "del", BRIDGE, code=None)

    def down(self):
        if (self.folder / "slurmctld.pid").exists():
            jobs = self.command("squeue", "-h", "-o", "%A", code=None).split()
            if jobs:
                self.command("scancel", *sorted(set(jobs)), code=None)
                end = time.monotonic() + 15
                while self.command("squeue", "-h", "-t", "R,CG", code=None).strip() and time.monotonic() < end:
                    time.sleep(0.1)
        for name in (*NODES, "slurmctld", "munge"):
            self._end(self.folder / f"{name}.pid")
        if self.has_network:
            for node in NODES:
                self.kill_node(node, everything=True)  # what a killed slurmstepd has left keeps the network
            self._delete_network()

    @staticmethod
    def _end(pid_file):
        try:
            pid = int(pid_file.read_text())
            os.kill(pid, signal.SIGTERM)
        except (OSError, ValueError):
            return
        end = time.monotonic() + 10
        while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
            time.sleep(0.05)

    # --- harm

    def kill_node(self, node, everything):
        """Ends a node's slurmd at once, or all that runs there, as a crash does."""
        pids = run("ip", "netns", "pids", f"tessera_{node}", code=None).split() if everything else [(self.folder / f"{node}.pid").read_text()]
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)

    def revive(self, node):
        """Starts the slurmd of a node anew where it has ended, as a reboot does: nothing else of the node is left."""
        if Path(f"/proc/{(self.folder / f'{node}.pid').read_text().strip()}").exists():
            return
        self.kill_node(node, everything=True)
        shutil.rmtree(self.folder / f"{node}.tmp")
        (self.folder / f"{node}.tmp").mkdir()
        for left in (self.folder / node).glob("*pmix*"):  # which refuses the first step of a requeued job, whose name is the same
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        self._start_node(node)

    def node_of(self, pid):
        return next((node for node in NODES if str(pid) in run("ip", "netns", "pids", f"tessera_{node}").split()), "")

    @staticmethod
    def steps_of(job):
        """Processes of the daemons that look after the steps of a job."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                found += [path.parent.name] if path.read_bytes().startswith(f"slurmstepd: [{job}.".encode()) else []
            except OSError:
                pass  # it has ended
        return found

    def shown(self, job, field):
        return re.search(rf"\b{field}=(\S+)", self.command("scontrol", "show", "job", job)).group(1)

    def release(self, job):
        """Starts a job that was requeued, which Slurm holds for as long as its credentials last. Call once its steps have ended: the
        next start has the same step's number, after which PMIx names its folder."""
        self.command("scontrol", "update", f"JobId={job}", "StartTime=now+2")  # slurmd has revoked its credential for this second

    def command(self, *words, code=0, **more):
        return run(*words, code=code, env={**os.environ, **self.environment}, **more)


def main(words):
    if words[:1] in (["-h"], ["--help"]):
        print(__doc__)
        return 0
    if len(words) != 2 or words[0] not in ("up", "down"):
        print("slurm_lab.py: up FOLDER, or down FOLDER; --help says more", file=sys.stderr)
        return 2
    lab = Lab(words[1])
    try:
        if words[0] == "down":
            lab.down()
            return 0
        lab.up()
    except Missing as why:
        print(f"slurm_lab.py: {why}", file=sys.stderr)
        return 3
    for name, value in lab.environment.items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
