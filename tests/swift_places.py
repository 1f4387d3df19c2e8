"""swift_places.py SWIFT_DIR DEVICE...: is everything on the devices its ring names, and only there?

Looks at the files with OpenStack Swift's own code while nobody writes. Prints JSON: how many
"objects", "archives" (erasure-coded objects), "containers" and "accounts" there are, and what is
"wrong" in words.
"""
import hashlib
import json
import logging
import os
import sys
from collections import defaultdict

from swift.common import utils

swift_dir, *device_folders = sys.argv[1:]
utils.set_swift_dir(swift_dir)

from swift.account.backend import AccountBroker
from swift.common.ring import Ring
from swift.common.storage_policy import POLICIES
from swift.container.backend import ContainerBroker
from swift.obj import diskfile

devices = {os.path.basename(folder): folder for folder in device_folders}
counts = dict.fromkeys(('objects', 'archives', 'containers', 'accounts'), 0)
wrong = []


def hashes_below(kind):
    """By name hash: the folders of it, by device."""
    found = defaultdict(dict)
    for device, folder in devices.items():
        for path, folders, files in os.walk(os.path.join(folder, kind)):
            name = os.path.basename(path)
            if len(name) == 32:
                folders.clear()
                if files:
                    found[name][device] = path
    return found


def partition_of(ring, name_hash):
    return int(name_hash[:8], 16) >> ring._part_shift


def in_place(what, ring, name_hash, folders):
    """The primaries, if the folders are theirs."""
    primaries = {node['device']: node for node in ring.get_part_nodes(
        partition_of(ring, name_hash))}
    if set(primaries) != set(folders):
        wrong.append('%s %s is on %s, its partition on %s' % (
            what, name_hash, sorted(folders), sorted(primaries)))
        return None
    return primaries


def content_of(path):
    md5 = hashlib.md5()
    with open(path, 'rb') as content:
        while chunk := content.read(1 << 16):
            md5.update(chunk)
    return md5.hexdigest()


def fragment_is_wrong(info, path, primary):
    if info['frag_index'] != primary['index']:
        return 'has fragment %s in the place of %s' % (info['frag_index'], primary['index'])
    if not info['durable']:
        return 'is not durable'
    return None


def look_at_objects(policy):
    ring = Ring(swift_dir, ring_name=policy.ring_name)
    manager = diskfile.DiskFileRouter({}, logging.getLogger('none'))[policy]
    coded = policy.policy_type == 'erasure_coding'
    for name_hash, folders in hashes_below(diskfile.get_data_dir(policy)).items():
        versions = {}
        for device, folder in folders.items():
            files = manager.get_ondisk_files(os.listdir(folder), folder, policy=policy)
            for unexpected in files.get('unexpected', []):
                wrong.append('unexpected: ' + unexpected)
            versions[device] = files
        deleted = any(files['ts_file'] for files in versions.values())
        primaries = in_place('deleted object' if deleted else 'object', ring, name_hash, folders)
        if not primaries:
            continue
        told = set()
        for device, files in versions.items():
            data = files['data_file']
            if data and coded:
                why = fragment_is_wrong(files['data_info'], data, primaries[device])
                if why:
                    wrong.append('%s %s' % (data, why))
            metadata = diskfile.read_metadata(data) if data else {}
            etag = metadata.get('ETag')
            if data and etag != content_of(data):
                wrong.append('%s: the content is not that of its ETag' % data)
            if data and coded:
                etag = metadata.get('X-Object-Sysmeta-Ec-Etag')
            posted = files['meta_file'] and sorted(diskfile.read_metadata(files['meta_file']).items())
            # A fragment's name says which it is.
            names = ['%s' % os.path.basename(files[kind] or '').split('#')[0].split('.data')[0]
                     for kind in ('data_file', 'meta_file', 'ts_file')]
            told.add(json.dumps([names, etag, posted]))
        if len(told) > 1:
            wrong.append('object %s differs: %s' % (name_hash, ' '.join(sorted(told))))
        if not deleted:
            counts['archives' if coded else 'objects'] += 1


def rows_of(broker, kind):
    if kind == 'container':
        rows = broker.list_objects_iter(10 ** 6, '', '', '', '')
    else:
        rows = broker.list_containers_iter(10 ** 6, '', '', '', '', False)
    return [list(row) for row in rows]


def look_at_databases(kind, broker_class):
    ring = Ring(swift_dir, ring_name=kind)
    for name_hash, folders in hashes_below(kind + 's').items():
        primaries = in_place(kind, ring, name_hash, folders)
        if not primaries:
            continue
        told = set()
        for device, folder in folders.items():
            broker = broker_class(os.path.join(folder, name_hash + '.db'))
            info = broker.get_info()
            # A replica that learns of a deletion from its times does not note it as its status.
            for own in ('status', 'id', 'hash', 'reported_put_timestamp', 'reported_delete_timestamp',
                        'reported_object_count', 'reported_bytes_used', 'created_at',
                        'status_changed_at', 'db_state'):
                info.pop(own, None)
            metadata = {name: value for name, value in broker.metadata.items()
                        if not name.startswith('X-Container-Sysmeta-Shard-')}
            told.add(json.dumps([broker.is_deleted(), info, metadata, rows_of(broker, kind)],
                                sort_keys=True))
        if len(told) > 1:
            wrong.append('%s %s differs:\n  %s' % (kind, name_hash, '\n  '.join(
                text[:600] for text in sorted(told))))
        counts[kind + 's'] += 1


for policy in POLICIES:
    look_at_objects(policy)
look_at_databases('container', ContainerBroker)
look_at_databases('account', AccountBroker)
print(json.dumps(dict(counts, wrong=wrong)))
