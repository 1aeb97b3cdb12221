"""An ONVIF camera by ipycam: ipycam_camera.py ADDRESS PORT SERIAL [USER PASSWORD]"""

import logging
import signal
import sys

from ipycam import CameraConfig, IPCamera

logging.disable(logging.CRITICAL)
address, port, serial, *credentials = sys.argv[1:]
username, password = credentials or ("", "")
config = CameraConfig(
    name="Peer",
    serial_number=serial,
    local_ip=address,
    onvif_port=int(port),
    rtsp_port=int(port) + 1000,
    web_port=int(port) + 2000,
    username=username,
    password=password,
    main_width=320,
    main_height=240,
    main_fps=5,
    sub_width=160,
    sub_height=120,
)
output, sys.stdout = sys.stdout, sys.stderr  # it prints
camera = IPCamera(config)
camera.start()
print("ready", file=output, flush=True)
signal.pause()
