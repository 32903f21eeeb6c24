import sys


def hook(event, args):
    if event in {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}:
        with open("started", "a") as file:
            file.write(f"{event} {args}\n")


sys.addaudithook(hook)
