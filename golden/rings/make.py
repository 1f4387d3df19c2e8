"""Makes the golden rings with OpenStack Swift's own code: `python make.py` in this folder.

Needs a Python that can `import swift`. The steps are repeated in crates/ring/tests/golden.rs,
which also checks that Cairn's builder comes to the same placement.
"""
import json

from swift.common import utils
from swift.common.ring import Ring, RingBuilder
from swift.common.ring import builder as builder_module

utils.HASH_PATH_SUFFIX = b'endcap'
builder_module.time = lambda: 1700000000


def make(name, replicas, versions):
    builder = RingBuilder(6, replicas, 1)
    for region, zone, host, disk, weight in [
            (1, 1, 1, 0, 100), (1, 1, 1, 1, 50), (1, 1, 2, 0, 100), (1, 2, 1, 0, 75.5),
            (1, 2, 1, 1, 100), (2, 1, 1, 0, 100), (2, 1, 2, 0, 0), (2, 2, 1, 0, 120)]:
        builder.add_dev({
            'region': region, 'zone': zone, 'ip': '10.%d.%d.%d' % (region, zone, host),
            'port': 6200, 'replication_ip': 'fe80::%d' % zone, 'replication_port': 6300,
            'device': 'sd%d' % disk, 'weight': weight, 'meta': 'rack "7" \u00e9'})
    builder.rebalance(seed='golden')
    builder.remove_dev(1)
    builder.rebalance(seed='golden again')
    builder.validate()
    for version in versions:
        path = '%s-v%d.ring.gz' % (name, version)
        builder.get_ring().save(path, format_version=version)
    ring = Ring(path)
    builder._id = 'golden'
    builder.save(name + '.builder')
    return {
        'rings': ['%s-v%d.ring.gz' % (name, version) for version in versions],
        'replicas': replicas,
        'balance': builder.get_balance(),
        'names': [[name, ring.get_part(*name.split('/', 2))]
                  for name in ('a', 'a/c', 'a/c/o', 'a/c/o \u00e9', 'AUTH_test/c/x/y')],
        'nodes': [[[n['id'] for n in ring.get_part_nodes(part)],
                   [n['id'] for n in ring.get_more_nodes(part)]]
                  for part in range(64)],
    }


with open('look_ups.json', 'w') as out:
    json.dump([make('mixed', 3.0, (1, 2)), make('fractional', 3.25, (1, 2)),
               make('single', 1.0, (1, 2))], out)
