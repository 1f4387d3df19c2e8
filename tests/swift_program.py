"""swift_program.py SWIFT_DIR PROGRAM [ARGUMENTS]: a program of OpenStack Swift.

Its own programs read swift.conf, with the policies in it, from /etc/swift; here it is in SWIFT_DIR.
"""
import runpy
import sys

from swift.common import utils

swift_dir, program = sys.argv[1:3]
utils.set_swift_dir(swift_dir)
sys.argv = sys.argv[2:]
runpy.run_path(program, run_name='__main__')
