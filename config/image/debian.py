"""Programs of this Debian machine with every library they load, and the packages that all of it comes from.

What is installed is read from dpkg's own database files. Nothing is installed, downloaded or changed.
"""

import glob
import os
import re
import subprocess
from dataclasses import dataclass

from oci import Layer

INFO = "/var/lib/dpkg/info"
STATUS = "/var/lib/dpkg/status"


@dataclass(frozen=True, order=True)
class Package:
    """An installed package."""

    name: str
    version: str
    architecture: str


class Debian:
    """Takes files of this machine into a layer and remembers their packages."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self.packages: set[Package] = set()
        self._installed = _installed()
        self._owners = _owners()
        for path in ("bin", "sbin", "lib", "lib64"):
            layer.link(f"/{path}", f"usr/{path}")

    def program(self, path: str, at: str | None = None) -> None:
        """A program and the libraries that the loader finds for it; at another place, if one is given."""
        if at is None:
            self.file(path)
        else:
            self.layer.file(at, path)
        self.libraries(path)

    def libraries(self, path: str) -> None:
        """The libraries of a program or plugin; a static one has none."""
        with open(path, "rb") as opened:
            if b"ld-linux" not in opened.read(4096) and not path.endswith(".so"):
                return
        found = subprocess.run(["ldd", path], check=True, capture_output=True, text=True).stdout
        if "not found" in found:
            raise FileNotFoundError(f"{path} needs libraries that this machine has not:\n{found}")
        for library in re.findall(r"(/\S+) \(0x", found):
            self.file(library)

    def file(self, path: str) -> None:
        """A file of this machine; a symbolic link with its target."""
        path = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        self.owned(path)
        if os.path.islink(path):
            target = os.readlink(path)
            self.layer.link(path, target)
            self.file(os.path.join(os.path.dirname(path), target))
        else:
            self.layer.file(path, path)

    def owned(self, path: str) -> None:
        """Remembers the package of a path, and takes its copyright notice along."""
        name = self._owners.get(path) or self._owners.get(path.removeprefix("/usr"))
        if name is None:
            raise FileNotFoundError(f"{path} belongs to no installed package")
        self.package(name)

    def package(self, name: str) -> list[str]:
        """Remembers a package; returns the paths of its files."""
        package = self._installed.get(name)
        if package is None:
            raise FileNotFoundError(f"the package {name} is not installed: apt-get install {name}")
        if package not in self.packages:
            self.packages.add(package)
            notice = f"/usr/share/doc/{name}/copyright"
            if os.path.exists(notice):
                self.layer.file(notice, notice)
        return sorted(path for path, owner in self._owners.items() if owner == name)


def _owners() -> dict[str, str]:
    """The package of every path."""
    owners = {}
    for path in sorted(glob.glob(f"{INFO}/*.list")):
        name = os.path.basename(path).removesuffix(".list").split(":")[0]
        with open(path, encoding="utf-8") as lines:
            owners.update((line.rstrip("\n"), name) for line in lines)
    return owners


def _installed() -> dict[str, Package]:
    """The installed packages by name."""
    packages = {}
    with open(STATUS, encoding="utf-8") as opened:
        for paragraph in opened.read().split("\n\n"):
            fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and not line.startswith(" "))
            if fields.get("Status", "").endswith(" installed"):
                packages[fields["Package"]] = Package(fields["Package"], fields["Version"], fields["Architecture"])
    return packages
