#!/usr/bin/env bash
# Checks the folder deploy with the tools of scripts/install-deploy.sh: the dashboard and the rules against a Prometheus that reads a
# running server, the chart and the manifests against schemas and that server, the Dockerfiles, and the Ray application where Ray is
# installed. Usage: scripts/check-deploy.sh FLAMBEAU [MODEL]
set -uo pipefail
cd "$(dirname "$0")/.."
flambeau=$(realpath "$1")
model=$(realpath "${2:-crates/flambeau/examples/data/tiny-llama}")
bin=target/deploy/bin
failed=0
check() {
  echo "== $*"
  "$@" || { echo "FAILED: $*" >&2; failed=1; }
}
has() { "$bin/python" -c "import $1" 2> /dev/null; }

if command -v prometheus > /dev/null; then check python3 deploy/prometheus/check.py "$flambeau" "chat=$model"; else echo "== left out, there is no prometheus"; fi
if [ -x "$bin/helm" ] && has kubernetes_validate; then
  check "$bin/python" deploy/check-manifests.py --helm "$bin/helm" --flambeau "$flambeau" "$model"
else
  echo "== left out, there is no Helm or no kubernetes-validate: the chart"
fi
if [ -x "$bin/hadolint" ]; then check "$bin/hadolint" deploy/docker/*.Dockerfile; else echo "== left out, there is no hadolint: the Dockerfiles"; fi
if has ray; then check "$bin/python" deploy/ray/check.py "$flambeau" "$model"; else echo "== left out, there is no ray: the Ray application"; fi
exit "$failed"
