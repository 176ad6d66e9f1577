#!/bin/sh
# A worker in a network of its own, and a socket that leads to it: ./worker.sh /run/tff-mf/own.sock
# Both end together. Needs util-linux, iproute2 and socat.
set -eu
umask 077
exec unshare --map-root-user --net sh -c '
    ip link set lo up
    setpriv --pdeathsig TERM socat "UNIX-LISTEN:$1,fork,unlink-early" TCP:127.0.0.1:7000,nodelay &
    exec tff-mf worker --port 7000' sh "$1"
