"""A Modbus/TCP server by pymodbus: modbus_server.py ADDRESS PORT VENDOR PRODUCT"""

import asyncio
import sys

from pymodbus import ModbusDeviceIdentification
from pymodbus.server import ModbusTcpServer
from pymodbus.simulator import DataType, SimData, SimDevice

address, port, vendor, product = sys.argv[1:]


async def serve():
    registers = [SimData(address=0, count=10, values=1, datatype=DataType.REGISTERS)]
    identity = ModbusDeviceIdentification(
        info_name={"VendorName": vendor, "ProductCode": product, "MajorMinorRevision": "2.1"}
    )
    devices = [SimDevice(id=1, simdata=registers)]
    server = ModbusTcpServer(devices, identity=identity, address=(address, int(port)))
    await server.serve_forever(background=True)
    print("ready", flush=True)
    await asyncio.Event().wait()


asyncio.run(serve())
