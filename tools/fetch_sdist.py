"""Downloads one source distribution from PyPI, pinned by version and sha256, without running any of its code.

Usage: fetch_sdist.py NAME VERSION SHA256 FOLDER

pip would run the package's build back end just to read its metadata, so this asks the index pip is configured
for (its simple API) and fetches the file itself.
"""

import hashlib
import html.parser
import pathlib
import subprocess
import sys
import urllib.parse
import urllib.request


class Links(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        if tag == "a":
            self.found.append(dict(attrs).get("href", ""))


def index_url() -> str:
    configured = subprocess.run([sys.executable, "-m", "pip", "config", "get", "global.index-url"],
                                capture_output=True, text=True).stdout.strip()
    return (configured or "https://pypi.org/simple").rstrip("/")


def main(name: str, version: str, digest: str, folder: str) -> None:
    page = f"{index_url()}/{name}/"
    links = Links()
    links.feed(urllib.request.urlopen(page).read().decode())
    for link in links.found:
        path = urllib.parse.urlsplit(link).path
        file = path.rsplit("/", 1)[-1]
        if not file.endswith(f"-{version}.tar.gz"):
            continue
        data = urllib.request.urlopen(urllib.parse.urljoin(page, link.split("#")[0])).read()
        if hashlib.sha256(data).hexdigest() != digest:
            sys.exit(f"{file}: the sha256 is not {digest}")
        (pathlib.Path(folder) / file).write_bytes(data)
        return
    sys.exit(f"{name} {version}: no source distribution found")


if __name__ == "__main__":
    main(*sys.argv[1:5])
