"""Renders the chart and hands out what is in it."""

import functools
import json
import os
import pathlib
import re
import subprocess
import tempfile

import jsonschema
import yaml
from kubernetes_validate import utils as kubernetes

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHART = ROOT / "helm" / "actiond"
MATRIX = {path.name.removesuffix("-values.yaml"): path for path in sorted((CHART / "ci").glob("*-values.yaml"))}
TOOLS = pathlib.Path(os.environ.get("TOOLS", ROOT / "target" / "tools"))
ACTIOND = pathlib.Path(os.environ.get("ACTIOND", ROOT / "target" / "debug" / "actiond")).resolve()
HELMS = ("helm4", "helm3")
OLDEST, NEWEST = "1.29", "1.37"

# Every validation would read megabytes of definitions again.
kubernetes.schema_contents = functools.cache(kubernetes.schema_contents)


class Refused(Exception):
    """What helm said."""


def helm(binary, *arguments):
    done = subprocess.run([TOOLS / binary, *arguments], capture_output=True, text=True)
    if done.returncode:
        raise Refused(done.stderr)
    return done.stdout


@functools.cache
def text(name="minimal", *arguments, binary="helm4", version=NEWEST, namespace="agents"):
    """The rendered manifests of a file of the matrix, as text."""
    values = ["--values", str(MATRIX[name])] if name else []
    return helm(binary, "template", "rel", str(CHART), *values, "--namespace", namespace, "--kube-version", f"{version}.0", *arguments)


def objects(*arguments, **options):
    return [item for item in yaml.safe_load_all(text(*arguments, **options)) if item]


class Release:
    """The objects of one rendering by kind and name."""

    def __init__(self, *arguments, **options):
        self.objects = objects(*arguments, **options)

    def all(self, kind):
        return [item for item in self.objects if item["kind"] == kind]

    def one(self, kind, name=None):
        found = [item for item in self.all(kind) if name is None or item["metadata"]["name"] == name]
        assert len(found) == 1, f"{kind} {name}: {[item['metadata']['name'] for item in self.all(kind)]}"
        return found[0]

    def pods(self):
        """(metadata, spec, name of its owner) of everything that becomes a pod."""
        for item in self.objects:
            if item["kind"] == "Pod":
                yield item["metadata"], item["spec"], item["metadata"]["name"]
            elif "template" in item.get("spec", {}) and item["kind"] != "ScaledObject":
                template = item["spec"]["template"]
                yield template["metadata"], template["spec"], item["metadata"]["name"]

    def container(self, owner):
        spec = next(spec for _, spec, name in self.pods() if name == owner)
        return next(c for c in spec["containers"] if c["name"] in ("actiond", "migrate", "send"))

    def secret(self, name):
        return self.one("Secret", name)["stringData"]

    def environment(self, owner):
        """What the container gets. Values of Secrets that the chart does not make are made up by the name of the variable."""
        container, out = self.container(owner), {}
        for source in container.get("envFrom", []):
            name = source.get("secretRef", {}).get("name")
            if any(s["metadata"]["name"] == name for s in self.all("Secret")):
                out |= self.secret(name)
            else:
                out |= {variable: made_up(variable) for variable in self.variables(owner)}
        for variable in container["env"]:
            reference = variable.get("valueFrom", {}).get("secretKeyRef")
            if reference and any(s["metadata"]["name"] == reference["name"] for s in self.all("Secret")):
                out[variable["name"]] = self.secret(reference["name"])[reference["key"]]
            elif reference:
                out[variable["name"]] = made_up(variable["name"])
            elif "value" in variable:
                out[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda m: out.get(m[1], m[0]), variable["value"])
        return out

    def config(self, owner):
        """The text of actiond.yaml that the pod mounts."""
        _, spec, _ = next(pod for pod in self.pods() if pod[2] == owner)
        volume = next(v for v in spec["volumes"] if v["name"] == "config")
        return self.one("ConfigMap", volume["configMap"]["name"])["data"]["actiond.yaml"]

    def variables(self, owner):
        return set(re.findall(r"(?<!\$)\$\{([A-Za-z_]\w*)\}", self.config(owner)))

    def check(self, owner):
        """The config in the pod's environment, by the program itself: its status and what it said."""
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "actiond.yaml"
            secret = pathlib.Path(folder) / "secret"
            secret.write_text("a-secret-of-some-length")
            file.write_text(re.sub(r"\$\{file:[^}]*\}", f"${{file:{secret}}}", self.config(owner)))
            done = subprocess.run([ACTIOND, "check", "--config", file], env=self.environment(owner), capture_output=True, text=True)
            return done.returncode, done.stdout + done.stderr


def made_up(variable):
    if "AMQP" in variable:
        return "amqp://user:password@rabbitmq:5672/%2F"
    if "DATABASE" in variable:
        return "postgres://user:password@postgresql:5432/actiond"
    if "WEBHOOK_SECRET" in variable:
        return "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
    return f"made-up-{variable}"


def problems(item, version):
    """What the strict schema of its kind has against an object; custom resources have theirs in schemas/."""
    own = ROOT / "tests" / "charts" / "schemas" / f"{item['kind']}.json"
    try:
        if own.exists():
            jsonschema.Draft202012Validator(json.loads(own.read_text())).validate(item)
        else:
            kubernetes.validate(item, version, strict=True)
    except jsonschema.ValidationError as error:
        return f"{'.'.join(map(str, error.absolute_path))}: {error.message}"
    return None
