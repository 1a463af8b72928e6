"""Converts notifications of the operator to messages of Slack: verifies the signature and sends one line of text.

Environment: SLACK_URL (incoming webhook), SECRET (signing secret of the receiver), PORT [8080].
"""

import base64
import hashlib
import hmac
import http.server
import json
import os
import socket
import time
import urllib.request


class Relay(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        if not signed(self.headers, body):
            return self.send_error(401)
        data = json.loads(body)["data"]
        text = "*{event}* `{namespace}/{name}` ({reason}): {message}".format(**data)
        request = urllib.request.Request(
            os.environ["SLACK_URL"],
            json.dumps({"text": text}).encode(),
            {"content-type": "application/json"},
        )
        try:
            urllib.request.urlopen(request, timeout=8).close()
        except OSError as error:
            # The operator retries. The error may contain the URL, which is a secret.
            return self.send_error(502, type(error).__name__)
        self.send_response(204)
        self.end_headers()


def signed(headers, body):
    """Returns whether the signature is valid and recent (https://www.standardwebhooks.com)."""
    identity, at = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not at.isdigit() or abs(time.time() - int(at)) > 300:
        return False
    content = f"{identity}.{at}.".encode() + body
    digest = hmac.new(key(os.environ["SECRET"].strip()), content, hashlib.sha256).digest()
    expected = "v1," + base64.b64encode(digest).decode()
    given = headers.get("webhook-signature", "").split(" ")
    return any(hmac.compare_digest(expected, one) for one in given)


def key(secret):
    """Returns the signing key: base64 after the prefix whsec_, or else the secret itself."""
    encoded = secret.removeprefix("whsec_")
    return secret.encode() if encoded == secret else base64.b64decode(encoded, validate=True)


class Server(http.server.ThreadingHTTPServer):
    """Listens on all addresses of IPv6 and IPv4, or of IPv4 only on a node without IPv6."""

    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def server_bind(self):
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


if __name__ == "__main__":
    key(os.environ["SECRET"].strip())
    port = int(os.environ.get("PORT", "8080"))
    Server(("", port), Relay).serve_forever()
