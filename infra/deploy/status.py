"""Shows what is deployed: which revisions of pool and functions have the requests, and how the publish job did last."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from infra.deploy.infrastructure import Infrastructure
from infra.deploy.revisions import Pool, targets
from infra.deploy.settings import Settings
from infra.deploy.shell import Document, Shell


def show_status(shell: Shell, settings: Settings, infrastructure: Infrastructure, *, as_json: bool) -> None:
    """Ask the cloud, and print what it says."""
    bucket, name, url, job = infrastructure.outputs("bucket", "pool_service", "pool_url", "publish_job")
    functions = infrastructure.listed("function_names")
    place = (f"--region={settings.region}", f"--project={settings.project}", "--format=json")
    service = Pool(shell, settings, name).describe()
    revisions = shell.document("revisions", "gcloud", "run", "revisions", "list", f"--service={name}", *place)
    services = shell.document("services", "gcloud", "run", "services", "list", *place)
    executions = shell.document(
        "executions", "gcloud", "run", "jobs", "executions", "list", f"--job={job}", "--limit=1", *place
    )
    if shell.dry:
        return
    about = {
        "project": settings.project,
        "region": settings.region,
        "env": settings.env,
        "bucket": bucket,
        "pool": {"name": name, "url": url, "revisions": list(_revisions(service, revisions))},
        "functions": list(_functions(services, functions)),
        "publish_job": {"name": job, "last": _last(executions)},
    }
    print(json.dumps(about, indent=2) if as_json else "\n".join(_lines(about)))


def _revisions(service: Document, revisions: Document) -> Iterator[dict[str, Any]]:
    """Those that get requests or have a tag, the largest share first."""
    known = {one["metadata"]["name"]: one for one in revisions.content or ()}
    found = targets(service.content)
    shares: Counter[str] = Counter()
    for one in found:
        shares[one.revision] += one.percent
    for name, percent in sorted(shares.items(), key=lambda item: (-item[1], item[0])):
        about = known.get(name, {})
        yield {
            "revision": name,
            "percent": percent,
            "tags": sorted(one.tag for one in found if one.revision == name and one.tag),
            "ready": _condition(about, "Ready"),
            "image": next((one.get("image", "") for one in about.get("spec", {}).get("containers", ())), ""),
        }


def _functions(services: Document, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Each with its URL, and the revisions that have its requests; "" for one that was not made yet."""
    known = {one["metadata"]["name"]: one for one in services.content or ()}
    for name in names:
        about = known.get(name, {})
        status = about.get("status", {})
        shares = [one for one in status.get("traffic", ()) if one.get("percent")]
        yield {
            "name": name,
            "url": status.get("url", ""),
            "revisions": [{"revision": one.get("revisionName", ""), "percent": one["percent"]} for one in shares],
            "ready": _condition(about, "Ready"),
        }


def _last(executions: Document) -> dict[str, str] | None:
    for one in executions.content or ():
        return {"name": one["metadata"]["name"], "completed": _condition(one, "Completed")}
    return None


def _condition(about: Any, kind: str) -> str:
    """True, False or Unknown, with the reason where it is not True."""
    for one in about.get("status", {}).get("conditions", ()):
        if one.get("type") == kind:
            message = "" if one.get("status") == "True" else f" ({one.get('message', '')})"
            return f"{one.get('status')}{message}"
    return "Unknown"


def _lines(about: dict[str, Any]) -> Iterator[str]:
    yield f"{about['env']} in {about['region']} of {about['project']}, store {about['bucket']}"
    yield f"pool {about['pool']['name']} at {about['pool']['url']}"
    for one in about["pool"]["revisions"]:
        tags = f" [{', '.join(one['tags'])}]" if one["tags"] else ""
        yield f"  {one['percent']:>3} % {one['revision']}{tags}, ready: {one['ready']}, {one['image']}"
    for one in about["functions"]:
        yield f"function {one['name']} {f'at {one["url"]}' if one['url'] else 'is not there'}, ready: {one['ready']}"
        yield from (f"  {of['percent']:>3} % {of['revision']}" for of in one["revisions"])
    last = about["publish_job"]["last"]
    told = f"{last['name']}, completed: {last['completed']}" if last else "was never run"
    yield f"publish job {about['publish_job']['name']}: {told}"
