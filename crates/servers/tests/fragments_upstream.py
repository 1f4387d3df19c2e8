"""OpenStack Swift's object server with an erasure-coded policy, driven line by line.

The first line of standard input is the devices' directory; every other is a request as JSON,
answered by a line of JSON. SSYNC is a request as well, whose body is all its sender says.
"""
import json
import pickle
import sys

from swift.common import storage_policy, utils

utils.HASH_PATH_PREFIX, utils.HASH_PATH_SUFFIX = b'', b'endcap'
utils.validate_hash_conf = lambda: None
storage_policy._POLICIES = storage_policy.StoragePolicyCollection([
    storage_policy.StoragePolicy(0, 'gold', is_default=True),
    storage_policy.ECStoragePolicy(1, 'ec', ec_type='liberasurecode_rs_vand', ec_ndata=4,
                                   ec_nparity=2)])

from io import BytesIO  # noqa: E402
from swift.common.swob import Request  # noqa: E402
from swift.obj import diskfile  # noqa: E402
from swift.obj.server import ObjectController  # noqa: E402

# The content here is text.
diskfile.ECDiskFileReader._check_frag = lambda self, fragment: None


class Input(BytesIO):
    """A body whose sender need not be told to go on."""
    def set_hundred_continue_response_headers(self, headers):
        pass

    def send_hundred_continue_response(self):
        pass

    def get_socket(self):
        return None


devices = json.loads(sys.stdin.readline())
app = ObjectController(
    {'devices': devices, 'mount_check': 'false', 'fallocate_reserve': '0'},
    logger=utils.get_logger({'log_level': 'CRITICAL'}, name='object'))
for line in sys.stdin:
    asked = json.loads(line)
    request = Request.blank(
        asked['path'], environ={'REQUEST_METHOD': asked['method']},
        headers=asked['headers'], body=asked['body'].encode())
    if asked['method'] != 'PUT' or 'Transfer-Encoding' in request.headers:
        request.environ.pop('CONTENT_LENGTH', None)
    request.environ['wsgi.input'] = Input(asked['body'].encode())
    response = request.get_response(app)
    body = response.body
    if asked['method'] == 'REPLICATE':
        hashes = pickle.loads(body)
        body = json.dumps({s: {str(k): v for k, v in h.items()} for s, h in hashes.items()},
                          sort_keys=True).encode()
    headers = {name.lower(): str(value) for name, value in response.headers.items()
               if value is not None}
    print(json.dumps({
        'status': response.status_int, 'headers': headers, 'body': body.decode()}))
    sys.stdout.flush()
