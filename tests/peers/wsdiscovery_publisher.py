"""Presents a camera by WSDiscovery: wsdiscovery_publisher.py URL. Its device service is somebody else's."""

import ipaddress
import signal
import socket
import sys

import wsdiscovery.threaded
from wsdiscovery import QName, Scope
from wsdiscovery.publishing import ThreadedWSPublishing

# It leaves the loopback interface out, and a test's network has no other.
wsdiscovery.threaded._getNetworkAddrs = lambda family: (
    [ipaddress.ip_address("127.0.0.1")] if family == socket.AF_INET else []
)
publisher = ThreadedWSPublishing()
publisher.start()
publisher.publishService(
    types=[QName("http://www.onvif.org/ver10/network/wsdl", "NetworkVideoTransmitter")],
    scopes=[Scope("onvif://www.onvif.org/name/Published")],
    xAddrs=[sys.argv[1]],
)
print("ready", flush=True)
signal.pause()
