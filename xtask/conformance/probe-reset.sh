#!/bin/bash
# resetswift and swift-orphans of the probe tests: kills what is left of Swift's programs in this
# process namespace; under the first name it also empties devices and caches.
for process in /proc/[0-9]*; do
    read -r -d '' name < "$process/cmdline" 2>/dev/null || continue
    case "${name##*/}" in
    swift-orphans) ;;
    swift-*) kill -KILL "${process#/proc/}" 2>/dev/null ;;
    esac
done
[ "${0##*/}" = resetswift ] || exit 0
rm -rf /run/swift/* /srv/*/node/* /srv/cache/*/*
for node in 1 2 3 4; do
    mkdir -p "/srv/$node/node/sdb$node" "/srv/$node/node/sdb$((node + 4))"
    mkdir -p "/srv/cache/$node"
done
exec 3<>/dev/tcp/127.0.0.1/11211
printf 'flush_all\r\nquit\r\n' >&3
cat <&3 > /dev/null
