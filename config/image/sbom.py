"""What is in the image, as an SPDX 2.3 document: the crates that are linked in, the Go modules of the programs, Debian packages.

Crates come from Cargo.lock by way of `cargo metadata` (normal dependencies only: what builds or tests is not in the image),
modules from the programs themselves. Nothing is asked of a network.
"""

import hashlib
import json
import os
import re
import subprocess
from typing import Any
from urllib.parse import quote

from debian import Package


def document(name: str, version: str, created: str, packages: list[dict[str, Any]]) -> dict[str, Any]:
    """The document: one image that contains all of them."""
    root = _package("image", name, version, None, f"pkg:oci/{name}@{version}")
    packages = sorted(packages, key=lambda package: str(package["SPDXID"]))
    about = hashlib.sha256(json.dumps(packages, sort_keys=True).encode()).hexdigest()
    contains = [
        {"spdxElementId": root["SPDXID"], "relationshipType": "CONTAINS", "relatedSpdxElement": package["SPDXID"]}
        for package in packages
    ]
    described = {"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": root["SPDXID"]}
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"{name}-{version}",
        "documentNamespace": f"https://spdx.org/spdxdocs/{name}-{version}-{about}",
        "creationInfo": {"created": created, "creators": [f"Tool: {name}-config-image-build"]},
        "packages": [root, *packages],
        "relationships": [described, *contains],
    }


def crates(checkout: str) -> list[dict[str, Any]]:
    """The crates that are linked into the binary."""
    host = re.search(r"^host: (\S+)$", _run(["rustc", "-vV"], checkout), re.MULTILINE)
    if host is None:
        raise ValueError("rustc does not say what it compiles for")
    argv = ["cargo", "metadata", "--locked", "--format-version=1", f"--filter-platform={host.group(1)}"]
    metadata = json.loads(_run(argv, checkout))
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    reached, left = set(), [metadata["resolve"]["root"]]
    while left:
        crate = left.pop()
        if crate not in reached:
            reached.add(crate)
            normal = lambda dependency: any(kind["kind"] is None for kind in dependency["dep_kinds"])
            left.extend(dependency["pkg"] for dependency in nodes[crate]["deps"] if normal(dependency))
    return [
        _package("cargo", one["name"], one["version"], one["license"], f"pkg:cargo/{one['name']}@{one['version']}")
        for one in metadata["packages"]
        if one["id"] in reached
    ]


def modules(programs: list[str]) -> list[dict[str, Any]]:
    """The modules that Go programs say they are made of."""
    found = {}
    for program in programs:
        built = json.loads(_run(["go", "version", "-m", "-json", program], os.path.dirname(program)))
        for module in [built["Main"], *built.get("Deps", [])]:
            replacement = module.get("Replace", module)
            is_copy = replacement["Path"].startswith(".")  # It has neither name nor version: those are of the release.
            path, version = (module if is_copy else replacement)["Path"], (module if is_copy else replacement)["Version"]
            if "." not in path.split("/")[0]:  # A module of this checkout: published ones begin with a domain.
                continue
            source = "a modified copy of this version, made by tests/servers/build" if is_copy else None
            found[path, version] = _package("golang", path, version, None, f"pkg:golang/{path}@{quote(version)}", source)
        standard = built["GoVersion"].removeprefix("go").split()[0]
        found["stdlib", standard] = _package("golang", "stdlib", standard, "BSD-3-Clause", f"pkg:golang/stdlib@{standard}")
    return list(found.values())


def debian(packages: set[Package]) -> list[dict[str, Any]]:
    """Debian packages."""
    return [
        _package(
            "deb", one.name, one.version, None, f"pkg:deb/debian/{one.name}@{quote(one.version)}?arch={one.architecture}"
        )
        for one in packages
    ]


def _package(kind: str, name: str, version: str, licence: str | None, purl: str, source: str | None = None) -> dict[str, Any]:
    return {
        **({"sourceInfo": source} if source else {}),
        "SPDXID": "SPDXRef-" + re.sub(r"[^A-Za-z0-9.]+", "-", f"{kind}-{name}-{version}"),
        "name": name,
        "versionInfo": version,
        "downloadLocation": "NOASSERTION",
        "filesAnalyzed": False,
        "licenseDeclared": (licence or "NOASSERTION").replace("/", " OR "),
        "licenseConcluded": "NOASSERTION",
        "copyrightText": "NOASSERTION",
        "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl", "referenceLocator": purl}],
    }


def _run(argv: list[str], directory: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, cwd=directory).stdout
