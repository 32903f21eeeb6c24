import errno, json, os, shutil, signal, sys, tempfile
from pathlib import Path
from pytest_rlperf.errors import SideError
from pytest_rlperf.sides import cache as module

NOT_REACHED = 5  # no status of an error that nobody expects
root, fault, before = sys.argv[1:]
seen, armed = 0, 0


def hook(event, arguments):
    global seen
    if not armed or event.split(".")[0] not in {"open", "os", "tempfile", "shutil"}:
        return
    if not any(isinstance(one, (str, bytes)) and root in os.fsdecode(one) for one in arguments):
        return
    seen += 1
    if seen == armed:
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(errno.ENOSPC, "No space left on device")


def build(text):
    def fill(directory):
        (directory / "package").mkdir()
        (directory / "package/file").write_text(text)

    return fill


def use(text):
    cache = module.Cache(Path(root))
    place = cache.entry("key", build(text), lambda text: None)
    found = (place / "package/file").read_text()
    cache.close()
    return found, place


sys.addaudithook(hook)
for number in range(1, 200):
    if before != "nothing":
        _, place = use("old")
        if before == "a broken entry":
            (place.parent / "complete").unlink()
    child = os.fork()
    if not child:
        armed = number
        try:
            use("new")
        except SideError as error:
            os._exit(0 if "cannot keep a side" in str(error) else 9)
        except OSError:
            os._exit(0)  # of this test's own look at the entry
        os._exit(NOT_REACHED if seen < number else 0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, NOT_REACHED, -9), status
    assert use("third")[0] in ("old", "new", "third")
    shutil.rmtree(root)
    if status == NOT_REACHED:
        break
print(number - 1)
