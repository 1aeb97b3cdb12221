#!/usr/bin/env python3
"""Lists what is in Akri's image, as CycloneDX 1.5: sbom.py ROOT WORKSPACE HANDLERS TARGET [SYSROOT] >akri.cdx.json

TARGET is what the program was compiled for, and SYSROOT where the libraries of another architecture are from.
The crates are those that the program and the components are linked from, as `cargo metadata` resolves them with their lock
files; the rest are the Debian packages of the files that are not ours. The same sources make the same list.
"""

import json
import pathlib
import subprocess
import sys
import tomllib

GUEST = "wasm32-wasip2"


def metadata(workspace: pathlib.Path, target: str) -> dict:
    command = ["cargo", "metadata", "--format-version=1", "--locked", "--filter-platform", target]
    return json.loads(subprocess.run(command, cwd=workspace, check=True, stdout=subprocess.PIPE).stdout)


def linked(resolved: dict, roots: list[str]) -> set[str]:
    """Ids of the packages that end in the binary: neither build scripts nor tests."""
    nodes = {node["id"]: node for node in resolved["resolve"]["nodes"]}
    seen, todo = set(), list(roots)
    while todo:
        package = todo.pop()
        if package in seen:
            continue
        seen.add(package)
        for dependency in nodes[package]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                todo.append(dependency["pkg"])
    return seen


def checksums(workspace: pathlib.Path) -> dict:
    lock = tomllib.loads((workspace / "Cargo.lock").read_text())
    return {(package["name"], package["version"]): package.get("checksum") for package in lock["package"]}


def crates(workspace: pathlib.Path, is_root, target: str) -> list[dict]:
    resolved = metadata(workspace, target)
    roots = [package["id"] for package in resolved["packages"] if is_root(package)]
    ids, sums = linked(resolved, roots), checksums(workspace)
    return [crate(package, sums) for package in resolved["packages"] if package["id"] in ids]


def crate(package: dict, sums: dict) -> dict:
    name, version = package["name"], package["version"]
    purl = f"pkg:cargo/{name}@{version}"
    component = {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl}
    if package.get("license"):
        component["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    if sums.get((name, version)):
        component["hashes"] = [{"alg": "SHA-256", "content": sums[name, version]}]
    return component


def debian(root: pathlib.Path, sysroot: str) -> list[dict]:
    """Packages of the files that are not Akri's own, where dpkg knows them."""
    found = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        file = "/" + str(path.relative_to(root))
        if file.startswith(("/usr/bin/akri", "/usr/lib/akri/", "/usr/share/akri/")):
            continue
        query = ["dpkg-query", "--search", sysroot + file]
        owner = "ca-certificates" if file.startswith("/etc/ssl/") else path.name
        try:
            if owner != "ca-certificates":  # its file is made when it is installed
                owner = subprocess.run(query, check=True, capture_output=True, text=True).stdout.split(":")[0]
            show = ["dpkg-query", "--showformat=${Version}", "--show", owner]
            version = subprocess.run(show, check=True, capture_output=True, text=True).stdout.split()[0]
        except (FileNotFoundError, subprocess.CalledProcessError):
            version = "unknown"
        purl = f"pkg:deb/debian/{owner}@{version}"
        found[purl] = {"type": "library", "bom-ref": purl, "name": owner, "version": version, "purl": purl}
    return list(found.values())


def main() -> None:
    root, host, guests = (pathlib.Path(argument) for argument in sys.argv[1:4])
    target, sysroot = sys.argv[4], "".join(sys.argv[5:])
    handlers = {path.stem for path in (root / "usr/lib/akri/components").glob("*.wasm")}
    ours = crates(host, lambda package: package["name"] == "akri" and package["source"] is None, target)
    of_guests = crates(
        guests,
        lambda package: package["source"] is None and package["name"].replace("-", "_") in handlers,
        GUEST,
    )
    components = {component["bom-ref"]: component for component in ours + of_guests + debian(root, sysroot)}
    [program] = [component for component in ours if component["name"] == "akri"]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": {**program, "type": "container", "bom-ref": "image"}},
        "components": [components[key] for key in sorted(components)],
    }
    json.dump(document, sys.stdout, indent=1)
    print()


main()
