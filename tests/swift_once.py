"""swift_once.py SWIFT_DIR DAEMON CONF: one pass of a background daemon of OpenStack Swift.

Its own programs read swift.conf from /etc/swift only; here it is in SWIFT_DIR.
"""
import importlib
import sys

from swift.common import utils
from swift.common.daemon import run_daemon

DAEMONS = {
    'object-replicator': ('swift.obj.replicator', 'ObjectReplicator'),
    'object-updater': ('swift.obj.updater', 'ObjectUpdater'),
    'container-updater': ('swift.container.updater', 'ContainerUpdater'),
}

swift_dir, daemon, conf = sys.argv[1:]
utils.set_swift_dir(swift_dir)
module, name = DAEMONS[daemon]
run_daemon(getattr(importlib.import_module(module), name), conf, once=True)
