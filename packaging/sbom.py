"""Writes a software bill of materials beside each wheel: python packaging/sbom.py WHEEL...

It says what the wheel asks for, and what made it, as packaging/build.lock pins that. Two runs write the same.
"""

import re
import sys
from datetime import UTC, datetime
from email.parser import HeaderParser
from hashlib import sha256
from os import environ
from pathlib import Path
from uuid import UUID
from zipfile import ZipFile

from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.contact import OrganizationalEntity
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

HERE = Path(__file__).parent
_PINNED = re.compile(r"^([\w.-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+)", re.MULTILINE)


def component(name: str, version: str | None, scope: ComponentScope | None, hashes: list[str]) -> Component:
    """Return a package of PyPI: its version, if that is pinned, and the SHA-256 of its files."""
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        scope=scope,
        purl=PackageURL("pypi", None, name.lower(), version),
        bom_ref=f"{name}@{version}" if version else name,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=each) for each in hashes],
    )


def bill(wheel: Path) -> Bom:
    """Return what is known of a wheel and its origin."""
    with ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        about = HeaderParser().parsestr(archive.read(name).decode())
    digest = sha256(wheel.read_bytes()).hexdigest()
    bom = Bom(serial_number=UUID(digest[:32], version=5))
    bom.metadata.timestamp = datetime.fromtimestamp(int(environ["SOURCE_DATE_EPOCH"]), UTC)
    bom.metadata.supplier = OrganizationalEntity(name=about["Author"])
    itself = bom.metadata.component = component(about["Name"], about["Version"], None, [digest])
    needed = [text for text in about.get_all("Requires-Dist", []) if "extra ==" not in text]
    parts = [component(re.match(r"[\w.-]+", text)[0], None, ComponentScope.REQUIRED, []) for text in needed]
    for part, text in zip(parts, needed, strict=True):
        part.description = text
    for name, version, lines in _PINNED.findall((HERE / "build.lock").read_text()):
        parts.append(component(name, version, ComponentScope.EXCLUDED, re.findall("sha256:([0-9a-f]{64})", lines)))
    bom.components.update(parts)
    bom.register_dependency(itself, [part for part in parts if part.scope is ComponentScope.REQUIRED])
    return bom


if __name__ == "__main__":
    for wheel in map(Path, sys.argv[1:]):
        outputter = make_outputter(bill(wheel), OutputFormat.JSON, SchemaVersion.V1_6)
        wheel.with_name(f"{wheel.name}.cdx.json").write_text(outputter.output_as_string(indent=1) + "\n")
