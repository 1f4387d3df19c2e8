"""Serves erasure-coded policies with OpenStack Swift's own object server.

Arguments: the folder of devices. Prints the port; ends when standard input does.
"""
import logging
import sys

import eventlet
eventlet.monkey_patch()

from eventlet import wsgi  # noqa: E402
from swift.common import storage_policy, utils  # noqa: E402

utils.HASH_PATH_PREFIX, utils.HASH_PATH_SUFFIX = b'', b'test'
utils.validate_hash_conf = lambda: None
storage_policy._POLICIES = storage_policy.StoragePolicyCollection([
    storage_policy.ECStoragePolicy(
        0, 'coded', is_default=True, ec_type='isa_l_rs_vand', ec_ndata=4, ec_nparity=2,
        ec_segment_size=10000),
    storage_policy.ECStoragePolicy(
        1, 'twice', ec_type='liberasurecode_rs_vand', ec_ndata=2, ec_nparity=1,
        ec_segment_size=10000, ec_duplication_factor=2)])

from swift.common.http_protocol import SwiftHttpProtocol  # noqa: E402
from swift.obj.server import ObjectController  # noqa: E402


def main():
    logging.disable(logging.CRITICAL)
    app = ObjectController({
        'devices': sys.argv[1], 'mount_check': 'false', 'fallocate_reserve': '0',
        'conn_timeout': '0.1', 'node_timeout': '0.5', 'log_requests': 'false'})
    socket = eventlet.listen(('127.0.0.1', 0))
    eventlet.spawn(
        wsgi.server, socket, app, log_output=False, protocol=SwiftHttpProtocol)
    print(socket.getsockname()[1], flush=True)
    eventlet.tpool.execute(sys.stdin.read)


main()
