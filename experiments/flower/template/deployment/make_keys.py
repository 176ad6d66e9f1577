"""Makes keys for a test on one machine: a certificate authority, the SuperLink's certificate, a key for each node.

python deployment/make_keys.py FOLDER NODES [HOST ...]. In production, each node makes its own key and sends the public
part to the operator, who registers it with `flwr supernode register`; no key leaves the machine that it is of.
"""

import datetime
import ipaddress
import pathlib
import sys

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAYS = 30


def main() -> None:
    """Writes ca.crt, server.pem, server.key, and node-N, node-N.pub for each node."""
    folder, nodes, hosts = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] or ["localhost", "127.0.0.1"]
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    basic = x509.BasicConstraints(ca=True, path_length=0)
    ca = _certificate(issuer, issuer, authority).add_extension(basic, critical=True).sign(authority, hashes.SHA384())
    names = x509.SubjectAlternativeName([_general(host) for host in hosts])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    certificate = _certificate(subject, issuer, server).add_extension(names, critical=False)
    (folder / "ca.crt").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    signed = certificate.sign(authority, hashes.SHA384())
    (folder / "server.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    _secret(folder / "server.key", server.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain))
    for number in range(nodes):
        key = ec.generate_private_key(ec.SECP384R1())
        _secret(folder / f"node-{number}", key.private_bytes(pem, serialization.PrivateFormat.OpenSSH, plain))
        public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        (folder / f"node-{number}.pub").write_bytes(public + b"\n")


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
    )


def _general(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _secret(path: pathlib.Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


if __name__ == "__main__":
    main()
