"""Devices: their strings, their ranks, and the checks of a list of them."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar, overload

from meshcomm.core._arguments import as_integer, quote
from meshcomm.core._types import Ranks
from meshcomm.errors import MeshError

T = TypeVar("T")

_GENERATED_PREFIX = "/job:localhost/task:0/device:"

_MAX_RANK = 2**31 - 1  # MPI numbers ranks with a C int

_RANK_DEVICE = re.compile(r"/job:mpi/replica:0/task:(0|[1-9][0-9]{0,9})/device:CPU:0")
_DEVICE_TYPE = re.compile(
    r"(?:.*/)?(?:device:)?(?!(?:job|replica|task):)([A-Za-z_][A-Za-z0-9_]*):[0-9]+", re.IGNORECASE
)


@dataclass(frozen=True)
class GeneratedDevices(Sequence[str]):
    """The device strings for the short text ``*TYPE`` of a mesh. Each is made on access."""

    type: str
    size: int

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, number: int) -> str: ...

    @overload
    def __getitem__(self, number: slice) -> tuple[str, ...]: ...

    def __getitem__(self, number: int | slice) -> str | tuple[str, ...]:
        if isinstance(number, slice):
            return tuple(self[i] for i in range(self.size)[number])
        return f"{_GENERATED_PREFIX}{self.type}:{range(self.size)[number]}"


def _generated_form(names: tuple[str, ...]) -> GeneratedDevices | None:
    """Return the short form of *names* if they have one, so that equal meshes have equal devices."""
    if not names[0].startswith(_GENERATED_PREFIX) or not names[0].endswith(":0"):
        return None
    devices = GeneratedDevices(names[0][len(_GENERATED_PREFIX) : -2], len(names))
    return devices if all(a == b for a, b in zip(names, devices, strict=True)) else None


def checked_name(subject: str, name: object, forbidden: str, may_be_empty: bool = False) -> str:
    """Return *name* as a plain str; ``MeshError`` if the text form of a mesh cannot hold it.

    Parameters
    ----------
    subject: subject of messages, such as "mesh name"
    name: name to check
    forbidden: characters that it may not contain, besides spaces
    may_be_empty: whether the empty name is allowed
    """
    if not isinstance(name, str):
        raise MeshError(f"{subject} {quote(name)} is a {type(name).__name__}; it must be a str")
    if not (name or may_be_empty):
        raise MeshError(f"{subject} is empty; it must have at least one character")
    if not name.isprintable() or any(c in name for c in forbidden + " "):
        raise MeshError(
            f"{subject} {quote(name)} cannot be written in the text form of a mesh; "
            f"names are printable and contain neither spaces nor any of {' '.join(forbidden)}"
        )
    return str.__str__(name)


def as_tuple(subject: str, values: Iterable[T]) -> tuple[T, ...]:
    """Return *values* as a tuple; ``MeshError`` about *subject* if they are no sequence, or a string."""
    if isinstance(values, str | bytes):
        raise MeshError(f"{subject} are {quote(values)}, one {type(values).__name__}; they must be a sequence")
    try:
        return tuple(values)
    except TypeError:
        raise MeshError(f"{subject} are {quote(values)}, a {type(values).__name__}; they must be a sequence") from None


def canonical_devices(devices: Sequence[str] | Sequence[int]) -> tuple[Ranks, Sequence[str] | None]:
    """Return the rank of each device, and the device strings; None if they can be made from the ranks."""
    if isinstance(devices, GeneratedDevices):  # there may be many, and they differ in their numbers only
        canonical_devices(tuple(devices[:1]))
        return range(len(devices)), devices
    device_list: Sequence[object] = devices if isinstance(devices, range) else as_tuple("devices", devices)
    if not device_list:
        raise MeshError("a mesh of no devices; it needs at least one")
    if not isinstance(device_list[0], str):
        return _canonical_ranks(device_list), None
    names = tuple(checked_name(f"device {i}", device, ",|") for i, device in enumerate(device_list))
    check_device_types(names)
    _refuse_duplicates(names)
    ranks = _encoded_ranks(names)
    return (range(len(names)), _generated_form(names) or names) if ranks is None else (_canonical_ranks(ranks), None)


def _canonical_ranks(devices: Sequence[object]) -> Ranks:
    """Return *devices* as ranks: as a range where they are consecutive, else as a tuple."""
    if isinstance(devices, range):  # it may be long: check its ends only, and make a tuple only if needed
        _check_ranks({devices[0], devices[-1]})
        ranks: Ranks = devices
    else:
        ranks = tuple(as_integer(rank, f"rank of device {i}") for i, rank in enumerate(devices))
        _check_ranks(ranks)
        _refuse_duplicates(ranks)
    rank_range = range(ranks[0], ranks[0] + len(ranks))
    if isinstance(ranks, range):
        return rank_range if ranks == rank_range else tuple(ranks)
    return rank_range if ranks == tuple(rank_range) else ranks


def _check_ranks(ranks: Iterable[int]) -> None:
    for rank in ranks:
        if not 0 <= rank <= _MAX_RANK:
            raise MeshError(f"rank {quote(rank)} among the devices of a mesh; ranks are 0 .. {_MAX_RANK}")


def _refuse_duplicates(devices: Sequence[object]) -> None:
    if len(set(devices)) == len(devices):
        return
    numbers: dict[object, int] = {}
    for i, device in enumerate(devices):
        if numbers.setdefault(device, i) != i:
            raise MeshError(
                f"duplicate devices found in mesh specification: {quote(device)} is device {numbers[device]} and "
                f"device {i}; a device has one location in a mesh"
            )


def _encoded_ranks(names: tuple[str, ...]) -> tuple[int, ...] | None:
    """Return the ranks in *names* if all of them have meshcomm's own form, else None."""
    matches = [_RANK_DEVICE.fullmatch(name) for name in names]
    ranks = tuple(int(match[1]) for match in matches if match)
    return ranks if len(ranks) == len(names) and max(ranks) <= _MAX_RANK else None


def rank_device(rank: int) -> str:
    """Return the device string of meshcomm's own form for *rank*."""
    return f"/job:mpi/replica:0/task:{rank}/device:CPU:0"


def device_type_of(device: str) -> str:
    """Return the type in a device string, in capitals; ``MeshError`` if it has none."""
    match = _DEVICE_TYPE.fullmatch(device)
    if not match:
        raise MeshError(f"device {quote(device)} has no device type; a device string ends in TYPE:number, as in CPU:0")
    return match[1].upper()


def on_host(device: str) -> str:
    """Return the device string of the CPU on the host of *device*."""
    match = _DEVICE_TYPE.fullmatch(device)
    assert match, device
    return f"{device[: match.start(1)]}CPU{device[match.end(1) :]}"


def check_device_types(devices: Sequence[str]) -> None:
    """Raise ``MeshError`` if *devices* are of several types."""
    types = {device_type_of(device) for device in devices}
    if len(types) > 1:
        raise MeshError(f"devices containing multiple device types: {quote(sorted(types))}; a mesh has one")
