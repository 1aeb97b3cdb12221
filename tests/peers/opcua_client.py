"""What a round of the opcua handler asks, asked by asyncua's client: the servers of a discovery server, and the endpoints
of each, 32 at once. Prints how many answered as themselves and the seconds it took, once for each round.

The arguments are the URL of the discovery server and the number of rounds.
"""

import asyncio
import logging
import sys
import time

from asyncua import Client

IN_FLIGHT = 32


async def is_there(server, turns):
    async with turns:
        endpoints = await Client(server.DiscoveryUrls[0]).connect_and_get_server_endpoints()
        return any(endpoint.Server.ApplicationUri == server.ApplicationUri for endpoint in endpoints)


async def main(url, rounds):
    for _ in range(rounds):
        start = time.monotonic()
        servers = await Client(url).connect_and_find_servers()
        turns = asyncio.Semaphore(IN_FLIGHT)
        there = await asyncio.gather(*(is_there(server, turns) for server in servers if server.ApplicationType.value == 0))
        print(sum(there), time.monotonic() - start, flush=True)


logging.disable(logging.CRITICAL)
asyncio.run(main(sys.argv[1], int(sys.argv[2])))
