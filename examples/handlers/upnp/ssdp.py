"""Searches and answers of SSDP (UPnP Device Architecture 2.0, section 1.3). It imports nothing of the host, so that its tests run
everywhere."""

import json
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

GROUP = "239.255.255.250"
PORT = 1900
# Seconds over which devices spread their answers.
SPREAD = 1
MAX_DEVICES = 256
# Devices behind one address: a router has a few, and one that answers for hundreds hides the others.
MAX_AT_ADDRESS = 16
MAX_TEXT = 512
ALL = "upnp:rootdevice"
TARGET = re.compile(r"upnp:rootdevice|urn:[A-Za-z0-9.-]{1,64}:(device|service):[A-Za-z0-9._-]{1,64}:[0-9]{1,3}")
LOCATION = re.compile(r"https?://[!-~]{1,512}")
DEVICE = re.compile(r"uuid:[!-~]{1,128}")


@dataclass(frozen=True, order=True)
class Answer:
    id: str
    address: str
    location: str
    server: str


def parse_details(details: str | None) -> str:
    """Returns the target of the search in `discoveryDetails`. The host has converted YAML to JSON; None is neither."""
    fields = json.loads(details) if details else None
    if not isinstance(fields, dict) or not fields.keys() <= {"searchTarget"}:
        raise ValueError("the details must be a mapping with the field 'searchTarget', or '{}' for all devices")
    target = fields.get("searchTarget", ALL)
    if not isinstance(target, str) or not TARGET.fullmatch(target):
        raise ValueError("'searchTarget' must be one such as urn:schemas-upnp-org:device:MediaRenderer:1")
    return target


def search(target: str) -> bytes:
    lines = ["M-SEARCH * HTTP/1.1", f"HOST: {GROUP}:{PORT}", 'MAN: "ssdp:discover"', f"MX: {SPREAD}", f"ST: {target}"]
    return "".join(f"{line}\r\n" for line in [*lines, ""]).encode()


def parse_answer(payload: bytes, sender: str, target: str) -> Answer | None:
    """Returns the answer in a datagram, or None for other datagrams. What follows the device in USN is what was asked for."""
    head, *lines = payload.decode(errors="replace").split("\r\n")
    headers = {name.strip().upper(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    id = headers.get("USN", "").split("::")[0]
    if not head.startswith("HTTP/1.1 200") or headers.get("ST") != target or not DEVICE.fullmatch(id):
        return None
    server = "".join(character for character in headers.get("SERVER", "") if character.isprintable())
    return Answer(id, sender, headers.get("LOCATION", ""), server[:MAX_TEXT])


def leads_to_sender(answer: Answer) -> bool:
    """Everybody in the network can answer. A description is read from the one who answered, and from nobody else."""
    try:
        url = urlsplit(answer.location)
        is_url = LOCATION.fullmatch(answer.location) is not None
        return is_url and url.hostname == answer.address and url.username is None
    except ValueError:
        return False


class Answers:
    """The answers to a search. Those of one address are bounded, so that it can't take the place of others."""

    def __init__(self):
        self.by_address: dict[str, set[Answer]] = {}
        self.crowded: set[str] = set()

    def add(self, answer: Answer):
        known = self.by_address.setdefault(answer.address, set())
        if answer in known:
            return
        if len(known) < MAX_AT_ADDRESS:
            known.add(answer)
        else:
            self.crowded.add(answer.address)
        if len(self.by_address) > MAX_DEVICES:
            raise OverflowError(f"devices at more than {MAX_DEVICES} addresses answer")

    def choose(self) -> tuple[list[Answer], list[tuple[str, str]]]:
        """Returns an answer of each device, the same in each round, and addresses with what is wrong with their answers."""
        notes = [(address, f"more than {MAX_AT_ADDRESS} devices") for address in sorted(self.crowded)]
        chosen: dict[str, Answer] = {}
        for answer in sorted(answer for answers in self.by_address.values() for answer in answers):
            if not leads_to_sender(answer):
                notes.append((answer.address, f"the location of {answer.id} does not lead to who sent it"))
            elif answer.id not in chosen:
                chosen[answer.id] = answer
            elif chosen[answer.id].address != answer.address:
                notes.append((answer.address, f"{answer.id} is at {chosen[answer.id].address}, too"))
        if len(chosen) > MAX_DEVICES:
            raise OverflowError(f"more than {MAX_DEVICES} devices answer")
        return sorted(chosen.values()), notes


def properties(answer: Answer, target: str) -> list[tuple[str, str]]:
    """Returns the environment variables of containers that use the device."""
    named = [("ADDRESS", answer.address), ("LOCATION", answer.location), ("SERVER", answer.server), ("TARGET", target)]
    return [(f"UPNP_{name}", value) for name, value in named if value]
