"""An inventory over HTTP: http_inventory.py PORT TOKEN. A line of JSON on standard input is the next inventory.

Each request is answered with a line of its status on standard output.
"""

import hashlib
import http.server
import sys
import threading

port, token = int(sys.argv[1]), sys.argv[2]
inventory = b"[]"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        etag = f'"{hashlib.sha256(inventory).hexdigest()[:16]}"'
        if self.headers["Authorization"] != f"Bearer {token}":
            self.answer(401, b"", etag)
        elif self.headers["If-None-Match"] == etag:
            self.answer(304, b"", etag)
        else:
            self.answer(200, inventory, etag)

    def answer(self, status, body, etag):
        self.send_response(status)
        self.send_header("ETag", etag)
        if status != 304:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        print(status, flush=True)

    def log_message(self, *arguments):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
print("ready", flush=True)
for line in sys.stdin:
    inventory = line.strip().encode()
