"""Look the installed packages up in the public list of known weaknesses (OSV), which `pip-audit` asks too.

python tools/audit.py [--fail]

Where the list cannot be reached, one line says so and nothing fails: the check must not depend on a service. Known
weaknesses are printed; only `--fail` (`make audit`) makes them an error, because an advisory published tomorrow must
not fail the tests of an unchanged commit.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import distributions
from typing import Any

import httpx

SERVICE = "https://api.osv.dev/v1/querybatch"
#: packages in one question, and what the service may take for its answer [s]
TOGETHER, PATIENCE = 500, 10.0
_PLAIN = str.maketrans("_.", "--")


def installed() -> list[tuple[str, str]]:
    """Names and versions of what is installed here, without glmplan itself."""
    found = {(one.metadata["Name"].lower().translate(_PLAIN), one.version) for one in distributions()}
    return sorted(one for one in found if one[0] != "glmplan")


def known_weaknesses(packages: list[tuple[str, str]], service: str) -> dict[tuple[str, str], list[str]]:
    """Package → names of its weaknesses, as the service tells; `httpx.HTTPError` or `ValueError` if it does not."""
    found = {}
    with httpx.Client(timeout=PATIENCE) as client:
        for start in range(0, len(packages), TOGETHER):
            asked = packages[start : start + TOGETHER]
            queries = [{"package": {"name": name, "ecosystem": "PyPI"}, "version": version} for name, version in asked]
            answer = client.post(service, json={"queries": queries})
            answer.raise_for_status()
            results: Any = answer.json()
            listed = results.get("results") if isinstance(results, dict) else None
            if not isinstance(listed, list) or len(listed) != len(asked):
                raise ValueError("its answer is not that of a list of weaknesses")
            for package, result in zip(asked, listed, strict=True):
                names = [str(one.get("id")) for one in (result or {}).get("vulns", [])]
                if names:
                    found[package] = names
    return found


def main() -> int:
    """Print known weaknesses of installed packages; 1 if there is one and `--fail` is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--service", default=SERVICE)
    parser.add_argument("--fail", action="store_true", help="exit with 1 if there is one")
    options = parser.parse_args()
    service = options.service
    packages = installed()
    try:
        found = known_weaknesses(packages, service)
    except (httpx.HTTPError, httpx.InvalidURL, ImportError, OSError, ValueError, AttributeError) as error:
        # also a proxy of the environment that httpx does not know or needs a package for
        said = " ".join(f"{error}".split())[:100] or type(error).__name__
        sys.stdout.write(f"known weaknesses: not looked up, {service} cannot be asked ({said})\n")
        return 0
    for (name, version), names in found.items():
        sys.stdout.write(f"{name} {version}: {', '.join(names)}: see https://osv.dev/vulnerability/{names[0]}\n")
    sys.stdout.write(f"known weaknesses: {len(found)} of {len(packages)} installed packages\n")
    return 1 if found and options.fail else 0


if __name__ == "__main__":
    raise SystemExit(main())
