"""The discovery handler `http-inventory`: devices that an inventory lists by HTTP.

Modules have to be imported here, at the top: the component holds what is loaded when it is built, and has no files later.
"""

import json
from urllib.parse import urlsplit

import inventory
from componentize_py_types import Err, Ok
from wit_world import exports
from wit_world.exports.handler import Description
from wit_world.imports import akri_discovery_types as akri
from wit_world.imports import cache, outgoing_handler, secrets, streams
from wit_world.imports import round as this_round
from wit_world.imports import wasi_http_types as http

# The name of the property with the token, from a Secret.
TOKEN = "token"
# Bytes read at once. The host ends a body after 1 MiB.
PAGE = 65536


class Handler(exports.Handler):
    def describe(self) -> Description:
        return Description(name="http-inventory", version="0.1.0", shared=True, hints=[("interval-ms", "60000")])

    def validate(self, details: str) -> list[tuple[str, str]]:
        try:
            inventory.parse_details(this_round.details_json())
        except ValueError as error:
            raise Err([problem(error)])
        return []

    def discover(self, details: str) -> list[akri.Device]:
        try:
            url = inventory.parse_details(this_round.details_json())
        except ValueError as error:
            raise Err(akri.DiscoveryError_InvalidDetails([problem(error)]))
        try:
            found = inventory.parse_devices(fetch(url))
        except ValueError as error:
            # What was published stays: a broken inventory is not an empty one.
            raise Err(akri.DiscoveryError_Unavailable(f"the inventory is malformed: {error}"))
        return [
            akri.Device(id=name, origin="", properties=properties, mounts=[], device_specs=[], hints=[])
            for name, properties in found
        ]


def problem(error: ValueError) -> akri.Problem:
    return akri.Problem(path="", reason="InvalidDetails", message=str(error))


def fetch(url: str) -> bytes:
    """Returns the inventory, from the cache if the server says that it has not changed."""
    secret = token()
    key = inventory.cache_key(url, secret)
    known = json.loads(cache.get(key) or b"{}")
    headers = [("accept", b"application/json")]
    if secret:
        headers.append(("authorization", b"Bearer " + secret))
    if known:
        headers.append(("if-none-match", known["etag"].encode()))
    status, etag, body = get(url, headers)
    if status == 304 and known:
        return known["body"].encode()
    if status != 200:
        why = " (is the property 'token' right?)" if status in (401, 403) else ""
        raise Err(akri.DiscoveryError_Unavailable(f"the inventory answers with status {status}{why}"))
    if etag:
        remember(key, etag, body)
    return body


def token() -> bytes:
    try:
        secret = secrets.get(TOKEN)
    except Err as error:
        raise Err(akri.DiscoveryError_NotGranted(str(error.value.value)))
    return secret.reveal().strip() if secret else b""


def remember(key: str, etag: str, body: bytes):
    try:
        cache.set(key, json.dumps({"etag": etag, "body": body.decode()}).encode())
    except (Err, UnicodeDecodeError):
        cache.delete(key)  # it does not fit: it is fetched whole in each round


def get(url: str, headers: list[tuple[str, bytes]]) -> tuple[int, str, bytes]:
    """Returns status, ETag and body of a response."""
    parts = urlsplit(url)
    request = http.OutgoingRequest(http.Fields.from_list(headers))
    request.set_scheme(http.Scheme_Https() if parts.scheme == "https" else http.Scheme_Http())
    request.set_authority(parts.netloc)
    request.set_path_with_query((parts.path or "/") + (f"?{parts.query}" if parts.query else ""))
    try:
        future = outgoing_handler.handle(request, None)
    except Err as error:
        raise failure(error.value)
    with future:
        with future.subscribe() as ready:
            ready.block()
        match future.get():
            case Ok(Ok(response)):
                pass
            case Ok(Err(error)):
                raise failure(error)
            case _:
                raise Err(akri.DiscoveryError_Unavailable("the inventory did not answer"))
        with response:
            etags = response.headers().get("etag")
            return response.status(), etags[0].decode(errors="replace") if etags else "", read(response)


def read(response: http.IncomingResponse) -> bytes:
    chunks = []
    with response.consume() as body, body.stream() as stream:
        while True:
            try:
                chunks.append(stream.blocking_read(PAGE))
            except Err as error:
                if isinstance(error.value, streams.StreamError_Closed):
                    return b"".join(chunks)
                raise Err(akri.DiscoveryError_Unavailable("the inventory's answer is cut or too long"))


def failure(error: http.ErrorCode) -> Err:
    if isinstance(error, (http.ErrorCode_HttpRequestDenied, http.ErrorCode_DestinationIpProhibited)):
        return Err(akri.DiscoveryError_NotGranted("the inventory (grants.http)"))
    words = type(error).__name__.removeprefix("ErrorCode_")
    return Err(akri.DiscoveryError_Unavailable(f"the inventory was not reached: {words}"))
