"""Read and write quantities with units, and name units in annotations.

Inside glmplan every quantity is a float in base units (B, B/s, FLOP, FLOP/s, s, W, J, USD, Hz). In files and options it
is text with its unit. GB is 10⁹ bytes and GiB is 2³⁰ bytes: they differ by 7 %, so text without its unit is refused.
Functions that read input raise `SpecError` with field and value.

pydantic is imported only when a model that uses these types is built, so this module is cheap to import.
"""

from __future__ import annotations

import math
import operator
import re
from typing import Annotated, Any

from glmplan.errors import SpecError

__all__ = [
    "DIMENSIONS",
    "GIB",
    "MINUTE",
    "QUANTILE_90",
    "Bits",
    "ByteCount",
    "Bytes",
    "BytesArray",
    "BytesPerSecond",
    "BytesPerSecondArray",
    "FlopArray",
    "FlopPerSecond",
    "FlopPerSecondArray",
    "Hertz",
    "Milliseconds",
    "PerSecond",
    "Quantity",
    "Ratio",
    "Seconds",
    "SecondsArray",
    "TokenCount",
    "Tokens",
    "TokensArray",
    "TokensPerSecond",
    "TokensPerSecondArray",
    "Unit",
    "Usd",
    "UsdArray",
    "Watts",
    "WattsArray",
    "amount_number",
    "counted_unit",
    "duration",
    "finite_number",
    "format_quantity",
    "given_text",
    "number",
    "parse_quantity",
    "read_above_zero",
    "read_watts",
    "whole_number",
]

#: bytes in a GiB
GIB = 2.0**30
#: seconds of a minute
MINUTE = 60.0
#: standard normal quantile of a 90 % interval: half of its width in standard deviations
QUANTILE_90 = 1.6448536269514722

# A unit is (power of ten, factor): 10**power is applied to the decimal text, so it is rounded once; factors are exact.
_DECIMAL = {"": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50}


def _prefixed(unit: str, prefixes: str = "kMGTPE", factor: float = 1.0) -> dict[str, tuple[int, float]]:
    return {prefix + unit: (_DECIMAL[prefix], factor) for prefix in ("", *prefixes)}


def _binary(unit: str) -> dict[str, tuple[int, float]]:
    return {prefix + unit: (0, 2.0**power) for prefix, power in _BINARY.items()}


_RATE_OF_BITS = {name: unit for name, unit in _prefixed("bit/s", "kMGT", 1 / 8).items() if name != "bit/s"}

#: dimension → unit → (power of ten, factor); the first unit of each is the base unit
DIMENSIONS: dict[str, dict[str, tuple[int, float]]] = {
    "bytes": _prefixed("B", "kMGTP") | _binary("B"),
    "bytes per second": _prefixed("B/s", "kMGTP") | _binary("B/s") | _RATE_OF_BITS,
    "FLOP": _prefixed("FLOP") | _prefixed("OP"),
    "FLOP per second": _prefixed("FLOP/s") | _prefixed("OP/s"),
    "seconds": {
        "s": (0, 1.0), "ms": (-3, 1.0), "us": (-6, 1.0), "µs": (-6, 1.0), "ns": (-9, 1.0),
        "min": (0, 60.0), "h": (0, 3600.0), "d": (0, 86400.0),
    },
    "watts": {"W": (0, 1.0), "mW": (-3, 1.0), "kW": (3, 1.0), "MW": (6, 1.0)},
    "joules": _prefixed("J", "kMG") | {"Wh": (0, 3600.0), "kWh": (3, 3600.0), "MWh": (6, 3600.0)},
    "hertz": _prefixed("Hz", "kMG"),
    "transfers per second": _prefixed("T/s", "kMG"),
    "USD": {"USD": (0, 1.0)},
    "USD per second": {"USD/s": (0, 1.0), "USD/h": (0, 1 / 3600), "USD/d": (0, 1 / 86400)},
    "USD per joule": {"USD/J": (0, 1.0), "USD/kWh": (-3, 1 / 3600), "USD/MWh": (-6, 1 / 3600)},
}  # fmt: skip

#: most characters of a number or quantity
_LONGEST = 100
_TEXT = re.compile(r"\s*([+-]?)(\d+(?:_\d+)*(?:\.\d+)?|\.\d+)(?:[eE]([+-]?\d+))?\s*(\S*)\s*", re.ASCII)


def parse_quantity(text: object, dimension: str, *, signed: bool = False, field: str | None = None) -> float:
    """Return a quantity written with its unit, in base units of the dimension.

    Underscores may group digits; `signed` allows negative values; `field` is named in errors.

    Examples
    --------
    >>> parse_quantity("96 GiB", "bytes")
    103079215104.0
    >>> parse_quantity("1.792 TB/s", "bytes per second")
    1792000000000.0
    >>> parse_quantity("12us", "seconds")
    1.2e-05
    >>> parse_quantity("96 Gib", "bytes")
    Traceback (most recent call last):
    glmplan.errors.SpecError: '96 Gib' has the unit 'Gib', which is no unit of bytes; nearest: GiB
    """
    units = DIMENSIONS[dimension]
    base = next(iter(units))
    if not isinstance(text, str):
        raise SpecError(f"must be text with its unit, as in '1 {base}'", field=field, value=text)
    result = _TEXT.fullmatch(text) if len(text) <= _LONGEST else None
    if result is None:
        word = text.strip().lower().lstrip("+-")
        reason = "is not a finite number" if word.startswith(("nan", "inf")) else "is not a number with a unit"
        raise SpecError(f"{reason}, as in '1 {base}'", field=field, value=text)
    sign, number, exponent, unit = result.groups()
    if not unit:
        raise SpecError(f"has no unit; write one of {', '.join(units)}", field=field, value=text)
    if unit not in units:
        close = ", ".join(_nearest_units(unit, units))
        raise SpecError(
            f"has the unit {unit!r}, which is no unit of {dimension}; nearest: {close}", field=field, value=text
        )
    if sign == "-" and not signed:
        raise SpecError("must not be negative", field=field, value=text)
    power, factor = units[unit]
    value = float(f"{sign}{number}e{int(exponent or 0) + power}") * factor
    if not math.isfinite(value):
        raise SpecError("is too large to be a number", field=field, value=text)
    return value


def counted_unit(count: float, unit: str) -> str:
    """Return a number with its unit, in the singular for one.

    A rate such as ``requests/s`` is unchanged.

    Examples
    --------
    >>> counted_unit(1, "users"), counted_unit(1e6, "users"), counted_unit(1.0, "requests/s")
    ('1 user', '1000000 users', '1 requests/s')
    """
    number = f"{count:.0f}" if float(count).is_integer() else f"{count:g}"
    return f"{number} {unit.removesuffix('s') if count == 1 and '/' not in unit else unit}"


def number(value: Ratio) -> str:
    """Return a number with three significant digits and thousands separators.

    Examples
    --------
    >>> number(0.02871), number(27.08), number(1234.5)
    ('0.0287', '27.1', '1,234')
    """
    if value >= 100:
        return f"{value:,.0f}"
    if value >= 10:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.3g}"


def duration(seconds: Seconds) -> str:
    """Return a time in ms below 1 s, in s up to 60 s, in minutes above.

    Examples
    --------
    >>> duration(0.0321), duration(2.5), duration(1606.7)
    ('32.1 ms', '2.50 s', '26.8 min')
    """
    if seconds < 1.0:
        return f"{number(seconds * 1e3)} ms"
    return f"{number(seconds)} s" if seconds <= MINUTE else f"{number(seconds / MINUTE)} min"


def whole_number(value: object, field: str, *, least: int = 1, most: int = 1 << 31) -> int:
    """Return a count from text or a number; 2.0 and True are no counts.

    Examples
    --------
    >>> whole_number("1_024", "--input")
    1024
    >>> whole_number(2.0, "tp")
    Traceback (most recent call last):
    glmplan.errors.SpecError: tp: 2.0 is not a whole number
    """
    try:
        if isinstance(value, bool) or _is_odd(value):
            raise TypeError
        result = int(value.strip().replace("_", "")) if isinstance(value, str) else operator.index(value)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        raise _not("a whole number", value, field) from None
    if result < least:
        raise SpecError(f"must be at least {least}", field=field, value=result)
    if result > most:
        raise SpecError(f"is too large: at most {most:,}", field=field, value=result)
    return result


def finite_number(value: object, field: str) -> float:
    """Return a finite number without unit from text or a number; True is none.

    Examples
    --------
    >>> finite_number("0.9", "--memory-fraction")
    0.9
    """
    try:
        if isinstance(value, bool | bytes) or _is_odd(value):
            raise TypeError
        result = float(value)  # type: ignore[arg-type]
    except (ValueError, TypeError, OverflowError):
        raise _not("a number", value, field) from None
    if not math.isfinite(result):
        raise SpecError("is not a finite number", field=field, value=value)
    return result


def amount_number(text: str, field: str, *, large: bool = False) -> float:
    """Return a number whose thousands may be grouped by commas.

    A decimal comma is refused, and with `large` a point before three digits, which groups thousands in some countries.

    Examples
    --------
    >>> amount_number("2,500", "--price"), amount_number("0.125", "--price")
    (2500.0, 0.125)
    >>> amount_number("0,25", "--price")
    Traceback (most recent call last):
    glmplan.errors.SpecError: --price: '0,25' has a comma that groups no thousands: decimals follow a point
    """
    if "," in text and not re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", text):
        raise SpecError("has a comma that groups no thousands: decimals follow a point", field=field, value=text)
    if large and re.fullmatch(r"[1-9]\d{0,2}(\.\d{3})+", text):
        few, many = text.partition(".")[0], text.replace(".", "")
        raise SpecError(f"may be {few} or {many}: write it without the point", field=field, value=text)
    return finite_number(text.replace(",", "").replace("_", ""), field)


def given_text(value: object, field: str) -> str:
    """Return the value if it is text.

    Examples
    --------
    >>> given_text(8, "on")
    Traceback (most recent call last):
    glmplan.errors.SpecError: on: 8 is not text
    """
    if not isinstance(value, str):
        raise _not("text", value, field)
    return value


def _is_odd(value: object) -> bool:
    """Return True if a text has digits of another script or is too long.

    Python accepts such digits.
    """
    return isinstance(value, str) and (not value.isascii() or len(value) > _LONGEST)


def _not(what: str, value: object, field: str) -> SpecError:
    """Return the error for a value that is missing or not as expected."""
    return SpecError(f"must be {what}" if value is None else f"is not {what}", field=field, value=value)


def _nearest_units(unit: str, units: dict[str, tuple[int, float]]) -> list[str]:
    """Return units that differ in letter case, else similar ones, else all."""
    import difflib

    same = [known for known in units if known.lower() == unit.lower()]
    return same or difflib.get_close_matches(unit, units, n=3, cutoff=0.5) or list(units)[:8]


def read_above_zero(given: object, field: str, dimension: str) -> float:
    """Return a quantity above zero from text, or a number in the base unit.

    Examples
    --------
    >>> read_above_zero("50 GB/s", "--host-bandwidth", "bytes per second"), read_above_zero(2.0, "wait", "seconds")
    (50000000000.0, 2.0)
    """
    if isinstance(given, str):
        try:
            result = parse_quantity(given, dimension)
        except SpecError as error:
            raise SpecError(error.message, field=field, value=given) from None
    else:
        result = finite_number(given, field)
    if result <= 0:
        raise SpecError("must be more than 0", field=field, value=given)
    return result


def read_watts(given: object, field: str) -> float:
    """Return a power above zero, from text with its unit or a number of watts.

    Examples
    --------
    >>> read_watts("3.6kW", "--power"), read_watts(450, "--power-limit")
    (3600.0, 450.0)
    """
    return read_above_zero(given, field, "watts")


def format_quantity(value: float, dimension: str, digits: int | None = None, *, unit: str | None = None) -> str:
    """Return a quantity with a unit; by default that of the shortest number.

    `digits` defaults to as many as needed to read back exactly this value.

    Examples
    --------
    >>> format_quantity(102641958912, "bytes")
    '97887 MiB'
    >>> format_quantity(1.792e12, "bytes per second")
    '1.792 TB/s'
    >>> format_quantity(62250.7, "bytes", 3, unit="kB")
    '62.3 kB'
    """
    units = DIMENSIONS[dimension]
    if unit is not None and unit not in units:
        raise SpecError(f"is no unit of {dimension}", value=unit, choices=units)
    exact = unit is None and digits is None
    best: tuple[float, str] | None = None
    for name in [unit] if unit else units:
        power, factor = units[name]
        scaled = float(value) / factor / 10.0**power
        number = _plain(scaled) if digits is None else _rounded(scaled, digits)
        text = f"{number} {name}"
        if exact and not (math.isfinite(value) and parse_quantity(text, dimension, signed=True) == value):
            continue
        # fewest digits win, then the number nearest to one; tiny and huge numbers and unusual units have a penalty
        readable = 1 <= abs(scaled) < 10000
        unusual = name.endswith("bit/s") or name.lstrip("kMGTPE").startswith("OP") or name == "µs"
        size = abs(math.log10(abs(scaled))) / 20 if scaled else units[name] != (0, 1.0)
        cost = len(number.replace(".", "")) + (0 if readable else 4) + size + (4 if unusual else 0)
        if best is None or cost < best[0]:
            best = cost, text
    return best[1] if best else f"{float(value)!r} {next(iter(units))}"


def _plain(value: float) -> str:
    """Return the shortest text of a float, without `.0`."""
    return repr(int(value)) if value == int(value) and abs(value) < 1e16 else repr(value)


def _rounded(value: float, digits: int) -> str:
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    places = max(digits - 1 - math.floor(math.log10(abs(value))), 0)
    return f"{value:.{places}f}"


class Quantity:
    """Pydantic annotation of a quantity.

    Text with a unit is read, a float in base units is kept.

    In JSON mode the value is written back as text with its unit, so that a record survives a round trip. `positive`
    refuses zero.

    Examples
    --------
    >>> from pydantic import TypeAdapter
    >>> TypeAdapter(Bytes).validate_python("24 GiB")
    25769803776.0
    """

    __slots__ = ("dimension", "positive")

    def __init__(self, dimension: str, *, positive: bool = True) -> None:
        self.dimension, self.positive = dimension, positive

    def read(self, text: object) -> float:
        """Return the value of a field's text in base units.

        Examples
        --------
        >>> Quantity("watts").read("600 W")
        600.0
        """
        value = parse_quantity(text, self.dimension)
        if self.positive and value == 0:
            raise SpecError("must be more than zero; omit an unknown value", value=text)
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic_core import core_schema

        written = core_schema.plain_serializer_function_ser_schema(
            lambda value: format_quantity(value, self.dimension), when_used="json"
        )
        return core_schema.no_info_plain_validator_function(self.read, serialization=written)

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, str]:
        units = ", ".join(DIMENSIONS[self.dimension])
        return {"type": "string", "description": f"{self.dimension}, with the unit: {units}"}


Bytes = Annotated[float, Quantity("bytes")]
BytesPerSecond = Annotated[float, Quantity("bytes per second")]
FlopPerSecond = Annotated[float, Quantity("FLOP per second")]
Hertz = Annotated[float, Quantity("hertz")]
Seconds = Annotated[float, Quantity("seconds", positive=False)]
Usd = Annotated[float, Quantity("USD", positive=False)]
Watts = Annotated[float, Quantity("watts")]


class Unit:
    """Unit of a number in an annotation; nothing is converted."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


Ratio = Annotated[float, Unit("-")]
Tokens = Annotated[float, Unit("token")]
TokensPerSecond = Annotated[float, Unit("token/s")]
PerSecond = Annotated[float, Unit("1/s")]
Milliseconds = Annotated[float, Unit("ms")]
Bits = Annotated[float, Unit("bit")]
TokenCount = Annotated[int, Unit("token")]
ByteCount = Annotated[int, Unit("B")]
# arrays, or numbers, that broadcast
BytesArray = Annotated[Any, Unit("B")]
BytesPerSecondArray = Annotated[Any, Unit("B/s")]
FlopArray = Annotated[Any, Unit("FLOP")]
FlopPerSecondArray = Annotated[Any, Unit("FLOP/s")]
SecondsArray = Annotated[Any, Unit("s")]
TokensArray = Annotated[Any, Unit("token")]
TokensPerSecondArray = Annotated[Any, Unit("token/s")]
UsdArray = Annotated[Any, Unit("USD")]
WattsArray = Annotated[Any, Unit("W")]
