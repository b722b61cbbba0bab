"""An OCI image layout in a tar, written without a container engine: the same files give the same bytes.

Times, owners, the order of entries and the compressor's header are fixed, so that a digest depends on nothing but what is
in the image. Nothing here knows what an image is for.
"""

import gzip
import hashlib
import io
import json
import os
import tarfile
from dataclasses import dataclass, field
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
CONFIG = "application/vnd.oci.image.config.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


@dataclass(frozen=True)
class Entry:
    """What is at one path: a directory, a symbolic link or a file's bytes."""

    mode: int
    data: bytes | None = None
    link: str | None = None


class Layer:
    """Entries by absolute path. A path is laid once; the same again is no fault, another is."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}

    def directory(self, path: str, mode: int = 0o755) -> None:
        self._lay(path, Entry(mode))

    def link(self, path: str, target: str) -> None:
        self._lay(path, Entry(0o777, link=target))

    def data(self, path: str, data: bytes, mode: int = 0o644) -> None:
        self._lay(path, Entry(mode, data=data))

    def file(self, path: str, source: str) -> None:
        """Lays a file of this machine; of its mode only counts whether it is executable."""
        with open(source, "rb") as opened:
            self.data(path, opened.read(), 0o755 if os.stat(source).st_mode & 0o100 else 0o644)

    def _lay(self, path: str, entry: Entry) -> None:
        if not path.startswith("/") or os.path.normpath(path) != path:
            raise ValueError(f"{path} is not a plain absolute path")
        if self.entries.setdefault(path, entry) != entry:
            raise ValueError(f"two different things are to be at {path}")

    def tar(self, epoch: int) -> bytes:
        """The layer's archive, with a directory entry above everything."""
        entries = dict(self.entries)
        for path in self.entries:
            while (path := os.path.dirname(path)) != "/":
                entries.setdefault(path, Entry(0o755))
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for path, entry in sorted(entries.items()):
                info = tarfile.TarInfo(path[1:])
                info.mode, info.mtime = entry.mode, epoch
                if entry.link is not None:
                    info.type, info.linkname = tarfile.SYMTYPE, entry.link
                elif entry.data is None:
                    info.type = tarfile.DIRTYPE
                else:
                    info.size = len(entry.data)
                archive.addfile(info, io.BytesIO(entry.data or b""))
        return out.getvalue()


PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass
class Image:
    """An image and what runs in it if nothing else is said."""

    name: str
    architecture: str
    layers: list[Layer]
    entrypoint: list[str] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    labels: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    epoch: int = 0
    created: str = "1970-01-01T00:00:00Z"

    def write(self, path: str, compress: bool = True) -> str:
        """Writes the layout's archive; returns the digest of the manifest."""
        blobs: dict[str, bytes] = {}

        def blob(kind: str, data: bytes) -> dict[str, Any]:
            digest = sha256(data)
            blobs[digest] = data
            return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

        layers, diffs = [], []
        for layer in self.layers:
            data = layer.tar(self.epoch)
            diffs.append(f"sha256:{sha256(data)}")
            layers.append(blob(LAYER + "+gzip", gzip.compress(data, 6, mtime=0)) if compress else blob(LAYER, data))
        config = {
            "created": self.created,
            "architecture": self.architecture,
            "os": "linux",
            "config": {
                "Env": [f"{name}={value}" for name, value in ({"PATH": PATH} | self.variables).items()],
                "Entrypoint": self.entrypoint,
                "Cmd": self.command,
                "Labels": self.labels,
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": diffs},
            "history": [{"created": self.created, "created_by": "config/image/build"} for _ in self.layers],
        }
        manifest = blob(
            MANIFEST,
            text(
                {
                    "schemaVersion": 2,
                    "mediaType": MANIFEST,
                    "config": blob(CONFIG, text(config)),
                    "layers": layers,
                    "annotations": self.labels,
                }
            ),
        )
        # By the first, engines name it whole; by the second, tools that follow the letter of the specification.
        names = {"io.containerd.image.name": self.name, "org.opencontainers.image.ref.name": self.name.rsplit(":", 1)[-1]}
        named = manifest | {"annotations": names, "platform": {"os": "linux", "architecture": self.architecture}}
        layout = {
            "oci-layout": text({"imageLayoutVersion": "1.0.0"}),
            "index.json": text({"schemaVersion": 2, "mediaType": INDEX, "manifests": [named]}),
        }
        layout |= {f"blobs/sha256/{digest}": data for digest, data in sorted(blobs.items())}
        _archive(path, layout)
        return str(manifest["digest"])


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def text(value: Any) -> bytes:
    """JSON that has one form only."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _archive(path: str, files: dict[str, bytes]) -> None:
    """Puts the archive in place when it is whole."""
    part = f"{path}.part"
    with tarfile.open(part, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for directory in ("blobs", "blobs/sha256"):
            info = tarfile.TarInfo(directory)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            archive.addfile(info)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o644
            archive.addfile(info, io.BytesIO(data))
    os.replace(part, path)
