"""Tells in which order OpenStack Swift's proxy would ask the servers of partitions.

Arguments: a ring file. Each line of standard input is a JSON object: "options" and "policy_options"
of the proxy, and "partitions". Each answer is a line: a JSON list of the device ids for reading,
uploading and deleting, of every partition.
"""
import json
import logging
import os
import sys

from swift.common import storage_policy, utils

utils.HASH_PATH_PREFIX, utils.HASH_PATH_SUFFIX = b'', b'test'
utils.validate_hash_conf = lambda: None
storage_policy._POLICIES = storage_policy.StoragePolicyCollection([
    storage_policy.StoragePolicy(0, 'zero', is_default=True),
    storage_policy.StoragePolicy(1, 'one')])

from swift.common.ring import Ring  # noqa: E402
from swift.common.storage_policy import POLICIES  # noqa: E402
from swift.common.swob import Request  # noqa: E402
from swift.proxy import server  # noqa: E402
from swift.proxy.controllers.base import NodeIter  # noqa: E402


def main():
    logging.disable(logging.CRITICAL)
    directory, name = os.path.split(sys.argv[1])
    ring = Ring(directory, ring_name=name[:-len('.ring.gz')])
    for policy in POLICIES:
        policy.object_ring = ring
    for line in sys.stdin:
        asked = json.loads(line)
        app = server.Application(
            dict(asked['options'], policy_config={'1': asked['policy_options']}),
            account_ring=ring, container_ring=ring)
        request, answers = Request.blank('/v1/a/c/o'), []
        for partition in asked['partitions']:
            orders = []
            for policy in POLICIES:
                controller = app.obj_controller_router[policy](app, 'a', 'c', 'o')
                local_first = [
                    controller.iter_nodes_local_first(
                        ring, partition, request, policy=policy, local_handoffs_first=first)
                    for first in (False, True)]
                reading = NodeIter(
                    'object', app, ring, partition, app.logger, request, policy=policy)
                orders.append([[node['id'] for node in nodes] for nodes in
                               [reading] + local_first])
            answers.append(orders)
        print(json.dumps(answers), flush=True)


main()
