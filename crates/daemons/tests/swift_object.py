"""swift_object.py SWIFT_DIR WHAT CONF: OpenStack Swift's object server, or one pass of its
object replicator or auditor.

Its own programs read swift.conf from /etc/swift only; here it is in SWIFT_DIR.
"""
import sys

from swift.common import utils

swift_dir, what, conf = sys.argv[1:]
utils.set_swift_dir(swift_dir)

from swift.common import storage_policy  # noqa: E402

storage_policy.reload_storage_policies()

if what == 'server':
    from swift.common.wsgi import run_wsgi
    from swift.obj.server import global_conf_callback
    sys.exit(run_wsgi(conf, 'object-server',
                      global_conf_callback=global_conf_callback))

from swift.common.daemon import run_daemon  # noqa: E402
from swift.obj.auditor import ObjectAuditor  # noqa: E402
from swift.obj.replicator import ObjectReplicator  # noqa: E402

daemons = {'replicator': ObjectReplicator, 'auditor': ObjectAuditor}
run_daemon(daemons[what], conf, once=True)
