"""Stands for gcloud, terraform, podman, git, curl and sleep: it writes down how it was called, and answers.

It is run by a copy of itself on the PATH, named as what it stands for, beside `world.json`: what the cloud is like, and
which commands fail. What changes requests' shares changes that world, as Cloud Run has it.
"""

# ruff: noqa: PTH123, T201  a program of its own, started some twenty times a deployment: pathlib would double that

import json
import sys

HERE, _, TOOL = sys.argv[0].rpartition("/")
WORLD, CALLS = f"{HERE}/world.json", f"{HERE}/calls.jsonl"


def flag(words, name):
    return next((word.partition("=")[2] for word in words if word.startswith(f"{name}=")), "")


def pairs(text):
    return dict(part.split("=") for part in text.split(",") if part)


def traffic(world):
    """Shares, then tags, as Cloud Run tells them."""
    shares = [{"revisionName": name, "percent": percent} for name, percent in world["shares"].items()]
    tags = [
        {"revisionName": name, "tag": tag, "url": f"{world['url']}/{name}"}
        for tag, name in sorted(world["tags"].items())
    ]
    return shares + tags


def terraform(world, words):
    if words[1] == "output":
        return json.dumps({name: {"value": value} for name, value in world["outputs"].items()})
    if words[1] == "show":
        held = {"address": "google_cloud_run_v2_service.pool", "values": {"deletion_protection": world["protected"]}}
        return json.dumps({"values": {"root_module": {"child_modules": [{"resources": [held]}]}}})
    return "terraform: did something"


def update(world, words):
    if not flag(words, "--tag"):
        world["followers"][words[3]] = flag(words, "--image")
        if labels := pairs(flag(words, "--update-labels")):
            world["functions"].setdefault(words[3], []).append(labels["pool"])
        return ""
    name = f"pool-{len(world['images']) + 1:05}"
    world["images"][name] = flag(words, "--image")
    world["tags"][flag(words, "--tag")] = name
    return ""


def update_traffic(world, words):
    if words[3] in world["functions"]:
        world["serving"][words[3]] = flag(words, "--to-revisions") or "latest"
        return ""
    if shares := pairs(flag(words, "--to-revisions")):
        world["shares"] = {name: int(percent) for name, percent in shares.items()}
    for tag in flag(words, "--remove-tags").split(","):
        world["tags"].pop(tag, None)
    world["tags"].update(pairs(flag(words, "--update-tags")))
    return ""


def revisions(world, words):
    """The pool's, or a function's with a label, the newest first."""
    if not (label := flag(words, "--filter")):
        return json.dumps([revision(world, name) for name in world["images"]])
    name, pool = flag(words, "--service"), label.partition("=")[2]
    made = [number for number, of in enumerate(world["functions"].get(name, []), 1) if of == pool]
    return json.dumps([described(world, f"{name}-{number:05}") for number in reversed(made)])


def services(world, words):
    """All functions that were made; what is not known of one is that it is as Terraform made it."""
    found = []
    for name in world["outputs"]["function_names"].values():
        if name in world["unmade"]:
            continue
        made = world["functions"].get(name, [])
        newest = f"{name}-{len(made) + 1:05}"
        serving, _, percent = world["serving"].get(name, "latest").partition("=")
        traffic = {"revisionName": newest if serving == "latest" else serving, "percent": int(percent or 100)}
        status = {"url": f"https://{name}.example", "traffic": [traffic]}
        found.append({"metadata": {"name": name}, "status": status | described(world, newest)["status"]})
    return json.dumps(found)


def revision(world, name):
    return described(world, name) | {"spec": {"containers": [{"image": world["images"][name]}]}}


def described(world, name):
    active = {"type": "Active", "status": "False"}  # as without requests
    ready = {"type": "Ready", "status": "False" if name in world["unready"] else "True"}
    return {"metadata": {"name": name}, "status": {"conditions": [active, ready]}}


def leave_unready(world, words):
    """What Cloud Run keeps of a function's update that failed: a revision that has the label."""
    made = world["functions"].setdefault(words[3], [])
    made.append(pairs(flag(words, "--update-labels"))["pool"])
    world["unready"].append(f"{words[3]}-{len(made):05}")


GCLOUD = {
    "auth print-access-token": lambda world, words: "access-token",
    "auth print-identity-token": lambda world, words: "identity-token",
    "artifacts docker images describe": lambda world, words: world["digest"],
    "run services describe": lambda world, words: json.dumps(
        {"status": {"traffic": traffic(world), "latestCreatedRevisionName": max(world["images"])}}
    ),
    "run services list": services,
    "run services update": update,
    "run services update-traffic": update_traffic,
    "run revisions describe": lambda world, words: world["images"][words[3]],
    "run revisions list": revisions,
    "run jobs update": update,
    "run jobs execute": lambda world, words: "",
    "run jobs executions list": lambda world, words: json.dumps(
        [{"metadata": {"name": "publish-x1"}, "status": {"conditions": [{"type": "Completed", "status": "True"}]}}]
    ),
}


def answer(world, tool, words):
    if tool == "terraform":
        return terraform(world, words)
    if tool == "gcloud":
        known = max((name for name in GCLOUD if " ".join(words).startswith(f"{name} ")), key=len, default="")
        return GCLOUD[known](world, words) if known else GCLOUD[" ".join(words)](world, words)
    if tool == "git":
        return {"status": world["changed"], "config": world["origin"]}.get(words[0], "0123456789ab")
    return ""


def main():
    tool, words = TOOL, sys.argv[1:]
    with open(WORLD) as file:
        world = json.load(file)
    read = sys.stdin.read() if tool == "podman" and words[0] == "login" else ""
    with open(CALLS, "a") as calls:
        calls.write(json.dumps({"argv": [tool, *words], "stdin": read}) + "\n")
    said = " ".join([tool, *words])
    for failing in world["failing"]:
        if failing in said:
            print(f"{tool}: no such luck", file=sys.stderr)
            if flag(words, "--update-labels"):
                leave_unready(world, words)
                with open(WORLD, "w") as file:
                    json.dump(world, file)
            return 3
    before = json.dumps(world)
    text = answer(world, tool, words)
    if json.dumps(world) != before:  # of two in a pipe none does
        with open(WORLD, "w") as file:
            json.dump(world, file)
    if text:
        print(text)
    return 0


sys.exit(main())
