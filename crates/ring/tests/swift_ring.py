"""Runs OpenStack Swift's own ring code for the upstream test.

One JSON request on standard input, one JSON answer on standard output.

  {"do": "look_up", "ring": PATH, "names": [[account, container, object], ...], "handoffs": N}
      -> [[partition, [primary ids], [first N handoff ids]], ...]
  {"do": "build", "steps": [[verb, arguments...], ...]}
      -> for each "rebalance" step {"changed", "balance", "removed", "dispersion", "table"}
"""
import json
import sys
from itertools import islice

from swift.common import utils
from swift.common.ring import Ring, RingBuilder
from swift.common.ring import builder as builder_module

utils.HASH_PATH_PREFIX = b''
utils.HASH_PATH_SUFFIX = b'endcap'
if hasattr(utils, 'config'):
    for name in ('HASH_PATH_PREFIX', 'HASH_PATH_SUFFIX'):
        if hasattr(utils.config, name):
            setattr(utils.config, name, getattr(utils, name))


def look_up(request):
    ring = Ring(request['ring'], reload_time=1 << 30)
    by_part = {}
    answer = []
    for account, container, obj in request['names']:
        part = ring.get_part(account, container, obj)
        if part not in by_part:
            primaries = ring.get_part_nodes(part)
            assert [n['index'] for n in primaries] == list(range(len(primaries)))
            handoffs = islice(ring.get_more_nodes(part), request['handoffs'])
            by_part[part] = ([n['id'] for n in primaries], [n['id'] for n in handoffs])
        answer.append([part, *by_part[part]])
    return answer


class Clock(object):
    now = 0

    def __call__(self):
        return self.now


def build(request):
    clock = builder_module.time = Clock()
    answer = []
    builder = None
    for verb, *arguments in request['steps']:
        if verb == 'create':
            builder = RingBuilder(*arguments)
        elif verb == 'add':
            builder.add_dev(arguments[0])
        elif verb == 'weight':
            builder.set_dev_weight(*arguments)
        elif verb == 'remove':
            builder.remove_dev(*arguments)
        elif verb == 'zone':
            builder.set_dev_zone(*arguments)
        elif verb == 'replicas':
            builder.set_replicas(*arguments)
        elif verb == 'overload':
            builder.set_overload(*arguments)
        elif verb == 'pretend':
            builder.pretend_min_part_hours_passed()
        elif verb == 'rebalance':
            seed, clock.now = arguments
            changed, balance, removed = builder.rebalance(seed=seed)
            builder.validate()
            answer.append({
                'changed': changed, 'balance': balance, 'removed': removed,
                'dispersion': builder.dispersion,
                'required_overload': builder.get_required_overload(),
                'version': builder.version,
                'table': [list(row) for row in builder._replica2part2dev]})
        elif verb == 'save':
            path, version = arguments
            builder.get_ring().save(path, format_version=version)
        else:
            raise ValueError(verb)
    return answer


request = json.load(sys.stdin)
json.dump({'look_up': look_up, 'build': build}[request['do']](request), sys.stdout)
