#!/usr/bin/env python3
"""Writes tempurl.json, formpost.json and staticweb.json: what OpenStack Swift's own middleware
answer to requests made up from a fixed seed. Run with a Python that has swift installed:

    python golden/middleware/make.py
"""
import base64
import hashlib
import hmac
import json
import os
import random
import urllib.parse

from swift.common.middleware import formpost, staticweb, tempurl
from swift.common.swob import HTTPUnauthorized, Request
from swift.proxy.controllers.base import get_cache_key

NOW = 1700000000
HERE = os.path.dirname(os.path.abspath(__file__))
RANDOM = random.Random(20261122)
tempurl.time = lambda: NOW
formpost.time = lambda: NOW


def chance(percent):
    return RANDOM.random() * 100 < percent


def pick(*of):
    return RANDOM.choice(of)


def wsgi(text):
    return text.encode('utf-8').decode('latin-1')


def plain(text):
    return text.encode('latin-1').decode('utf-8', 'surrogateescape')


class App(object):
    """Answers from a table of paths, and remembers what it was asked."""

    def __init__(self, inner):
        self.inner = inner
        self.seen = []

    def __call__(self, env, start_response):
        path, query = plain(env['PATH_INFO']), env.get('QUERY_STRING', '')
        headers = {k[5:].replace('_', '-').lower(): str(v) for k, v in env.items()
                   if k.startswith('HTTP_')}
        if env.get('CONTENT_TYPE'):
            headers['content-type'] = env['CONTENT_TYPE']
        for name in ('host', 'user-agent', 'transfer-encoding'):
            headers.pop(name, None)
        body = b''
        if env['REQUEST_METHOD'] == 'PUT':
            try:
                while True:
                    chunk = env['wsgi.input'].read(1000)
                    if not chunk:
                        break
                    body += chunk
            except EOFError:
                start_response('499 Client Disconnect', [('Content-Length', '0')])
                return [b'']
        granted = None
        if 'swift.authorize' in env and env.get('swift.authorize_override') and \
                env.get('REMOTE_USER') == '.wsgi.tempurl':
            granted = [env['swift.authorize'](Request.blank(p)) is None
                       for p in ('/v1/AUTH_a/c/other', '/v1/AUTH_a/d/o', '/v1/AUTH_b/c/o')]
        self.seen.append({
            'method': env['REQUEST_METHOD'], 'path': path, 'query': query,
            'headers': {k: plain(v) for k, v in headers.items()},
            'body': body.decode('utf-8', 'replace'), 'granted': granted})
        answer = self.inner.get('%s?%s' % (path, query)) or self.inner.get(path) or \
            {'status': '404 Not Found', 'headers': {}, 'body': 'missing'}
        answer['headers'].setdefault('content-type', 'text/html; charset=UTF-8')
        text = answer['body'].encode('utf-8')
        start_response(answer['status'],
                       [(k, wsgi(v)) for k, v in answer['headers'].items()] +
                       [('Content-Length', str(len(text)))])
        return [b'' if env['REQUEST_METHOD'] == 'HEAD' else text]


def run(factory, case):
    app = App(case['inner'])
    request = case['request']
    env = {'REMOTE_ADDR': request['remote'],
           'swift.infocache': {
               get_cache_key('AUTH_a'): dict(
                   status=204, bytes=0, total_object_count=0, container_count=0,
                   meta=case['account'], sysmeta={}),
               get_cache_key('AUTH_a', 'c'): dict(
                   status=204, read_acl=None, write_acl=None, sharding_state=None,
                   meta=case['container'], sysmeta={})}}
    if 'deny' in case:
        env['swift.authorize'] = lambda req: \
            HTTPUnauthorized(request=req) if case['deny'] else None
    if case.get('user'):
        env['REMOTE_USER'] = case['user']
    headers = {k: wsgi(v) for k, v in request['headers'].items()}
    req = Request.blank(request['uri'], environ=env, method=request['method'], headers=headers,
                        body=request['body'].encode('utf-8'))
    resp = req.get_response(factory({}, **case['options'])(app))
    case['answer'] = {
        'status': resp.status_int,
        'headers': {k.lower(): plain(str(v)) for k, v in resp.headers.items()},
        'body': resp.body.decode('utf-8')}
    case['seen'] = app.seen
    return case


def sign(key, message, digest=None, encode=None):
    digest = digest or pick('sha1', 'sha256', 'sha512')
    mac = hmac.new(key.encode('utf-8'), message.encode('utf-8'), digest).digest()
    encode = encode or pick('hex', 'hex', 'base64', 'urlsafe', 'unpadded')
    if encode == 'hex':
        return mac.hex()
    text = base64.b64encode(mac).decode() if encode == 'base64' else \
        base64.urlsafe_b64encode(mac).decode()
    return '%s:%s' % (digest, text.rstrip('=') if encode == 'unpadded' else text)


KEYS = ['mykey', 'other key', 'ключ']


def tempurl_case():
    mutate = chance(50)
    account = {n: pick(*KEYS) for n in ('temp-url-key', 'temp-url-key-2') if chance(45)}
    container = {n: pick(*KEYS) for n in ('temp-url-key', 'temp-url-key-2') if chance(35)}
    options = {}
    if not account and not container and not mutate:
        account = {'temp-url-key': 'mykey'}
    if mutate and chance(20):
        options['methods'] = 'GET HEAD'
    if mutate and chance(20):
        options['allowed_digests'] = pick('sha256', 'sha512 sha1', 'SHA256 sha512')
    if chance(20):
        options['incoming_remove_headers'] = 'x-object-meta-* x-remove-this'
        options['incoming_allow_headers'] = 'x-object-meta-ok*'
    if chance(20):
        options['outgoing_remove_headers'] = 'x-custom-* etag'
        options['outgoing_allow_headers'] = 'x-custom-a'
    method = pick('GET', 'GET', 'GET', 'HEAD', 'HEAD', 'PUT', 'POST', 'DELETE', *(['OPTIONS', 'COPY'] if mutate else []))
    obj = pick('o', 'o', 'dir/name', 'dir/sub/', 'n\u00e4me x', 'quo"te', 'a;b,c', *(['//'] if mutate else []))
    if mutate and chance(5):
        obj = ''
    path = '/v1/AUTH_a/c/' + obj
    expires = pick(NOW + 60, NOW + 60, NOW + 60, NOW, 2 ** 31, *([NOW - 1, 0] if mutate else []))
    written = str(expires)
    if mutate and chance(30):
        written = pick('2033-05-18T03:33:20Z', '2023-11-14T22:13:19Z', '2033-05-18T03:33:20',
                       '2033-5-18T3:33:20Z', 'nonsense', '', ' %d ' % (NOW + 5))
        expires = {'2033': 2000000000, ' %d ' % (NOW + 5): NOW + 5}.get(
            written[:4] if written.startswith('2033') else written, 0)
    signed_method = method if not mutate or chance(50) else pick('GET', 'PUT', 'POST', 'HEAD', 'DELETE')
    query = []
    prefix = None
    if chance(25):
        prefix = pick('', obj[:1], obj, *(['dir/', 'x'] if mutate else []))
        query.append(('temp_url_prefix', prefix))
    message_path = path if prefix is None else 'prefix:/v1/AUTH_a/c/' + prefix
    message = '%s\n%s\n%s' % (signed_method, expires, message_path)
    if chance(20):
        ip_range = pick('1.2.3.0/24', '1.2.3.4', '1.2.3.4/24', '::/0', 'x', '9.0.0.0/8', '') if mutate else '1.2.3.4/31'
        query.append(('temp_url_ip_range', ip_range))
        if ip_range:
            message = 'ip=%s\n%s' % (ip_range, message)
    key = pick(*KEYS)
    held = list(account.values()) + list(container.values())
    if held and (not mutate or chance(85)):
        key = pick(*held)
    if not mutate:
        query.append(('temp_url_sig', sign(key, message)))
    elif not chance(8):
        query.append(('temp_url_sig', pick(*[sign(key, message)] * 5 + [
            'bad', '', sign(key, message + 'x'), sign(key, message).upper()])))
    if not mutate or not chance(8):
        query.append(('temp_url_expires', written))
    if chance(25):
        query.append(('filename', pick('a b.txt', '\u00e9"x', '', 'new\nline')))
    if chance(20):
        query.append(('inline', pick('', 'x')))
    if mutate and chance(5):
        query.append(('temp_url_sig', 'second'))
    if chance(20):
        query.append(('limit', '5'))
    if not any(v == 'second' for _, v in query):
        RANDOM.shuffle(query)
    headers = {}
    for name, value in [('x-timestamp', '1'), ('x-object-meta-ok-a', 'v'),
                        ('x-object-meta-b', 'v'), ('x-open-expired', 'true'),
                        ('x-remove-this', '1')]:
        if chance(25):
            headers[name] = value
    if chance(6):
        headers[pick('x-object-manifest', 'x-symlink-target')] = 'd/o'
    answer = {'etag': 'abc', 'x-object-meta-private': '1', 'x-object-meta-public-b': '2',
              'x-custom-a': '3', 'x-custom-b': '4', 'content-type': 'text/plain'}
    if chance(25):
        answer['content-disposition'] = pick('inline', 'attachment; filename="x"')
    if chance(10):
        answer['x-backend-content-generator'] = 'staticweb'
    version = 'v1.0' if mutate and chance(10) else 'v1'
    uri = urllib.parse.quote(path.replace('/v1/', '/%s/' % version, 1)) + '?' + \
        urllib.parse.urlencode(query)
    inner_path = path.replace('/v1/', '/%s/' % version, 1)
    status = pick('200 OK', '200 OK', '200 OK', '206 Partial Content', '404 Not Found',
                  '304 Not Modified')
    return {
        'options': options, 'account': account, 'container': container,
        'request': {'method': method, 'uri': uri, 'headers': headers,
                    'remote': pick('1.2.3.4', '::1') if mutate else '1.2.3.4', 'body': ''},
        'inner': {inner_path: {'status': status, 'headers': answer, 'body': 'inner'}}}


def formpost_case():
    account = {n: pick(*KEYS) for n in ('temp-url-key', 'temp-url-key-2') if chance(75)}
    container = {n: pick(*KEYS) for n in ('temp-url-key', 'temp-url-key-2') if chance(40)}
    options = {'allowed_digests': 'sha256 sha512'} if chance(20) else {}
    path = pick('/v1/AUTH_a/c', '/v1/AUTH_a/c/', '/v1/AUTH_a/c/pre-', '/v1/AUTH_a/c/d/\u00e9',
                *(['/v1/AUTH_a', '/v9/AUTH_a/c'] if chance(10) else []))
    fields = {'redirect': pick('', '', 'http://r.example/page', 'http://r.example/page?a=b'),
              'max_file_size': pick('1000', '1000', '10', '', 'x'),
              'max_file_count': pick('2', '2', '1', '10', '', 'x'),
              'expires': pick(str(NOW + 10), str(NOW + 10), str(NOW), str(NOW - 1), 'x', '')}
    if chance(85):
        fields.update(max_file_size='1000', max_file_count='2', expires=str(NOW + 10))
    held = list(account.values()) + list(container.values())
    key = pick(*(held if held and chance(85) else KEYS))
    message = '%s\n%s\n%s\n%s\n%s' % (
        path, fields['redirect'], fields['max_file_size'] or '0',
        fields['max_file_count'] or '0', fields['expires'] or '0')
    fields['signature'] = pick(*[sign(key, message)] * 12 + ['bad', sign(key, message + 'x')])
    for name, value in [('x_delete_at', pick('2000000000', 'x')), ('x_delete_after', '100'),
                        ('content-type', pick('text/x', '')), ('content-encoding', 'gzip'),
                        ('Extra', 'v')]:
        if chance(12):
            fields[name] = value
    if fields['redirect'] == '' and chance(50):
        del fields['redirect']
    boundary = pick('B', '----WebKitFormBoundaryX', 'with-dash--')
    chunks = []
    for name, value in fields.items():
        chunks.append('Content-Disposition: form-data; name="%s"\r\n\r\n%s' % (name, value))
    for number in range(pick(0, 1, 1, 2, 2, 3)):
        extra = pick('', '', 'Content-Type: text/y\r\n', 'Content-Encoding: br\r\n',
                     'content-type:\r\n')
        name = pick('f%d.txt' % number, 'na me', 'd/\u00e9', 'qu"ote', '')
        data = pick('data', '', 'x' * 11, 'line\r\n--not\r\n', 'y' * 90, *(['z' * 1001] if chance(15) else []))
        chunks.append('Content-Disposition: form-data; name="f"; filename="%s"\r\n%s\r\n%s'
                      % (name, extra, data))
    if chance(7):
        RANDOM.shuffle(chunks)
    start = pick('', '', '', '\r\n')
    body = start + ''.join('--%s\r\n%s\r\n' % (boundary, c) for c in chunks) + \
        pick('--%s--\r\n', '--%s--') % boundary
    if chance(4):
        body = 'x' + body
    content_type = 'multipart/form-data; boundary=' + pick(boundary, '"%s"' % boundary)
    if chance(4):
        content_type = pick('multipart/form-data', 'text/plain; boundary=B')
    status = pick(*['201 Created'] * 9 + ['404 Not Found', '413 Request Entity Too Large'])
    answer = {'status': status, 'body': '' if status.startswith('2') else 'refusal',
              'headers': pick({}, {'access-control-allow-origin': '*', 'etag': 'x'})}
    slash = '' if path.endswith('/') or path.count('/') >= 4 else '/'
    inner = {}
    for name in ['f0.txt', 'f1.txt', 'f2.txt', 'na me', 'd/\u00e9', 'qu"ote', 'filename']:
        inner[path + slash + name] = answer
    return {
        'options': options, 'account': account, 'container': container,
        'request': {'method': pick(*['POST'] * 12 + ['PUT']),
                    'uri': urllib.parse.quote(path),
                    'headers': {'content-type': content_type, 'x-object-meta-a': 'dropped',
                                'origin': 'http://o.example'},
                    'remote': '1.2.3.4', 'body': body},
        'inner': inner}


def staticweb_case():
    container = {}
    for name, value in [('web-index', 'index.html'), ('web-error', 'error.html'),
                        ('web-listings', pick('true', 't', 'no')),
                        ('web-listings-label', pick('My <site>', 'l\u00e4bel')),
                        ('web-listings-css', pick('style.css', '/a b.css', 'http://x/y.css',
                                                  'dir/s t.css')),
                        ('web-directory-type', 'text/directory')]:
        if chance(50):
            container[name] = value
    obj = pick('', '', 'file', 'dir', 'dir/', 'dir/sub', 'dir/sub/', 'n\u00f6ne', 'marker',
               'a b/', '..', '/', 'dir//')
    base = '/v1/AUTH_a/c'
    path = base + pick('', '/') if not obj else base + '/' + obj
    page = {'content-type': 'text/html'}
    inner = {base + '/file': {'status': '200 OK', 'headers': page, 'body': 'a file'},
             base + '/marker': {'status': '200 OK', 'body': '', 'headers': {
                 'content-type': pick('application/directory', 'text/directory')}}}
    for name in ['', 'dir/', 'dir/sub/', 'marker/']:
        if chance(30):
            inner['%s/%sindex.html' % (base, name)] = {
                'status': pick('200 OK', '200 OK', '200 OK', '304 Not Modified',
                               '503 Service Unavailable'),
                'headers': page, 'body': 'the index'}
    for code in (401, 404):
        if chance(60):
            inner['%s/%derror.html' % (base, code)] = {
                'status': '200 OK', 'headers': page, 'body': 'the page of %d' % code}
    if chance(10):
        inner[base + '/file']['status'] = pick('503 Service Unavailable', '401 Unauthorized')
    date = '2023-11-14T22:13:20.123456'
    listings = {
        '': [{'subdir': 'dir/'}, {'subdir': 'a b/'},
             {'name': 'file', 'bytes': 1536, 'content_type': 'text/html',
              'last_modified': date}],
        'dir/': [{'subdir': 'dir/sub/'}, {'subdir': 'dir//'},
                 {'name': 'dir/<&"\'>', 'bytes': 10, 'content_type': 'Image/<PNG>',
                  'last_modified': date},
                 {'name': 'dir/..', 'bytes': 5000000, 'content_type': 'x', 'last_modified': date}],
        'dir/sub/': [{'name': 'dir/sub/n\u00f6', 'bytes': 0, 'content_type': 'a/b/c',
                      'last_modified': date}],
        'a b/': [{'name': 'a b/c', 'bytes': 1, 'content_type': 'a/b', 'last_modified': date}],
        'dir//': [{'name': 'dir//x', 'bytes': 1, 'content_type': 'a/b', 'last_modified': date}]}
    status = '200 OK' if chance(90) else '401 Unauthorized'
    for prefix, entries in listings.items():
        answer = {'status': status, 'headers': {'content-type': 'application/json'},
                  'body': json.dumps(entries) if status == '200 OK' else 'no'}
        asked = '&prefix=' + urllib.parse.quote(prefix) if prefix else ''
        inner['%s?delimiter=/%s' % (base, asked)] = answer
        inner['%s?limit=1&delimiter=/%s' % (base, asked)] = answer
    for other in ['n\u00f6ne/', '../', '//', 'marker/', 'file/', 'dir/sub/', '/']:
        asked = urllib.parse.quote(other)
        for query in ('delimiter=/&prefix=' + asked, 'limit=1&delimiter=/&prefix=' + asked):
            inner.setdefault('%s?%s' % (base, query), {
                'status': '200 OK', 'headers': {'content-type': 'application/json'},
                'body': '[]'})
    inner[base] = {'status': '200 OK', 'headers': {'content-type': 'text/plain'},
                   'body': 'plain listing'}
    headers = {'x-web-mode': pick('true', 'no')} if chance(30) else {}
    options = {'url_base': pick('https://', 'https://w.example', '//h.example:81/x')} \
        if chance(25) else {}
    case = {
        'options': options, 'account': {}, 'container': container,
        'request': {'method': pick('GET', 'GET', 'GET', 'HEAD', 'POST'),
                    'uri': urllib.parse.quote(path), 'headers': headers,
                    'remote': '1.2.3.4', 'body': ''},
        'inner': inner, 'deny': chance(12)}
    if chance(15):
        case['user'] = 'a:b'
    return case


def write(name, factory, make, count):
    cases = []
    while len(cases) < count:
        try:
            case = run(factory, make())
        except RuntimeError:  # staticweb answers nothing at all where an index fails
            continue
        # What was not asked for need not be kept.
        asked = {s['path'] for s in case['seen']} | \
            {'%s?%s' % (s['path'], s['query']) for s in case['seen']}
        case['inner'] = {k: v for k, v in case['inner'].items() if k in asked}
        cases.append(case)
    with open(os.path.join(HERE, name + '.json'), 'w') as out:
        out.write('[\n' + ',\n'.join(json.dumps(c, sort_keys=True) for c in cases) + '\n]\n')
    statuses = {}
    for case in cases:
        code = case['answer']['status']
        statuses[code] = statuses.get(code, 0) + 1
    print(name, statuses)


write('tempurl', tempurl.filter_factory, tempurl_case, 300)
write('formpost', formpost.filter_factory, formpost_case, 200)
write('staticweb', staticweb.filter_factory, staticweb_case, 250)
