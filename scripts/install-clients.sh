#!/usr/bin/env bash
# Installs the clients of the server's tests into target/clients: Python packages (see below), and for Node.js openai, the
# AI SDK, playwright-core and axe-core. The page's test also needs a Chromium, such as Debian's package chromium. A failed installation
# is reported, and its tests are skipped. A test compares these versions with the table in docs/serve.md. Usage: scripts/install-clients.sh
set -euo pipefail
cd "$(dirname "$0")/.."
venv=target/clients
packages="openai==3.57.* anthropic==2.14.* cohere==7.3.* langchain-openai==1.7.* ollama==0.6.* websockets==17.4.*
  openapi-spec-validator==0.9.* opentelemetry-proto==1.45.*"
python() {
  if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv" || { echo "skipped: python3 has no venv module" >&2; return; }
  fi
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check $packages ||
    echo "skipped: pip cannot install $packages" >&2
}
node() {
  command -v npm > /dev/null || { echo "skipped: there is no npm" >&2; return; }
  mkdir -p "$venv/node"
  npm install --silent --no-audit --no-fund --prefix "$venv/node" openai@6.49 ai@6.0 @ai-sdk/openai-compatible@2.0 \
    playwright-core axe-core ||
    echo "skipped: npm cannot install openai, ai, playwright-core and axe-core" >&2
}
python
node
command -v chromium > /dev/null || command -v google-chrome > /dev/null || echo "the page's test needs Debian's package chromium, which is not there" >&2
