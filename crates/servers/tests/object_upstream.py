"""OpenStack Swift's object server, driven line by line.

The first line of standard input is the devices' directory; every other is a request as JSON,
answered by a line of JSON.
"""
import json
import sys

from swift.common import utils

utils.HASH_PATH_PREFIX, utils.HASH_PATH_SUFFIX = b'', b'endcap'
utils.validate_hash_conf = lambda: None

from swift.common.swob import Request  # noqa: E402
from swift.obj.server import ObjectController  # noqa: E402


devices = json.loads(sys.stdin.readline())
app = ObjectController(
    {'devices': devices, 'mount_check': 'false', 'fallocate_reserve': '0'},
    logger=utils.get_logger({'log_level': 'CRITICAL'}, name='object'))
for line in sys.stdin:
    asked = json.loads(line)
    request = Request.blank(
        asked['path'], environ={'REQUEST_METHOD': asked['method']},
        headers=asked['headers'], body=asked['body'].encode())
    if asked['method'] != 'PUT':
        request.environ.pop('CONTENT_LENGTH', None)
    try:
        response = request.get_response(app)
        body = response.body.decode()
    except Exception as error:
        print(repr(error), file=sys.stderr)
        raise
    headers = {name.lower(): value for name, value in response.headers.items()
               if value is not None}
    print(json.dumps({
        'status': response.status_int, 'headers': headers, 'body': body}))
    sys.stdout.flush()
