"""How to reach GitHub: what GitHub Actions sets, and what a user of GitHub Enterprise sets. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from opencoti.errors import ConfigError, NetworkError
from opencoti.fetch.addresses import LOOPBACK_HOSTS, require_allowed

DEFAULT_API = "https://api.github.com"
DEFAULT_SERVER = "https://github.com"


@dataclass(frozen=True, kw_only=True)
class GitHubSettings:
    """Addresses and token. Its representation does not show the token.

    Attributes:
        ca_file: certificates to trust instead of the usual ones.
        stall_s: no byte taken for this long ends an upload; likewise an answer to a question.
        answer_s: how long GitHub may think about an upload after its last byte.
    """

    token: str = field(repr=False)
    api_url: str = DEFAULT_API
    server_url: str = DEFAULT_SERVER
    ca_file: str = ""
    stall_s: float = 60.0
    answer_s: float = 300.0

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> GitHubSettings:
        """Read `GITHUB_TOKEN`, `GITHUB_API_URL`, `GITHUB_SERVER_URL` and `SSL_CERT_FILE`.

        Raises:
            ConfigError: `github-token-missing`, `github-token-malformed`, `address-refused`.
        """
        token = environ.get("GITHUB_TOKEN", "").strip()
        if not token:
            raise ConfigError(
                "github-token-missing",
                "there is no token for GitHub",
                why="GITHUB_TOKEN is not set",
                hint="set it; in a workflow: env GITHUB_TOKEN with permission `contents: write`. Without an "
                "account: plan with --remote none, publish with --to dir:PATH",
            )
        if not token.isascii() or not token.isprintable() or " " in token:
            raise ConfigError(
                "github-token-malformed",
                "GITHUB_TOKEN is no token",
                why="it holds blanks, line ends or characters that are not ASCII",
                hint="set it to the token alone",
            )
        api = environ.get("GITHUB_API_URL", "").strip() or DEFAULT_API
        server = environ.get("GITHUB_SERVER_URL", "").strip() or DEFAULT_SERVER
        return cls(
            token=token,
            api_url=require_allowed(api, "GITHUB_API_URL").rstrip("/"),
            server_url=require_allowed(server, "GITHUB_SERVER_URL").rstrip("/"),
            ca_file=environ.get("SSL_CERT_FILE", ""),
        )

    def upload_address(self, template: str) -> str:
        """Return the address in an `upload_url`, which is a template that ends in `{?name,label}`.

        The token goes there, so it must be of the same service as the API.

        Raises:
            NetworkError: `upload-address-refused`.
        """
        address = template.partition("{")[0]
        try:
            require_allowed(address, "upload_url")
            host, api = urlsplit(address).hostname or "", urlsplit(self.api_url).hostname or ""
        except (ConfigError, ValueError):
            host, api = "", "?"
        if not _is_same_service(host, api):
            raise NetworkError(
                "upload-address-refused",
                "GitHub names an address for uploads that is refused",
                why=f"{host[:100] or 'it'} does not belong to {api[:100]}, and the token would go there",
                hint="check GITHUB_API_URL",
            )
        return address


def _is_same_service(host: str, api: str) -> bool:
    """Take the same host (Enterprise Server), `uploads.X` for `api.X`, and loopback for loopback."""
    if host in LOOPBACK_HOSTS and api in LOOPBACK_HOSTS:
        return True
    return host == api or (api.startswith("api.") and host == "uploads." + api.removeprefix("api."))
