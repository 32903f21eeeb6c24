import os, signal, subprocess, sys
from pytest_rlperf.spawn.guardian import Guardian

guardian = Guardian()
directory = guardian.new_directory()
environment = os.environ | guardian.variables()
daemon = subprocess.Popen(["sleep", "300"], env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
with guardian.guarding_commands():
    command = subprocess.Popen(["sleep", "300"], start_new_session=True, stdout=subprocess.DEVNULL)
print(daemon.pid, command.pid, guardian.scratch, flush=True)
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
guardian.close()
