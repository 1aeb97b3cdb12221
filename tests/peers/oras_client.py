"""Pushes and pulls a component with the client of the ORAS project: oras_client.py push|pull REFERENCE DIRECTORY [CONFIG]."""

import os
import sys

import oras.client

action, reference, directory = sys.argv[1:4]
client = oras.client.OrasClient(insecure=True)
if action == "pull":
    for path in client.pull(target=reference, outdir=directory):
        print(path)
else:
    os.chdir(directory)
    config = f"{sys.argv[4]}:application/vnd.wasm.config.v0+json"
    client.push(target=reference, files=["component.wasm:application/wasm"], manifest_config=config)
