"""Announces services by zeroconf: mdns_services.py. Lines of JSON on standard input change them.

{"add": NAME, "type": TYPE, "port": PORT, "txt": {KEY: VALUE}} announces one, as does "update"; {"remove": NAME} says goodbye.
Each line is answered by "done" once it is on the network.
"""

import json
import sys

from zeroconf import ServiceInfo, Zeroconf

# The test's network has the loopback interface only.
zeroconf = Zeroconf(interfaces=["127.0.0.1"])
services = {}
print("ready", flush=True)


def service(name, fields):
    kind = fields["type"] + ".local."
    txt = {key: value.encode("latin-1") for key, value in fields["txt"].items()}
    return ServiceInfo(
        kind,
        f"{name}.{kind}",
        port=fields["port"],
        properties=txt,
        server="host.local.",
        parsed_addresses=["127.0.0.1"],
    )


for line in sys.stdin:
    fields = json.loads(line)
    if "add" in fields:
        services[fields["add"]] = service(fields["add"], fields)
        zeroconf.register_service(services[fields["add"]])
    elif "update" in fields:
        services[fields["update"]] = service(fields["update"], fields)
        zeroconf.update_service(services[fields["update"]])
    else:
        zeroconf.unregister_service(services.pop(fields["remove"]))
    print("done", flush=True)
zeroconf.close()
