"""The processes of a cluster as command lines and environment: engine, front end, controller."""

from __future__ import annotations

import json

from vdisagg.plan import device
from vdisagg.plan.connectors import Connector
from vdisagg.plan.model import Address, FrontEnd, Heartbeat, Process, Secret
from vdisagg.plan.site import LOOPBACK, Site
from vdisagg.topology import flags, vllm_flags
from vdisagg.topology.engines import Engine, merge_env

FRONT_END = "front-end"
CONTROLLER = "controller"
SHORTEST_PING_S = 1.0

FRONT_END_ARGS: dict[str, object] = {"enable-prompt-tokens-details": True}
"""As OpenAI's own API has it: how much of a prompt a prefix cache knew. The topology may say otherwise."""


def engine(
    site: Site,
    connector: Connector,
    wanted: Engine,
    gpus: tuple[int, ...],
    handshake: Address,
    ports: tuple[int, ...],
) -> Process:
    """One stock headless engine that dials the controller at `handshake`."""
    node, host = site.node(wanted.node), site.host(wanted.node)
    directory = site.directory(wanted.node, wanted.name)
    args = device.engine_flags(node.device, wanted.args) | wanted.args
    lease_s = site.topology.timeouts.lease_s
    transfer = connector.settings(wanted.role, device=node.device, lease_s=lease_s)
    # Whoever starts an engine by hand may do so in a container, without our files.
    far = site.is_far_from_controller(wanted.node)
    switches = (far or device.takes_switches(node.device)) and not wanted.manual
    env = device.engine_environment(node.device, args, switches=switches)
    if switches and far:  # loopback can't be a black hole
        env["VDISAGG_PING_S"] = _ping_s(site)
    env |= _stock_environment(site) | wanted.env
    # vLLM ignores --data-parallel-address where the data-parallel size is 1: the variable counts.
    # IPv6 literals go without brackets, here as in the flags: vLLM puts them where they belong.
    env |= {"VLLM_DP_MASTER_IP": handshake.host, "VLLM_HOST_IP": host}
    env |= connector.environment(Address(host, ports[0]))
    if gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus))
    if switches:
        env |= site.switches(wanted.node, directory, env)
    return Process(
        name=wanted.name,
        kind=wanted.role,
        node=wanted.node,
        argv=site.serve(
            wanted.node,
            (
                *_model(site),
                "--headless",
                *("--data-parallel-address", handshake.host),
                *("--data-parallel-rpc-port", str(handshake.port)),
                *("--kv-transfer-config", json.dumps(transfer, separators=(",", ":"))),
                *flags.words(args),
            ),
        ),
        env=env,
        directory=directory,
        secrets=_secrets(site, wanted.node),
        switches=switches,
    )


def front_end(site: Site, handshake: Address) -> FrontEnd:
    """The stock API server(s), waiting at `handshake` for one engine: the controller plays it."""
    spec = site.topology.front_end
    node_name = spec.node or ""
    node = site.node(node_name)
    directory = site.directory(node_name, FRONT_END)
    shared = {
        name: value
        for name, value in site.topology.engine.args.items()
        if not concerns_engines_only(name)
    }
    args = flags.merge((FRONT_END_ARGS, shared, spec.args))
    count = spec.api_server_count
    reached_at = "" if node.local else site.host(node_name)
    http = Address(spec.host or reached_at or LOOPBACK, spec.port)
    env = device.front_end_environment(node.device) | _stock_environment(site)
    env |= merge_env(node.env, spec.env)
    env["VDISAGG_CHANNEL"] = "1"  # a restarted controller takes the dead one's place
    env |= site.switches(node_name, directory, env)
    secrets = _secrets(site, node_name)
    if spec.api_key is not None:
        key = Secret("VLLM_API_KEY", from_env=spec.api_key.env, from_file=spec.api_key.file)
        secrets = (*secrets, key)
    process = Process(
        name=FRONT_END,
        kind="front_end",
        node=node_name,
        argv=site.serve(
            node_name,
            (
                *_model(site),
                *("--host", http.host),
                *("--port", str(http.port)),
                *("--data-parallel-size-local", "0"),
                *("--middleware", "vdisagg_ids.RequestIds"),
                *("--middleware", "vdisagg_health.Health"),
                *("--data-parallel-address", handshake.host),
                *("--data-parallel-rpc-port", str(handshake.port)),
                *(("--api-server-count", str(count)) if count > 1 else ()),
                *flags.words(args),
            ),
        ),
        env=env,
        directory=directory,
        secrets=secrets,
        switches=True,
    )
    name = site.topology.served_model_name
    return FrontEnd(process, http, handshake, count, name, reached_at)


def controller(site: Site) -> Process:
    """Our own process. On another machine its package lies in its directory, with its record."""
    node = site.topology.controller.node or ""
    directory = site.directory(node, CONTROLLER)
    env = {"PYTHONUNBUFFERED": "1"}
    if site.node(node).local:
        here = site.here
        argv: tuple[str, ...] = (here.python, "-m", "vdisagg.control", str(here.state_directory))
    else:
        argv = site.vllm_python(node, ("-m", "vdisagg.control", directory))
        env["PYTHONPATH"] = f"{directory}/package"
    return Process(
        name=CONTROLLER,
        kind="controller",
        node=node,
        argv=argv,
        env=env,
        directory=directory,
    )


def tunnel(site: Site, to: str) -> Process:
    """Our own process that carries the control addresses of a node's instances through SSH."""
    node = site.topology.controller.node or ""
    name = f"tunnel-{to}"
    return Process(
        name=name,
        kind="tunnel",
        node=node,
        argv=(site.here.python, "-m", "vdisagg.launch.tunnel", str(site.here.state_directory), to),
        env={"PYTHONUNBUFFERED": "1"},
        directory=site.directory(node, name),
    )


def concerns_engines_only(name: str) -> bool:
    """Whether a flag that holds for all engines is not said to the front end."""
    flag = flags.flag_of(name).partition(".")[0]
    return flag in vllm_flags.ENGINE_ONLY or flag == "enforce-eager"


def _ping_s(site: Site) -> str:
    """Seconds between two pings of an engine: it notices within 2.5 times that that nothing comes back."""
    limit_s = Heartbeat(**site.topology.heartbeat.model_dump()).limit_s
    return f"{max(SHORTEST_PING_S, limit_s / 3):g}"


def _model(site: Site) -> tuple[str, ...]:
    return (site.topology.model, "--served-model-name", site.topology.served_model_name)


def _stock_environment(site: Site) -> dict[str, str]:
    offline = {"HF_HUB_OFFLINE": "1"} if site.topology.model_is_path else {}
    return {"VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1"} | offline


def _secrets(site: Site, node_name: str) -> tuple[Secret, ...]:
    return tuple(Secret(name, from_env=name) for name in site.node(node_name).secrets)
