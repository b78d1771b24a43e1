#!/usr/bin/env python3
"""Checks the chart and the manifests of this folder, without a cluster.

Usage: check-manifests.py [--helm HELM] [--crds FOLDER] [--flambeau FLAMBEAU MODEL]

Lints and renders the chart with each of its ci/*-values.yaml, and checks every object against Kubernetes' own schemas. Needs Helm, and
the Python packages kubernetes-validate and jsonschema. With --crds, objects of other kinds are checked against the definitions in that
folder; without it, they are counted as unchecked. With --flambeau, the program is started with the arguments of each rendered
container, with MODEL (a program or folder) in the place of its models, and must answer the container's probes.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

from report import Report

FOLDER = Path(__file__).resolve().parent
CHART = FOLDER / "helm" / "flambeau"
MANIFESTS = ["kserve/*.yaml", "ray/*service.yaml"]


class ManifestReport(Report):
    def __init__(self):
        super().__init__()
        # Number of objects without a definition, by kind.
        self.unchecked = {}


def closed(schema):
    """A schema that refuses fields it does not name, as `kubectl apply --validate=strict` does."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    keeps = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if "properties" in schema and not keeps and schema.get("type") == "object":
        result["additionalProperties"] = False
    if schema.get("x-kubernetes-int-or-string"):
        result.pop("type", None)
    return result


def read_crds(folder):
    """The schema of each kind and version in a folder of CustomResourceDefinitions."""
    schemas = {}
    for path in sorted(Path(folder).glob("*.yaml")) if folder else []:
        for crd in yaml.safe_load_all(path.read_text()):
            if not crd or crd.get("kind") != "CustomResourceDefinition":
                continue
            spec = crd["spec"]
            for version in spec["versions"]:
                schema = closed(version["schema"]["openAPIV3Schema"])
                schema["properties"]["metadata"] = {"type": "object"}
                schemas[f"{spec['group']}/{version['name']}", spec["names"]["kind"]] = schema
    return schemas


def check_object(report, where, item, schemas):
    kind = item["apiVersion"], item["kind"]
    name = f"{where}: {item['kind']} {item['metadata']['name']}"
    if kind in schemas:
        found = jsonschema.Draft7Validator(schemas[kind]).iter_errors(item)
        errors = [f"{'/'.join(map(str, error.path))}: {error.message}" for error in found]
        report.check(not errors, f"{name}: {errors}")
        return
    try:
        kubernetes_validate.validate(item, kubernetes_validate.latest_version(), strict=True)
        report.check(True, "")
    except kubernetes_validate.SchemaNotFoundError:
        report.unchecked[item["kind"]] = report.unchecked.get(item["kind"], 0) + 1
    except kubernetes_validate.ValidationError as error:
        report.check(False, f"{name}: {'/'.join(map(str, error.path))}: {error.message}")


def check_pod(report, where, spec, volumes_known=()):
    """Rules that no schema states: mounts have volumes, probes have ports, and no container may write to its image or be root."""
    volumes = {volume["name"] for volume in spec.get("volumes", [])} | set(volumes_known)
    for container in spec.get("initContainers", []) + spec["containers"]:
        name = f"{where}: container {container['name']}"
        mounts = {mount["name"] for mount in container.get("volumeMounts", [])}
        report.check(mounts <= volumes, f"{name} mounts {mounts - volumes}, which are no volumes")
        ports = {port for entry in container.get("ports", []) for port in (entry.get("name"), entry["containerPort"])}
        for probe in (value for key, value in container.items() if key.endswith("Probe")):
            report.check(probe["httpGet"]["port"] in ports, f"{name} is probed at a port that it does not have")
        security = {**spec.get("securityContext", {}), **container.get("securityContext", {})}
        report.check(security.get("readOnlyRootFilesystem") is True, f"{name} may write to its image")
        report.check(security.get("runAsNonRoot") is True and security.get("runAsUser", 0) > 0, f"{name} may be root")
        report.check(security.get("allowPrivilegeEscalation") is False, f"{name} may gain privileges")
        report.check(security.get("capabilities") == {"drop": ["ALL"]}, f"{name} keeps capabilities")


def pods(items):
    """Pod specifications in objects, each with the labels of its Pods."""
    for item in items:
        spec = item["spec"] if "spec" in item else {}
        if item["kind"] == "Deployment":
            yield item, spec["template"]["spec"], spec["template"]["metadata"]["labels"]
        elif item["kind"] == "ClusterServingRuntime":
            yield item, spec, {}
        elif item["kind"] == "LLMInferenceService":
            yield item, spec["template"], {}


def check_release(report, where, items):
    """Rules among the objects of one release."""
    deployments = list(pods(items))
    for item in items:
        spec = item.get("spec", {})
        selector = spec.get("selector", spec.get("podSelector"))
        if item["kind"] == "Deployment" or selector is None:
            continue
        labels = selector.get("matchLabels", selector)
        found = any(labels.items() <= pod_labels.items() for _, _, pod_labels in deployments)
        report.check(found, f"{where}: {item['kind']} selects no Pod: {labels}")


def serve(report, where, container, flambeau, model):
    """Starts the program as the container would, with another port, and asks what the probes ask."""
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        keys.write_text("secret\n")
        args = []
        for arg in container["args"]:
            arg = re.sub(r"^([^-=][^=]*)=/(models|mnt/models).*|^\{\{.Name\}\}=.*", lambda found: f"{found[1] or 'model'}={model}", arg)
            arg = re.sub(r"--port=\d+", "--port=0", arg).replace("=/cache", f"={folder}/cache").replace("/keys/keys", str(keys))
            args.append(arg)
        if "--engine=mlx" in args:
            args = [arg for arg in args if arg not in ("--engine=mlx", "--device=gpu")]
        log = Path(folder) / "log"
        with open(log, "w") as output:
            child = subprocess.Popen([flambeau, *args], stdout=output, stderr=subprocess.STDOUT, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        try:
            until = time.monotonic() + 120
            while not (found := re.search(r"listening on \S+?:(\d+)\s", log.read_text())):
                if child.poll() is not None or time.monotonic() > until:
                    report.check(False, f"{where}: flambeau {' '.join(args)}: {log.read_text()[-500:]}")
                    return
                time.sleep(0.1)
            server = f"http://127.0.0.1:{found[1]}"
            for probe in (value for key, value in container.items() if key.endswith("Probe")):
                path = probe["httpGet"]["path"]
                report.check(status(server + path) == 200, f"{where}: {path} answers {status(server + path)}")
            expected = 401 if "--insecure" not in args else 200
            report.check(status(server + "/v1/models") == expected, f"{where}: /v1/models answers {status(server + '/v1/models')}")
            report.check(status(server + "/metrics", "secret") == 200, f"{where}: /metrics answers {status(server + '/metrics', 'secret')}")
        finally:
            child.terminate()
        report.check(child.wait(timeout=90) == 0, f"{where}: the exit code after SIGTERM is {child.returncode}")


def status(url, key=None):
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {key}"} if key else {})
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status
    except urllib.error.HTTPError as error:
        return error.code


def render(report, helm, values):
    arguments = [str(CHART), "--values", str(values)]
    lint = subprocess.run([helm, "lint", "--strict", *arguments], capture_output=True, text=True, check=False)
    report.check(lint.returncode == 0, f"helm lint {values.name}: {lint.stdout}{lint.stderr}")
    command = [helm, "template", "chat", *arguments, "--namespace", "models"]
    rendered = subprocess.run(command, capture_output=True, text=True, check=False)
    report.check(rendered.returncode == 0, f"helm template {values.name}: {rendered.stderr}")
    return [item for item in yaml.safe_load_all(rendered.stdout) if item]


def check_refusals(report, helm):
    """Values that the chart must refuse."""
    wrong = [
        ("no model", {"models": []}),
        ("an unknown value", {"serverr": {}}),
        ("a model without files", {"models": [{"name": "a"}]}),
        ("a pulled model in an image volume", {"volume": {"image": "a:1"}, "models": [{"name": "a", "hub": "b/c"}]}),
        ("a user that is root", {"user": 0}),
    ]
    for what, values in wrong:
        command = [helm, "template", "chat", str(CHART), "--values", "-"]
        done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)
        report.check(done.returncode != 0, f"the chart takes {what}")


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--helm", default="helm")
    arguments.add_argument("--crds")
    arguments.add_argument("--flambeau", nargs=2, metavar=("FLAMBEAU", "MODEL"))
    args = arguments.parse_args()
    report, schemas = ManifestReport(), read_crds(args.crds)
    releases = [(values.name, render(report, args.helm, values)) for values in sorted(CHART.glob("ci/*-values.yaml"))]
    check_refusals(report, args.helm)
    for where, items in releases:
        check_release(report, where, items)
    for path in sorted(path for pattern in MANIFESTS for path in FOLDER.glob(pattern)):
        releases.append((str(path.relative_to(FOLDER)), [item for item in yaml.safe_load_all(path.read_text()) if item]))
    for where, items in releases:
        for item in items:
            check_object(report, where, item, schemas)
        for item, spec, _ in pods(items):
            check_pod(report, where, spec)
            if args.flambeau:
                serve(report, where, spec["containers"][0], *args.flambeau)
    for kind, count in sorted(report.unchecked.items()):
        print(f"not checked, its definition is not there: {kind} ({count})")
    print(f"{report.passed} passed, {report.failed} failed")
    return int(report.failed > 0)


if __name__ == "__main__":
    sys.exit(main())
