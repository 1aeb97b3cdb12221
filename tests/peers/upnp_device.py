"""A UPnP device by async-upnp-client: upnp_device.py ADDRESS PORT DEVICE_TYPE UUID. A line on standard input ends it with a goodbye."""

import asyncio
import sys
from xml.etree import ElementTree

from async_upnp_client.const import DeviceInfo
from async_upnp_client.server import UpnpServer, UpnpServerDevice

address, port, device_type, uuid = sys.argv[1:]


class Device(UpnpServerDevice):
    DEVICE_DEFINITION = DeviceInfo(
        device_type=device_type,
        friendly_name="Speaker",
        manufacturer="Acme",
        manufacturer_url=None,
        model_description=None,
        model_name="S7",
        model_number=None,
        model_url=None,
        serial_number="1",
        udn=f"uuid:{uuid}",
        upc=None,
        presentation_url=None,
        url="/device.xml",
        icons=[],
        xml=ElementTree.Element("device"),
    )
    EMBEDDED_DEVICES = []
    SERVICES = []


async def serve():
    server = UpnpServer(Device, source=(address, 0), http_port=int(port))
    await server.async_start()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    await server.async_stop()


asyncio.run(serve())
