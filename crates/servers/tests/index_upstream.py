"""Answers requests with OpenStack Swift's own container or account server, in this process.

Reads {"server": "container" | "account", "devices": folder, "requests": [{method, path, headers,
body}]} on stdin; writes the list of {status, headers, body}.
"""
import json
import logging
import sys

from swift.common import storage_policy, utils
from swift.common.swob import Request
from swift.account.server import AccountController
from swift.container.server import ContainerController

utils.HASH_PATH_PREFIX = b''
utils.HASH_PATH_SUFFIX = b'endcap'
storage_policy._POLICIES = storage_policy.StoragePolicyCollection([
    storage_policy.StoragePolicy(0, 'gold', True), storage_policy.StoragePolicy(1, 'silver')])


def main():
    command = json.load(sys.stdin)
    conf = {'devices': command['devices'], 'mount_check': 'false', 'fallocate_reserve': '0'}
    server = {'container': ContainerController, 'account': AccountController}[command['server']]
    server = server(conf)
    logging.disable(logging.CRITICAL)
    server.log_requests = False
    answers = []
    for asked in command['requests']:
        request = Request.blank(
            asked['path'], method=asked['method'], headers=asked['headers'],
            body=asked['body'].encode('utf8'))
        response = request.get_response(server)
        answers.append({
            'status': response.status_int,
            'headers': {name.lower(): str(value).encode('latin1').decode('utf8')
                        for name, value in response.headers.items()},
            'body': response.body.decode('utf8')})
    json.dump(answers, sys.stdout)


main()
