"""The discovery handler `upnp`: devices that answer a search by SSDP, such as media renderers, printers and routers.

Modules have to be imported here, at the top: the component holds what is loaded when it is built, and has no files later.
"""

import time

import ssdp
from componentize_py_types import Err
from wit_world import exports
from wit_world.exports.handler import Description
from wit_world.imports import multicast, types
from wit_world.imports import round as this_round

# A datagram may be lost: the architecture asks for more than one search.
SEARCHES = 3
# Seconds after the last answer that a device may give.
GRACE = 0.5
# Datagrams fetched at once.
PAGE = 64


class Handler(exports.Handler):
    def describe(self) -> Description:
        return Description(name="upnp", version="0.1.0", shared=True, hints=[("interval-ms", "60000")])

    def validate(self, details: str) -> list[tuple[str, str]]:
        """Besides the interval, an announcement starts a round. It begins with N, of NOTIFY; searches of others do not count."""
        try:
            target = ssdp.parse_details(this_round.details_json())
        except ValueError as error:
            raise Err([problem(error)])
        return [("multicast", f"{ssdp.GROUP}:{ssdp.PORT} @0 4e/ff {target}")]

    def discover(self, details: str) -> list[types.Device]:
        try:
            target = ssdp.parse_details(this_round.details_json())
        except ValueError as error:
            raise Err(types.DiscoveryError_InvalidDetails([problem(error)]))
        try:
            devices, notes = search(target).choose()
        except Err as error:
            raise failure(error.value)
        except OverflowError as error:
            # Known devices stay: that there are too many answers says nothing of them.
            raise Err(types.DiscoveryError_Unavailable(f"{error}; search for one type of device"))
        for address, message in notes:
            this_round.note(address, "Refused", message)
        return [
            types.Device(
                id=answer.id,
                origin=answer.id,
                properties=ssdp.properties(answer, target),
                mounts=[],
                device_specs=[],
                hints=[],
            )
            for answer in devices
        ]


def problem(error: ValueError) -> types.Problem:
    return types.Problem(path="", reason="InvalidDetails", message=str(error))


def failure(error: types.AccessError) -> Err:
    """An error of the round: known devices stay as they are."""
    if isinstance(error, types.AccessError_NotGranted):
        return Err(types.DiscoveryError_NotGranted(error.value))
    return Err(types.DiscoveryError_Unavailable(error.value))


def search(target: str) -> ssdp.Answers:
    answers = ssdp.Answers()
    with multicast.open(ssdp.GROUP, ssdp.PORT) as conversation:
        for number in range(1, SEARCHES + 1):
            conversation.send(ssdp.search(target))
            end = time.monotonic() + ssdp.SPREAD + (GRACE if number == SEARCHES else 0)
            while (left := end - time.monotonic()) > 0:
                for datagram in conversation.receive(int(left * 1e9), PAGE):
                    answer = ssdp.parse_answer(datagram.payload, datagram.address, target)
                    if answer:
                        answers.add(answer)
    return answers
