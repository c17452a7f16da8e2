"""Which keys ssh_config lets be used: of ours PubkeyAcceptedAlgorithms says it, of both sides' RequiredRSASize."""

from __future__ import annotations

import struct

RSA = ("rsa-sha2-512", "rsa-sha2-256")
"""The algorithms for keys of type ssh-rsa: SHA-1 is not used any more."""
_CERTIFICATE = "-cert-v01@openssh.com"


def string(data: bytes) -> tuple[bytes, bytes]:
    """The first string of SSH's wire format, and what follows. Raises ValueError or struct.error."""
    (length,) = struct.unpack_from(">I", data)
    if length > len(data) - 4:
        raise ValueError("cut short")
    return data[4 : 4 + length], data[4 + length :]


def signatures(kind: str) -> dict[str, str]:
    """The algorithms that a key of this type may log in with, each with the name of the signature alone."""
    plain = kind.removesuffix(_CERTIFICATE)
    tail = kind[len(plain) :]
    return {f"{name}{tail}": name for name in (RSA if plain == "ssh-rsa" else (plain,))}


def allowed(public: bytes, algorithms: tuple[str, ...]) -> tuple[str, ...]:
    """The signatures that a key may log in with. `algorithms`: what may be used; empty: all."""
    return tuple(
        plain
        for name, plain in signatures(_kind(public)).items()
        if not algorithms or name in algorithms
    )


def _kind(public: bytes) -> str:
    try:
        return string(public)[0].decode(errors="replace")
    except (ValueError, struct.error):
        return ""


def rsa_bits(public: bytes) -> int | None:
    """The length of an RSA key, also one in a certificate; None for what is none.

    RFC 4253, 6.6: kind, e, n; in a certificate a nonce comes after the kind (PROTOCOL.certkeys).
    """
    try:
        kind, rest = string(public)
        if kind == b"ssh-rsa" + _CERTIFICATE.encode():
            _, rest = string(rest)
        elif kind != b"ssh-rsa":
            return None
        _, rest = string(rest)
        return int.from_bytes(string(rest)[0], "big").bit_length()
    except (ValueError, struct.error):
        return None


def why_not(public: bytes, algorithms: tuple[str, ...], required_rsa_bits: int) -> str:
    """Why a key of ours may not be tried; empty where it may."""
    if not allowed(public, algorithms):
        wanted = " or ".join(signatures(_kind(public)))
        return f"PubkeyAcceptedAlgorithms of ssh_config does not have {wanted}"
    bits = rsa_bits(public)
    if bits is not None and bits < required_rsa_bits:
        return f"it has {bits} bits, RequiredRSASize of ssh_config is {required_rsa_bits}"
    return ""
