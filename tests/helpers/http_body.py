"""Read the body of a request, whole or in chunks: Python's http.server leaves chunks to its users."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler


def read_body(request: BaseHTTPRequestHandler) -> bytes:
    if request.headers.get("Transfer-Encoding", "").lower() != "chunked":
        return request.rfile.read(int(request.headers.get("Content-Length") or 0))
    data = b""
    while size := int(request.rfile.readline().split(b";")[0], 16):
        data += request.rfile.read(size)
        request.rfile.readline()
    request.rfile.readline()
    return data
