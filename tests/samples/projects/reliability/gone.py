import os, subprocess, sys

guard = subprocess.Popen([sys.executable, "-c", *sys.argv[1:3], str(os.getpid()), "gone"])


def link(number):
    try:
        return os.readlink(f"/proc/{guard.pid}/fd/{number}")
    except FileNotFoundError:
        return ""  # closed meanwhile


while not any("pidfd" in link(number) for number in os.listdir(f"/proc/{guard.pid}/fd")):
    pass
