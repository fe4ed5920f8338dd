"""Certificates in files, as a port under TLS wants them."""

from __future__ import annotations

from pathlib import Path

import trustme


def write_papers(folder: Path, authority: trustme.CA, own: trustme.LeafCert) -> dict[str, str]:
    """Write a certificate with its chain, its key, and who vouches for it; return each file by its key of `[tls]`."""
    files = {key: str(folder / key) for key in ("certificate", "key", "client_ca")}
    Path(files["certificate"]).write_bytes(b"".join(each.bytes() for each in own.cert_chain_pems))
    Path(files["key"]).write_bytes(own.private_key_pem.bytes())
    Path(files["client_ca"]).write_bytes(authority.cert_pem.bytes())
    return files
