import os
import multiprocessing
import subprocess
import time

from detach import detach
from pytest_rlperf.workers.daemons import DaemonWatch

watch = DaemonWatch()
held = subprocess.Popen(["sleep", "287"], start_new_session=True)
forked = multiprocessing.get_context("fork").Process(target=lambda: (os.setsid(), time.sleep(287)), daemon=True)
forked.start()
while os.getsid(forked.pid) != forked.pid:
    pass
forgotten = subprocess.Popen(["sleep", "286"], start_new_session=True).pid
ended = detach()
os.kill(ended, 9)
daemons = detach(), forgotten
assert sorted(watch.new()) == sorted(zip(daemons, ("sleep 287", "sleep 286"))), daemons
assert watch.new() == []
watch.end()
assert held.poll() is None
assert forked.is_alive()
for process in (held, forked):
    process.kill()
held.wait()
forked.join()
print("ended", *daemons)
