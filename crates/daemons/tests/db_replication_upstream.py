"""OpenStack Swift's side of the tests of database replication.

    serve KIND DEVICES PORT     a container or account server, until its stdin ends
    replicate KIND CONF         one pass of its replicator; CONF is JSON
    do                          steps of brokers: a line of JSON on stdin, a line of answers
"""
import json
import logging
import os
import sys

import eventlet
import eventlet.wsgi
if sys.argv[1] != 'do':
    eventlet.patcher.monkey_patch(thread=False)

from swift.common import storage_policy, utils

utils.HASH_PATH_PREFIX = b''
utils.HASH_PATH_SUFFIX = b'endcap'
utils.validate_hash_conf = lambda: None
storage_policy._POLICIES = storage_policy.StoragePolicyCollection([
    storage_policy.StoragePolicy(0, 'gold', True), storage_policy.StoragePolicy(1, 'silver')])

from swift.account.backend import AccountBroker
from swift.account.replicator import AccountReplicator
from swift.account.server import AccountController
from swift.container.backend import ContainerBroker
from swift.container.replicator import ContainerReplicator
from swift.container.server import ContainerController

BROKERS = {'account': AccountBroker, 'container': ContainerBroker}


def serve(kind, devices, port):
    conf = {'devices': devices, 'mount_check': 'false', 'fallocate_reserve': '0'}
    server = {'account': AccountController, 'container': ContainerController}[kind](conf)
    server.log_requests = False
    socket = eventlet.listen(('127.0.0.1', int(port)))
    print('ready', flush=True)
    eventlet.spawn(eventlet.wsgi.server, socket, server, log=logging.getLogger('none'))
    eventlet.hubs.trampoline(sys.stdin.fileno(), read=True)
    os._exit(0)


def replicate(kind, conf):
    replicator = {'account': AccountReplicator, 'container': ContainerReplicator}[kind]
    replicator = replicator(json.loads(conf))
    replicator.run_once()
    stats = {name: count for name, count in replicator.stats.items() if isinstance(count, int)}
    print(json.dumps(stats))


def step(broker, what, *args):
    if what == 'create':
        broker.initialize(*args)
    elif what == 'merge':
        broker.merge_items(args[0])
    elif what == 'metadata':
        broker.update_metadata(args[0])
    elif what == 'delete':
        broker.delete_db(args[0])
    elif what == 'policy':
        broker.set_storage_policy_index(*args)
    elif what == 'reported':
        info = broker.get_info()
        broker.reported(info['put_timestamp'], info['delete_timestamp'],
                        info['object_count'], info['bytes_used'])
    elif what == 'put':
        broker.update_put_timestamp(*args)
    elif what == 'state':
        rows = broker.get_items_since(-1, 10 ** 7)
        for row in rows:
            del row['ROWID']
        info = broker.get_replication_info()
        metadata = info.pop('metadata')
        # A replica that learns of a deletion from its times does not note it as its status.
        for key in ('id', 'max_row', 'status_changed_at', 'status'):
            info.pop(key, None)
        for key in list(info):
            if key.startswith('reported_'):
                del info[key]
        return {'rows': sorted(rows, key=lambda row: (row['name'],
                                                      row.get('storage_policy_index'))),
                'info': info, 'metadata': json.loads(metadata) if metadata else {},
                'deleted': broker.is_deleted()}
    elif what == 'syncs':
        # What matters is how far, not the ids of the files.
        return {'id': broker.get_info()['id'], 'max_row': broker.get_max_row(),
                'incoming': broker.get_syncs(True), 'outgoing': broker.get_syncs(False)}


def do():
    for line in sys.stdin:
        command = json.loads(line)
        broker = BROKERS[command['kind']](
            command['file'], account=command['account'], container=command['container'])
        with broker:
            answers = [step(broker, *steps) for steps in command['do']]
        print(json.dumps(answers), flush=True)


logging.basicConfig(stream=sys.stderr, level=logging.ERROR)
{'serve': serve, 'replicate': replicate, 'do': do}[sys.argv[1]](*sys.argv[2:])
