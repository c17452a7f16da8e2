"""What becomes of every directive of ssh_config: it holds, or is left out in silence, or is refused by name.

Left out is what only adds something to a connection (forwardings, a shared connection, further ways to log
in, what a terminal shows) or changes how it is carried and not where it leads or what it lets in. What is
in none of the three lists is newer than they are: it is refused where somebody has set it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vdisagg.errors import SshOptionRefused

if TYPE_CHECKING:
    from collections.abc import Callable

    from vdisagg.launch.ssh.settings import Settings

_HOLD = frozenset(
    (
        *("addressfamily", "bindaddress", "ciphers", "connecttimeout", "globalknownhostsfile"),
        *("hashknownhosts", "host", "hostkeyalgorithms", "hostkeyalias", "hostname"),
        *("identitiesonly", "identityagent", "identityfile", "kexalgorithms", "macs", "port"),
        *("proxycommand", "proxyjump", "pubkeyacceptedalgorithms", "requiredrsasize"),
        *("serveralivecountmax", "serveraliveinterval", "setenv", "stricthostkeychecking"),
        *("user", "userknownhostsfile"),
        # OpenSSH itself has done these before it prints what it would do.
        *("canonicaldomains", "canonicalizefallbacklocal", "canonicalizehostname"),
        *("canonicalizemaxdots", "canonicalizepermittedcnames", "ignoreunknown", "tag"),
    )
)
_LEFT_OUT = frozenset(
    (
        # Further ways to log in, and what they need.
        *("enablesshkeysign", "gssapiauthentication", "gssapiclientidentity"),
        *("gssapidelegatecredentials", "gssapikexalgorithms", "gssapikeyexchange"),
        *("gssapirenewalforcesrekey", "gssapiserveridentity", "gssapitrustdns"),
        *("hostbasedacceptedalgorithms", "hostbasedauthentication"),
        *("kbdinteractiveauthentication", "kbdinteractivedevices", "numberofpasswordprompts"),
        *("passwordauthentication", "securitykeyprovider"),
        "casignaturealgorithms",  # of certificates of hosts, which are not believed in any case
        "nohostauthenticationforlocalhost",  # checked all the same; a refusal says what to do
        # Forwardings.
        *("clearallforwardings", "dynamicforward", "exitonforwardfailure", "forwardagent"),
        *("forwardx11", "forwardx11timeout", "forwardx11trusted", "gatewayports", "localforward"),
        *("permitremoteopen", "remoteforward", "streamlocalbindmask", "streamlocalbindunlink"),
        *("tunnel", "tunneldevice", "xauthlocation"),
        # A shared connection, and what else is done on this machine.
        *("addkeystoagent", "controlmaster", "controlpath", "controlpersist", "localcommand"),
        *("permitlocalcommand", "updatehostkeys", "usekeychain"),
        # What is run there is ours to say, and a person's terminal has no part in it. SendEnv: what runs on
        # a node should not depend on who starts it.
        *("batchmode", "enableescapecommandline", "escapechar", "fingerprinthash"),
        *("forkafterauthentication", "loglevel", "logverbose", "obscurekeystroketiming"),
        *("remotecommand", "requesttty", "sendenv", "sessiontype", "stdinnull", "syslogfacility"),
        *("visualhostkey", "warnweakcrypto"),
        # How it is carried.
        *("channeltimeout", "compression", "connectionattempts", "ipqos", "rekeylimit"),
        *("tcpkeepalive", "versionaddendum"),
        # Of no meaning any more: OpenSSH passes over them too.
        *("afstokenpassing", "cipher", "compressionlevel", "fallbacktorsh", "protocol"),
        *("rhostsauthentication", "rhostsrsaauthentication", "rsaauthentication"),
        *("useblacklistedkeys", "useprivilegedport", "useroaming", "usersh"),
    )
)
_REFUSED = {
    "bindinterface": "BindInterface",
    "certificatefile": "CertificateFile",
    "checkhostip": "CheckHostIP",
    "knownhostscommand": "KnownHostsCommand",
    "pkcs11provider": "PKCS11Provider",
    "preferredauthentications": "PreferredAuthentications",
    "proxyusefdpass": "ProxyUseFdpass",
    "pubkeyauthentication": "PubkeyAuthentication",
    "refuseconnection": "RefuseConnection",
    "revokedhostkeys": "RevokedHostKeys",
    "verifyhostkeydns": "VerifyHostKeyDNS",
}
_INSTEAD = {
    "certificatefile": "put the certificate beside its key as KEY-cert.pub, or both into ssh-agent",
    "checkhostip": "set it to no: the key is looked up by the host's name alone",
    "knownhostscommand": "write the host key into a known_hosts file",
    "pkcs11provider": "put its keys into ssh-agent: `ssh-add -s LIBRARY`",
    "preferredauthentications": "let it contain publickey",
    "pubkeyauthentication": "set it to yes, and log in with a key",
    "revokedhostkeys": "write the keys into known_hosts, each with @revoked",
    "verifyhostkeydns": "set it to no or ask, and write the host key into a known_hosts file",
}
_TAKE_OUT = "take it out for this host"
_HARMLESS = ("none", "no", "false", "")


def refuse(where: str, host: str, said: Settings, unset: Callable[[], Settings]) -> None:
    """Raises SshOptionRefused that names every directive which is set for a host and is not supported.

    `where` begins each line. `unset`: the settings as they are where no file says anything; asked for only
    where something is to be refused, since a default is nobody's wish.
    """
    suspects = {
        keyword: values
        for keyword, values in said.items()
        if not _is_fine(keyword, " ".join(values))
    }
    if not suspects:
        return
    defaults = unset()
    faults = [
        f"{where}: ssh_config sets `{_REFUSED.get(keyword, keyword)} {' '.join(values)}` for {host}, which is "
        f"not supported; next: {_INSTEAD.get(keyword, _TAKE_OUT)}"
        for keyword, values in suspects.items()
        if values != defaults.get(keyword)
    ]
    if faults:
        raise SshOptionRefused("\n".join(faults))


def is_known(keyword: str) -> bool:
    """Whether somebody has decided what becomes of a directive; it is in lower case."""
    return keyword in _HOLD or keyword in _LEFT_OUT or keyword in _REFUSED


def _is_fine(keyword: str, value: str) -> bool:
    if keyword not in _REFUSED:
        return is_known(keyword)
    if keyword == "preferredauthentications":
        return not value or "publickey" in value.split(",")
    if keyword == "pubkeyauthentication":
        return value not in ("no", "false")
    if keyword == "verifyhostkeydns" and value == "ask":
        return True  # nobody is asked here, so that it means no
    return value in _HARMLESS
