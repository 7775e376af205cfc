"""Which log bucket a line of a container gets into, by the sinks of a plan: as Cloud Logging has it.

A line that is a JSON object becomes an entry's jsonPayload, any other its textPayload. Of Logging's query language only
what our filters are made of is known: AND, OR, NOT, parentheses, and comparisons by `=`, `=~` and `:*`.
"""

from __future__ import annotations

import json
import re
from typing import Any

_TOKEN = re.compile(r'\s*(\(|\)|AND\b|OR\b|NOT\b|[\w.]+(?::\*|=~"(?:[^"\\]|\\.)*"|="(?:[^"\\]|\\.)*"))')
_COMPARISON = re.compile(r'([\w.]+)(:\*|=~|=)(?:"(.*)")?')


def logged(line: str, **labels: str) -> dict[str, Any]:
    """What becomes of a line that a service, or a job, writes: `service_name`, or `job_name`, says whose it is."""
    kind = "cloud_run_job" if "job_name" in labels else "cloud_run_revision"
    content = json.loads(line) if line.startswith("{") else None
    payload = {"textPayload": line} if content is None else {"jsonPayload": content}
    return {"resource": {"type": kind, "labels": labels}, **payload}


def holds(query: str, entry: dict[str, Any]) -> bool:
    """Whether a filter takes an entry."""
    tokens = _TOKEN.findall(query)
    assert "".join(tokens) == re.sub(r"\s+", "", query), f"a filter that this test cannot read: {query}"
    value = _any(tokens, entry)
    assert not tokens, tokens
    return value


def buckets_of(plan: list[dict[str, Any]], entry: dict[str, Any]) -> list[str]:
    """Ends of the names of the log buckets that keep an entry, and "_Default" where the project's own does."""
    by_kind: dict[str, list[dict[str, Any]]] = {}
    for one in plan:
        by_kind.setdefault(one["type"], []).append(one["after"])
    found = [sink for sink in by_kind["google_logging_project_sink"] if holds(sink["filter"], entry)]
    left_out = any(holds(one["filter"], entry) for one in by_kind["google_logging_project_exclusion"])
    names = [sink["destination"].rpartition("/")[2].rpartition("-")[2] for sink in found]
    return sorted(names + ([] if left_out else ["_Default"]))


def _any(tokens: list[str], entry: dict[str, Any]) -> bool:
    value = _all(tokens, entry)
    while tokens and tokens[0] == "OR":
        tokens.pop(0)
        value = _all(tokens, entry) or value
    return value


def _all(tokens: list[str], entry: dict[str, Any]) -> bool:
    value = _one(tokens, entry)
    while tokens and tokens[0] == "AND":
        tokens.pop(0)
        value = _one(tokens, entry) and value
    return value


def _one(tokens: list[str], entry: dict[str, Any]) -> bool:
    token = tokens.pop(0)
    if token == "NOT":
        return not _one(tokens, entry)
    if token == "(":
        value = _any(tokens, entry)
        assert tokens.pop(0) == ")"
        return value
    comparison = _COMPARISON.fullmatch(token)
    assert comparison is not None, token
    path, operator, text = comparison.groups()
    found: Any = entry
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    if operator == ":*" or found is None:
        return found is not None and operator == ":*"
    return bool(re.search(text, found)) if operator == "=~" else found == text
