import os


def detach():
    """Start a process as daemons start: in a session of its own, of no living parent, here without a variable too."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.setsid()
        grandchild = os.fork()
        if grandchild:
            os.write(writing, str(grandchild).encode())
            os._exit(0)
        os.dup2(os.open(os.devnull, os.O_RDWR), 1)
        os.dup2(1, 2)
        os.closerange(3, 64)
        os.execve("/bin/sleep", ["sleep", "287"], {})
    os.waitpid(child, 0)
    return int(os.read(reading, 20))
