"""Makes rings' confs, databases and an object's file in a folder with OpenStack Swift, and runs its
tools over them: prints what each printed, as JSON."""
import contextlib
import io
import json
import logging
import os
import sys

from swift.common.utils import Timestamp, hash_path, set_swift_dir

root = sys.argv[1]
swift_dir = os.path.join(root, 'swift')
set_swift_dir(swift_dir)

from swift.common.storage_policy import POLICIES, reload_storage_policies
reload_storage_policies()

from swift.account.backend import AccountBroker
from swift.cli import get_nodes, info
from swift.container.backend import ContainerBroker
from swift.obj.diskfile import DiskFileManager


def time(number):
    return Timestamp(number).internal


class Logger(logging.Logger):
    def increment(self, *args):
        pass

    def set_statsd_prefix(self, *args):
        pass


def make():
    container = os.path.join(root, hash_path('AUTH_a', 'c é') + '.db')
    broker = ContainerBroker(container, account='AUTH_a', container='c é')
    broker.initialize(time(5), 1)
    broker.update_metadata({
        'X-Container-Meta-Colour': ('blue', time(6)),
        'X-Container-Read': ('.r:*', time(6)),
        'X-Container-Sysmeta-X': ('y', time(6))})
    broker.put_object('o', time(7), 12, 'text/plain', 'e',
                      storage_policy_index=1)
    broker.get_info()
    broker.merge_syncs([{'sync_point': 3, 'remote_id': 'abc'}])
    account = os.path.join(root, hash_path('AUTH_a') + '.db')
    broker = AccountBroker(account, account='AUTH_a')
    broker.initialize(time(5))
    broker.put_container('c', time(6), 0, 3, 4, 1)
    broker.get_info()
    os.makedirs(os.path.join(root, 'sda'))
    manager = DiskFileManager({'devices': root, 'mount_check': 'false'},
                              Logger('swift'))
    diskfile = manager.get_diskfile('sda', '7', 'AUTH_a', 'c', 'o/é',
                                    policy=POLICIES[1])
    with diskfile.create() as writer:
        writer.write(b'hello')
        writer.put({'ETag': '5d41402abc4b2a76b9719d911017c592',
                    'X-Timestamp': time(9), 'Content-Type': 'text/plain',
                    'Content-Length': '5', 'X-Object-Meta-A': 'b',
                    'X-Object-Sysmeta-C': 'd', 'X-Static': 'z'})
        writer.commit(Timestamp(9))
    folder = diskfile._datadir
    name = [n for n in os.listdir(folder) if n.endswith('.data')][0]
    return account, container, os.path.join(folder, name)


def run(program, arguments):
    main = {
        'account-info': lambda: info.account_main(),
        'container-info': lambda: info.container_main(),
        'get-nodes': lambda: get_nodes.main(),
        # Its own main takes the standard output for itself.
        'object-info': lambda: info.print_obj(
            arguments[-1], check_etag='-n' not in arguments,
            swift_dir=swift_dir, policy_name='',
            drop_prefixes='--drop-prefixes' in arguments),
    }[program]
    sys.argv = [program] + arguments
    text, code = io.StringIO(), 0
    with contextlib.redirect_stdout(text):
        try:
            main()
        except SystemExit as exit:
            code = exit.code or 0
    return {'program': program, 'arguments': arguments, 'code': code,
            'text': text.getvalue()}


account, container, data = make()
ring = os.path.join(swift_dir, '%s.ring.gz')
of = ['-d', swift_dir]
print(json.dumps([run(program, of + arguments) for program, arguments in [
    ('container-info', ['--sync', container]),
    ('container-info', ['--drop-prefixes', '-v', container]),
    ('container-info', ['/nonexistent.db']),
    ('account-info', ['-s', account]),
    ('account-info', [container]),
    ('object-info', [data]),
    ('object-info', ['-n', '--drop-prefixes', data]),
    ('get-nodes', [ring % 'object', 'a', 'c', 'o/p']),
    ('get-nodes', ['-a', ring % 'object-1', 'a/c/o/p']),
    ('get-nodes', ['-P', 'silver', 'a', 'c é', 'o']),
    ('get-nodes', ['-P', 'silver', 'a', 'c']),
    ('get-nodes', ['-P', 'silver', '-p', '5']),
    ('get-nodes', [ring % 'account', '-p', '5']),
    ('get-nodes', [ring % 'account', 'a', 'c']),
    ('get-nodes', ['-Q', ring % 'container', 'a%20b', 'c']),
]]))
