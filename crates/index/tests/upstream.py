"""Does to databases, with OpenStack Swift's own brokers, what it is told as JSON on stdin.

A command is {"kind": "container" | "account", "file": path, "do": [[name, arguments...]...]}.
The answer is the list of what each step gave.
"""
import json
import sqlite3
import sys

from swift.account.backend import AccountBroker
from swift.container.backend import ContainerBroker

# Tables as they were before storage policies.
OLD_CONTAINER = '''
    CREATE TABLE outgoing_sync (remote_id TEXT UNIQUE, sync_point INTEGER);
    CREATE TABLE incoming_sync (remote_id TEXT UNIQUE, sync_point INTEGER);
    CREATE TABLE object (
        ROWID INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, created_at TEXT,
        size INTEGER, content_type TEXT, etag TEXT, deleted INTEGER DEFAULT 0);
    CREATE INDEX ix_object_deleted_name ON object (deleted, name);
    CREATE TABLE container_stat (
        account TEXT, container TEXT, created_at TEXT,
        put_timestamp TEXT DEFAULT '0', delete_timestamp TEXT DEFAULT '0',
        object_count INTEGER, bytes_used INTEGER,
        reported_put_timestamp TEXT DEFAULT '0',
        reported_delete_timestamp TEXT DEFAULT '0',
        reported_object_count INTEGER DEFAULT 0,
        reported_bytes_used INTEGER DEFAULT 0,
        hash TEXT default '00000000000000000000000000000000',
        id TEXT, status TEXT DEFAULT '', status_changed_at TEXT DEFAULT '0');
    CREATE TRIGGER object_insert AFTER INSERT ON object BEGIN
        UPDATE container_stat SET object_count = object_count + (1 - new.deleted),
            bytes_used = bytes_used + new.size,
            hash = chexor(hash, new.name, new.created_at);
    END;
    CREATE TRIGGER object_delete AFTER DELETE ON object BEGIN
        UPDATE container_stat SET object_count = object_count - (1 - old.deleted),
            bytes_used = bytes_used - old.size,
            hash = chexor(hash, old.name, old.created_at);
    END;
    INSERT INTO container_stat (account, container, created_at, put_timestamp, id,
        object_count, bytes_used, status_changed_at)
        VALUES ('a', 'c', '0000000001.00000', '0000000001.00000', 'old', 0, 0, '0');
'''
OLD_ACCOUNT = '''
    CREATE TABLE outgoing_sync (remote_id TEXT UNIQUE, sync_point INTEGER);
    CREATE TABLE incoming_sync (remote_id TEXT UNIQUE, sync_point INTEGER);
    CREATE TABLE container (
        ROWID INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, put_timestamp TEXT,
        delete_timestamp TEXT, object_count INTEGER, bytes_used INTEGER,
        deleted INTEGER DEFAULT 0);
    CREATE INDEX ix_container_deleted_name ON container (deleted, name);
    CREATE TABLE account_stat (
        account TEXT, created_at TEXT,
        put_timestamp TEXT DEFAULT '0', delete_timestamp TEXT DEFAULT '0',
        container_count INTEGER, object_count INTEGER DEFAULT 0,
        bytes_used INTEGER DEFAULT 0,
        hash TEXT default '00000000000000000000000000000000',
        id TEXT, status TEXT DEFAULT '', status_changed_at TEXT DEFAULT '0');
    CREATE TRIGGER container_insert AFTER INSERT ON container BEGIN
        UPDATE account_stat SET container_count = container_count + (1 - new.deleted),
            object_count = object_count + new.object_count,
            bytes_used = bytes_used + new.bytes_used,
            hash = chexor(hash, new.name, new.put_timestamp || '-' ||
                new.delete_timestamp || '-' || new.object_count || '-' || new.bytes_used);
    END;
    CREATE TRIGGER container_delete AFTER DELETE ON container BEGIN
        UPDATE account_stat SET container_count = container_count - (1 - old.deleted),
            object_count = object_count - old.object_count,
            bytes_used = bytes_used - old.bytes_used,
            hash = chexor(hash, old.name, old.put_timestamp || '-' ||
                old.delete_timestamp || '-' || old.object_count || '-' || old.bytes_used);
    END;
    INSERT INTO account_stat (account, created_at, put_timestamp, id, container_count)
        VALUES ('a', '0000000001.00000', '0000000001.00000', 'old', 0);
'''


def old(path, script, table, rows):
    from swift.common.db import chexor
    conn = sqlite3.connect(path)
    conn.create_function('chexor', 3, chexor)
    conn.executescript(script)
    for row in rows:
        marks = ','.join('?' * len(row))
        conn.execute('INSERT INTO %s VALUES (NULL, %s)' % (table, marks), row)
    conn.commit()
    conn.close()


def step(broker, kind, name, *args):
    if name == 'initialize':
        broker.initialize(*args)
    elif name == 'put':
        for row in args[0]:
            (broker.put_object if kind == 'container' else broker.put_container)(*row)
    elif name == 'merge':
        broker.merge_items(args[0])
    elif name == 'old':
        script = OLD_CONTAINER if kind == 'container' else OLD_ACCOUNT
        old(broker._db_file, script, 'object' if kind == 'container' else 'container', args[0])
    elif name == 'metadata':
        broker.update_metadata(args[0])
    elif name == 'get_metadata':
        return broker.metadata
    elif name == 'delete':
        broker.delete_db(args[0])
    elif name == 'info':
        info = broker.get_info()
        info['deleted'] = broker.is_deleted()
        info['empty'] = broker.empty()
        return info
    elif name == 'policies':
        return broker.get_policy_stats()
    elif name == 'rows':
        return broker.get_items_since(-1, 1000000)
    elif name == 'shards':
        broker.merge_shard_ranges(args[0])
    elif name == 'begin':
        return broker.set_sharding_state()
    elif name == 'end':
        return broker.set_sharded_state()
    elif name == 'find':
        size, least, limit = args
        return broker.find_shard_ranges(size, limit=limit, minimum_shard_size=least)
    elif name == 'ranges':
        return [[dict(sr) for sr in broker.get_shard_ranges(
            marker=q['marker'], end_marker=q['end_marker'], includes=q['includes'],
            reverse=q['reverse'], include_deleted=q['include_deleted'], states=q['states'],
            include_own=q['include_own'], fill_gaps=q['fill_gaps'])] for q in args[0]]
    elif name == 'list':
        if kind == 'container':
            return [[list(row) for row in broker.list_objects_iter(
                q['limit'], q['marker'], q['end_marker'], q['prefix'], q['delimiter'],
                path=q['path'], reverse=q['reverse'], allow_reserved=q['allow_reserved'])]
                for q in args[0]]
        return [[list(row) for row in broker.list_containers_iter(
            q['limit'], q['marker'], q['end_marker'], q['prefix'], q['delimiter'],
            reverse=q['reverse'], allow_reserved=q['allow_reserved'])]
            for q in args[0]]
    else:
        raise ValueError(name)
    return None


def main():
    command = json.load(sys.stdin)
    kind = command['kind']
    if kind == 'container':
        broker = ContainerBroker(command['file'], account='a', container='c')
    else:
        broker = AccountBroker(command['file'], account='a')
    with broker:
        json.dump([step(broker, kind, *args) for args in command['do']], sys.stdout)


main()
