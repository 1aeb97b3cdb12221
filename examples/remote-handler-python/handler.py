#!/usr/bin/env python3
"""A discovery handler as a process of its own: each file in a directory is a device.

The directory is what a Configuration says in discoveryDetails. Run it beside the agent:

    pip install grpcio grpcio-tools
    DISCOVERY_HANDLERS_DIRECTORY=/var/lib/akri ./handler.py files
"""
import os
import sys
import time
from concurrent import futures
from pathlib import Path

import grpc

sys.path.append(str(Path(__file__).resolve().parents[2] / "proto"))
messages, services = grpc.protos_and_services("discovery.proto")


class Handler(services.DiscoveryHandlerServicer):
    def Discover(self, request, context):
        """Each message is the full list; one is sent whenever it has changed, until the agent hangs up."""
        directory = Path(request.discovery_details.strip())
        if not directory.is_absolute():
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"'{directory}' is not an absolute path")
        sent = None
        while context.is_active():
            names = sorted(path.name for path in directory.iterdir()) if directory.is_dir() else []
            if names != sent:
                devices = [messages.Device(id=name, properties={"FILE": name}) for name in names]
                yield messages.DiscoverResponse(devices=devices)
                sent = names
            time.sleep(0.2)


def main():
    name = sys.argv[1] if len(sys.argv) > 1 else "files"
    directory = Path(os.environ.get("DISCOVERY_HANDLERS_DIRECTORY", "/var/lib/akri"))
    socket = directory / f"{name}.sock"  # by this name the agent finds it even if it has lost its memory
    socket.unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16))  # one thread for each Configuration
    services.add_DiscoveryHandlerServicer_to_server(Handler(), server)
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    agent = services.RegistrationStub(grpc.insecure_channel(f"unix:{directory}/agent-registration.sock"))
    request = messages.RegisterDiscoveryHandlerRequest(name=name, endpoint=str(socket), shared=False)
    agent.RegisterDiscoveryHandler(request, wait_for_ready=True)  # the agent remembers it
    server.wait_for_termination()


if __name__ == "__main__":
    main()
