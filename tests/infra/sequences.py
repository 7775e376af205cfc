"""The commands that each target runs, in order, where nothing fails."""

from __future__ import annotations

from tests.infra.cloud import IMAGE, NEW, REGISTRY

PLACE = "--region=europe-west4 --project=my-project-1"
TERRAFORM = "terraform -chdir=infra/terraform/examples/dev"
PLAN = "-out=warmpool.tfplan -var=project=my-project-1 -var=region=europe-west4"
APPLY = f"{TERRAFORM} apply -input=false warmpool.tfplan"
OUTPUTS = f"{TERRAFORM} output -json"
COMMIT = ["git status --porcelain", "git rev-parse --short=12 HEAD"]
ORIGIN = "git config --get remote.origin.url"
FUNCTIONS = "--build-arg=FUNCTIONS=examples --build-arg=REQUIREMENTS=examples/requirements-function.lock "


def digest_of(name: str) -> str:
    """Where in the registry an image is."""
    described = f"gcloud artifacts docker images describe {REGISTRY}/{name}:0123456789ab --project=my-project-1"
    return f"{described} --format=value(image_summary.digest)"


def _build(folder: str, name: str, more: str) -> str:
    file = f"podman build --file=infra/images/{folder}/Containerfile --target={name}"
    from_where = "--build-arg=REVISION=0123456789ab --build-arg=SOURCE=https://git.example/warmpool.git"
    return f"{file} {from_where} {more}--tag=localhost/warmpool/{name}:0123456789ab ."


def _push(name: str) -> list[str]:
    remote = f"{REGISTRY}/{name}:0123456789ab"
    return [f"podman tag localhost/warmpool/{name}:0123456789ab {remote}", f"podman push {remote}"]


PUSH = [
    "gcloud auth print-access-token",
    "podman login --username oauth2accesstoken --password-stdin europe-west4-docker.pkg.dev",
    *_push("function"),
    *_push("instance"),
    *_push("publisher"),
]
PRECOMPILE = [
    f"gcloud run jobs update warmpool-dev-publish --image={REGISTRY}/publisher@{NEW} {PLACE} --quiet",
    f"gcloud run jobs execute warmpool-dev-publish --wait {PLACE} --quiet",
]
SEQUENCES = {
    "infra-init": [f"{TERRAFORM} init -input=false"],
    "infra-plan": [f"{TERRAFORM} plan -input=false {PLAN}"],
    "infra-up": [f"{TERRAFORM} plan -input=false {PLAN}", APPLY],
    "infra-down": [f"{TERRAFORM} show -json", f"{TERRAFORM} plan -input=false -destroy {PLAN}", APPLY],
    "image": [
        *COMMIT,
        ORIGIN,
        _build("function", "function", FUNCTIONS),
        _build("instance", "instance", "--build-arg=VARIANT=cpu "),
        _build("instance", "publisher", "--build-arg=VARIANT=cpu "),
    ],
    "push": [*COMMIT, OUTPUTS, *PUSH],
    "precompile": [OUTPUTS, *COMMIT, digest_of("publisher"), *PRECOMPILE],
    "status": [
        OUTPUTS,
        f"gcloud run services describe warmpool-dev-pool {PLACE} --format=json",
        f"gcloud run revisions list --service=warmpool-dev-pool {PLACE} --format=json",
        f"gcloud run services list {PLACE} --format=json",
        f"gcloud run jobs executions list --job=warmpool-dev-publish --limit=1 {PLACE} --format=json",
    ],
}

DESCRIBE = SEQUENCES["status"][1]
TRAFFIC = "gcloud run services update-traffic warmpool-dev-pool"
TOKEN = (
    "gcloud auth print-identity-token --impersonate-service-account=function@my-project-1.iam "
    "--audiences=https://pool.example"
)
IDENTIFY = [OUTPUTS, *COMMIT, digest_of("instance"), digest_of("publisher"), digest_of("function")]
LOOK = [DESCRIBE, f"gcloud run revisions describe pool-00001 {PLACE} --format=value(spec.containers[0].image)"]
ADD = f"gcloud run services update warmpool-dev-pool --image={IMAGE}@{NEW} --no-traffic --tag=canary {PLACE} --quiet"
SHARE = f"{TRAFFIC} --to-revisions=pool-00002=10,pool-00001=90 --update-tags=stable=pool-00001 {PLACE} --quiet"
_MOVED = "--update-tags=previous=pool-00001 --remove-tags=canary,stable"
PROMOTE = f"{TRAFFIC} --to-revisions=pool-00002=100 {_MOVED} {PLACE} --quiet"
BACK = f"{TRAFFIC} --to-revisions=pool-00001=100 --remove-tags=canary,stable {PLACE} --quiet"
TRIAL = [ADD, DESCRIBE, TOKEN, SHARE, DESCRIBE]
POOL = [*IDENTIFY, *LOOK, *PRECOMPILE, *TRIAL, DESCRIBE, PROMOTE]


def _follow(name: str) -> list[str]:
    image = f"--image={REGISTRY}/function@{NEW} --update-labels=pool=pool-00002"
    return [
        f"gcloud run services update warmpool-dev-{name} {image} {PLACE} --quiet",
        f"gcloud run services update-traffic warmpool-dev-{name} --to-latest {PLACE} --quiet",
    ]


def find(name: str, pool: str) -> str:
    """Looks for what of a function was deployed with a revision of the pool."""
    wanted = f"--filter=metadata.labels.pool={pool} --sort-by=~metadata.creationTimestamp"
    return f"gcloud run revisions list --service=warmpool-dev-{name} {wanted} {PLACE} --format=json"


def send_back(name: str, revision: str) -> str:
    """Gives a function's requests to a revision of it."""
    function = f"warmpool-dev-{name}"
    return f"gcloud run services update-traffic {function} --to-revisions={function}-{revision}=100 {PLACE} --quiet"


FOLLOWERS = [
    *_follow("digits"),
    *_follow("embed"),
    f"gcloud run jobs update warmpool-dev-gc --image={REGISTRY}/publisher@{NEW} {PLACE} --quiet",
]
DEPLOY = [*POOL, *FOLLOWERS]
