#!/usr/bin/env python3
"""OpenStack Swift's own `keymaster` and `encryption` filters over a store in memory, for two uses:

    python encryption.py make            prints encryption.json: what they store, and show of it
    python encryption.py read FILE       decrypts what is in FILE, as `make` prints it, and prints
                                         what they show of it

Run with a Python that has swift installed.
"""
import base64
import json
import os
import random
import sys
import urllib.parse

from swift.common.middleware.crypto import filter_factory, keymaster
from swift.common.request_helpers import resolve_etag_is_at_header
from swift.common.swob import Request, Response
from swift.common.utils import md5

SECRETS = {
    'encryption_root_secret': base64.b64encode(bytes(range(32))).decode(),
    'encryption_root_secret_2026': base64.b64encode(bytes(range(32, 64))).decode(),
    'encryption_root_secret_long': base64.b64encode(bytes(range(64, 164))).decode(),
}
OVERRIDE = 'X-Object-Sysmeta-Container-Update-Override-Etag'
SHOWN = ('etag', 'content-length', 'content-type', 'content-range', OVERRIDE.lower())
RANGES = (None, 'bytes=0-0', 'bytes=16-31', 'bytes=-5', 'bytes=1-2,20-40,15-16', 'bytes=100000-')


class Store(object):
    """Objects by path: headers and bodies."""

    def __init__(self):
        self.objects = {}

    def __call__(self, env, start_response):
        req = Request(env)
        path = urllib.parse.unquote(urllib.parse.quote(env['PATH_INFO'], encoding='latin-1'))
        if req.method == 'PUT':
            resp = self.put(req, path)
        elif req.method == 'POST':
            headers, body = self.objects[path]
            headers = {k: v for k, v in headers.items()
                       if not k.startswith(('x-object-meta-', 'x-object-transient-'))}
            headers.update(kept(req.headers))
            self.objects[path] = (headers, body)
            resp = Response(status=202, request=req)
        elif path.count('/') == 3:
            resp = Response(body=json.dumps(self.rows(path)), request=req,
                            content_type='application/json; charset=utf-8')
        else:
            headers, body = self.objects[path]
            resp = Response(body=body, request=req, conditional_response=True, headers=headers,
                            conditional_etag=resolve_etag_is_at_header(req, headers))
        return resp(env, start_response)

    def put(self, req, path):
        body = b''.join(iter(lambda: req.environ['wsgi.input'].read(4096), b''))
        headers = kept(req.headers)
        footers = {}
        callback = req.environ.get('swift.callback.update_footers')
        if callback:
            callback(footers)
        for name, value in footers.items():
            headers[name.lower()] = value
        etag = md5(body, usedforsecurity=False).hexdigest()
        if headers.get('etag', etag) != etag:
            return Response(status=422, request=req)
        headers['etag'] = etag
        self.objects[path] = (headers, body)
        return Response(status=201, request=req, headers={'etag': etag})

    def rows(self, container):
        return [{'name': path[len(container) + 1:], 'bytes': len(body),
                 'hash': headers.get(OVERRIDE.lower(), headers['etag'])}
                for path, (headers, body) in sorted(self.objects.items())
                if path.startswith(container + '/')]


def kept(headers):
    return {k.lower(): v for k, v in headers.items()
            if k.lower().startswith('x-object-') or k.lower() in ('content-type', 'etag')}


def pipeline(store, active, version):
    conf = dict(SECRETS, active_root_secret_id=active, meta_version_to_write=version)
    return keymaster.filter_factory(conf)(filter_factory({})(store))


def ask(app, method, path, headers=None, body=None):
    req = Request.blank(urllib.parse.quote(path), environ={'REQUEST_METHOD': method},
                        headers=headers or {}, body=body)
    return req.get_response(app)


def latin(value):
    """As bytes of UTF-8 in a header are text here."""
    return value.encode('utf-8').decode('latin-1')


def stored(store):
    return {path: {'headers': {k: v for k, v in headers.items()},
                   'body': base64.b64encode(body).decode()}
            for path, (headers, body) in sorted(store.objects.items())}


def shown(store):
    """What clients see, whichever secret is the active one."""
    app = pipeline(store, '2026', '3')
    result = {}
    for path in sorted(store.objects):
        head = ask(app, 'HEAD', path)
        one = {'status': head.status_int, 'headers': {
            k.lower(): v for k, v in head.headers.items()
            if k.lower() in SHOWN or k.lower().startswith('x-object-')}, 'ranges': {}}
        for wanted in RANGES:
            resp = ask(app, 'GET', path, {'Range': wanted} if wanted else {})
            body = resp.body
            kind = resp.headers.get('content-type', '')
            if 'boundary=' in kind:
                body = body.replace(kind.split('boundary=')[1].encode(), b'EDGE')
            body = body if resp.status_int < 300 else b''
            one['ranges'][wanted or ''] = [resp.status_int, base64.b64encode(body).decode()]
        etag = head.headers['etag'].strip('"')
        one['conditions'] = [
            ask(app, 'GET', path, {name: value}).status_int
            for name in ('If-Match', 'If-None-Match')
            for value in (etag, '"%s"' % etag, '"no", "%s"' % etag, '"no"', '*')]
        result[path] = one
    for container in sorted({path.rsplit('/', 1)[0] for path in store.objects
                             if path.count('/') == 4}):
        rows = json.loads(ask(app, 'GET', container).body)
        result[container] = {row['name']: row['hash'] for row in rows}
    return result


def make():
    chance = random.Random(20261124)
    os.urandom = chance.randbytes
    store = Store()
    for number, (active, version) in enumerate([
            ('', '1'), ('2026', '2'), ('2026', '3'), ('long', '2')]):
        app = pipeline(store, active, version)
        # Swift itself cannot read other names again by ids of version 1.
        account = 'AUTH_test' if version == '1' else 'AUTH_t\u00e9st'
        container = '/v1/%s/c%d' % (account, number)
        for name, size in (('plain', 5), ('empty', 0), ('\u00fc\u4e2d\U0001f600/n', 70),
                           ('large', 1000), ('/slash', 33)):
            if not name.isascii() and version == '1':
                continue
            headers = {'Content-Type': 'text/plain', 'X-Object-Meta-Color': 'blue',
                       'X-Object-Meta-Utf': latin('\u00e4 \U0001f600'),
                       'X-Object-Meta-Empty': '', 'X-Object-Sysmeta-Kept': 'as it is'}
            assert ask(app, 'PUT', '%s/%s' % (container, name), headers,
                       chance.randbytes(size)).status_int == 201
        link = {'Content-Type': 'application/symlink', OVERRIDE:
                'd41d8cd98f00b204e9800998ecf8427e; symlink_target=c/o; symlink_target_etag=x'}
        # Of an object without content Swift reads this with the active secret, whatever it says.
        app = pipeline(store, '2026', '3')
        assert ask(app, 'PUT', container + '/link', link, b'').status_int == 201
        # Another secret than the content's.
        app = pipeline(store, 'long', '3')
        assert ask(app, 'PUT', container + '/posted', {'Content-Type': 'a/b'},
                   b'posted').status_int == 201
        app = pipeline(store, '', '2')
        assert ask(app, 'POST', container + '/posted',
                   {'X-Object-Meta-Later': 'yes'}).status_int == 202
    # Not encrypted.
    ask(store, 'PUT', container + '/bare', {'Content-Type': 'a/b', 'X-Object-Meta-Color': 'red'}, b'bare')
    return {'secrets': SECRETS, 'objects': stored(store), 'shown': shown(store)}


def read(path):
    with open(path) as f:
        given = json.load(f)
    store = Store()
    for name, one in given['objects'].items():
        store.objects[name] = (one['headers'], base64.b64decode(one['body']))
    return shown(store)


if __name__ == '__main__':
    found = make() if sys.argv[1] == 'make' else read(sys.argv[2])
    json.dump(found, sys.stdout, indent=1, sort_keys=True)
    print()
