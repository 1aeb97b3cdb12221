"""A discovery handler on grpclib, a gRPC stack in pure Python: each file in the directory of discoveryDetails is a device.

remote_grpclib.py NAME, with DISCOVERY_HANDLERS_DIRECTORY in the environment.
"""
import asyncio
import os
import sys
from pathlib import Path

import grpc
from grpclib import GRPCError, Status
from grpclib.client import Channel, UnaryUnaryMethod
from grpclib.const import Cardinality, Handler
from grpclib.server import Server

sys.path.append(str(Path(__file__).resolve().parents[2] / "proto"))
messages = grpc.protos("discovery.proto")


class Discovery:
    async def discover(self, stream):
        request = await stream.recv_message()
        directory = Path(request.discovery_details.strip())
        if not directory.is_absolute():
            raise GRPCError(Status.INVALID_ARGUMENT, f"'{directory}' is not an absolute path")
        sent = None
        while True:
            names = sorted(os.listdir(directory)) if directory.is_dir() else []
            if names != sent:
                devices = [messages.Device(id=name, properties={"FILE": name}) for name in names]
                await stream.send_message(messages.DiscoverResponse(devices=devices))
                sent = names
            await asyncio.sleep(0.2)

    def __mapping__(self):
        request, response = messages.DiscoverRequest, messages.DiscoverResponse
        return {"/v0.DiscoveryHandler/Discover": Handler(self.discover, Cardinality.UNARY_STREAM, request, response)}


async def register(name, directory, socket):
    agent = f"{directory}/agent-registration.sock"
    while not os.path.exists(agent):
        await asyncio.sleep(0.2)
    channel = Channel(path=agent)
    types = messages.RegisterDiscoveryHandlerRequest, messages.Empty
    request = types[0](name=name, endpoint=str(socket), shared=False)
    await UnaryUnaryMethod(channel, "/v0.Registration/RegisterDiscoveryHandler", *types)(request)
    channel.close()


async def main():
    name, directory = sys.argv[1], os.environ["DISCOVERY_HANDLERS_DIRECTORY"]
    socket = Path(directory) / f"{name}.sock"
    socket.unlink(missing_ok=True)
    server = Server([Discovery()])
    await server.start(path=str(socket))
    await register(name, directory, socket)
    await server.wait_closed()


asyncio.run(main())
