import subprocess

subprocess.run(["sleep", "600"])
