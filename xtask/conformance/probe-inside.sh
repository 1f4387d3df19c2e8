#!/bin/bash
# Runs inside namespaces of its own (mounts, network, processes): a machine with nothing on it but
# what the folder $1 brings. The rest of the arguments is the command to run there.
set -e
home=$1
shift
ip link set lo up
# The machine's own /etc stays as it is.
[ -d "$home/etc" ] || cp -a /etc "$home/etc"
mount --bind "$home/etc" /etc
rm -rf /etc/swift
cp -r "$home/swift" /etc/swift
mount --bind "$home/srv" /srv
mount -t tmpfs tmpfs /run
mkdir -p /run/swift /run/lock
rsync --daemon --config="$home/rsyncd.conf"
memcached -d -u root -l 127.0.0.1 -p 11211
export PATH="$home/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Not exec: this shell is the first process here, and takes care of those that lost their parent.
status=0
"$@" || status=$?
exit "$status"
