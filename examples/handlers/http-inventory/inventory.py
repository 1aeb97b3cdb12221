"""The details and the inventory. It imports nothing of the host, so that its tests run everywhere."""

import hashlib
import json
from urllib.parse import urlsplit

MAX_DEVICES = 1000


def parse_details(details: str | None) -> str:
    """Returns the URL in `discoveryDetails`. The host has converted YAML to JSON; None is neither."""
    fields = json.loads(details) if details else None
    if not isinstance(fields, dict) or fields.keys() != {"url"} or not isinstance(fields["url"], str):
        raise ValueError("the details must be a mapping with the field 'url'")
    url = urlsplit(fields["url"])
    if url.scheme not in ("http", "https") or not url.hostname or url.username is not None:
        raise ValueError("'url' must be one such as https://inventory.example/devices, without a user")
    return fields["url"]


def cache_key(url: str, token: bytes) -> str:
    """Returns the key of what this token may see, without the token in it."""
    return hashlib.sha256(url.encode() + b"\0" + token).hexdigest()


def parse_devices(body: bytes) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns ids and properties of the devices in an inventory: a list of {"id": ..., "properties": {...}}."""
    entries = json.loads(body)
    if not isinstance(entries, list) or len(entries) > MAX_DEVICES:
        raise ValueError(f"the inventory is no list of at most {MAX_DEVICES} devices")
    devices = [device(entry) for entry in entries]
    if len({name for name, _ in devices}) < len(devices):
        raise ValueError("two devices have one id")
    return devices


def device(entry: object) -> tuple[str, list[tuple[str, str]]]:
    match entry:
        case {"id": str(name), **rest} if name and rest.keys() <= {"properties"}:
            properties = rest.get("properties", {})
        case _:
            raise ValueError(f"this is no device with an id: {str(entry)[:80]}")
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise ValueError(f"the properties of '{name}' are no texts")
    return name, sorted(properties.items())
