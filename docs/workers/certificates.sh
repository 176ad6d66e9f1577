#!/bin/sh
# Makes a certificate authority in this folder, and certificates for the machine that trains and for each named host:
# ./certificates.sh one.internal two.internal
# Workers admit every certificate that ca.key signs: keep it off all of these machines.
set -eu
umask 077
openssl req -x509 -newkey ed25519 -nodes -days 365 -subj "/CN=tff-mf workers" -keyout ca.key -out ca.pem
for host in train "$@"; do
    usage=serverAuth
    [ "$host" != train ] || usage=clientAuth
    openssl req -newkey ed25519 -nodes -subj "/CN=$host" -keyout "$host.key" -out "$host.csr"
    printf 'subjectAltName=DNS:%s\nextendedKeyUsage=%s\n' "$host" "$usage" > "$host.ext"
    openssl x509 -req -days 365 -in "$host.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -extfile "$host.ext" -out "$host.crt"
    cat "$host.key" "$host.crt" > "$host.pem"
    rm "$host.key" "$host.csr" "$host.ext" "$host.crt"
done
