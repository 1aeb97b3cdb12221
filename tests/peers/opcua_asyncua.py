"""OPC UA servers and discovery servers by asyncua. Says `ready` when all is there, and runs until it is killed.

The argument is JSON:
  url       where it listens
  uri, name, type   what it says of itself; type as in ua.ApplicationType, by default Server
  register  URL of a discovery server to register with
  entries   list of {uri, name, urls} that it lists as registered, whether they exist or not; with {count}, so many of the
            kind, their URIs numbered
  farm      number of servers it lists, all of them there: urn:farm:<n> on the port after its own, at 127.1.0.0 and on
"""

import asyncio
import ipaddress
import json
import logging
import resource
import sys
from copy import copy
from urllib.parse import urlsplit

from asyncua import Server, ua

FARM = int(ipaddress.ip_address("127.1.0.0"))
WITHOUT_SECURITY = [ua.SecurityPolicyType.NoSecurity]


async def server(url, uri, name, kind):
    server = Server()
    await server.init()
    server.set_endpoint(url)
    server.set_server_name(name)
    await server.set_application_uri(uri)
    server.application_type = ua.ApplicationType[kind]
    server.set_security_policy(WITHOUT_SECURITY)
    return server


def registered(uri, name, urls):
    entry = ua.RegisteredServer()
    entry.ServerUri, entry.ServerNames, entry.DiscoveryUrls = uri, [ua.LocalizedText(name)], urls
    entry.ProductUri, entry.ServerType, entry.IsOnline = "urn:peers", ua.ApplicationType.Server, True
    return entry


def all_registered(uri, name, urls, count=None):
    uris = [uri] if count is None else [f"{uri}:{number}" for number in range(count)]
    return [registered(uri, name, urls) for uri in uris]


async def farm(count, port):
    """One server that is `count` of them: what it says it is goes by the address it is asked at."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    many = await server(f"opc.tcp://127.1.0.0:{port}/", "urn:farm", "farm", "Server")
    original = many.iserver.get_endpoints

    async def get_endpoints(params=None, sockname=None):
        endpoints = await original(params, sockname)
        number = int(ipaddress.ip_address(sockname[0])) - FARM
        for endpoint in endpoints:
            endpoint.Server = copy(endpoint.Server)
            endpoint.Server.ApplicationUri = f"urn:farm:{number}"
        return endpoints

    many.iserver.get_endpoints = get_endpoints
    addresses = [str(ipaddress.ip_address(FARM + number)) for number in range(count)]
    many.socket_address = (addresses, port)  # a socket for each, rather than one that others can reach
    urls = [f"opc.tcp://{address}:{port}/" for address in addresses]
    return many, [registered(f"urn:farm:{number}", f"farm {number}", [url]) for number, url in enumerate(urls)]


async def main(wanted):
    here = await server(wanted["url"], wanted["uri"], wanted["name"], wanted.get("type", "Server"))
    entries = [one for entry in wanted.get("entries", []) for one in all_registered(**entry)]
    if "farm" in wanted:
        many, listed = await farm(wanted["farm"], urlsplit(wanted["url"]).port + 1)
        await many.start()
        entries += listed
    for entry in entries:
        here.iserver.register_server(entry)
    await here.start()
    if "register" in wanted:
        await here.register_to_discovery(wanted["register"], period=0)
    print("ready", flush=True)
    await asyncio.Event().wait()


logging.disable(logging.CRITICAL)
asyncio.run(main(json.loads(sys.argv[1])))
