"""swift_in.py SWIFT_DIR PROGRAM ARGS…: a program of OpenStack Swift whose swift.conf is in SWIFT_DIR.

By itself it reads the limits in /etc/swift/swift.conf before it knows of any other folder, and a daemon reads nothing else.
"""
import runpy
import sys

from swift.common import utils

utils.set_swift_dir(sys.argv[1])
sys.argv[:2] = []
runpy.run_path(sys.argv[0], run_name='__main__')
