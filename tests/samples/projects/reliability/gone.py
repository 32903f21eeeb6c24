import os, subprocess, sys

subprocess.Popen([sys.executable, "-c", *sys.argv[1:3], str(os.getpid()), "gone"])
