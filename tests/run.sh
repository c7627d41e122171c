#!/usr/bin/env bash
# Sets up and runs the tests.
#   bash tests/run.sh           everything but what the next two run; no torch
#   bash tests/run.sh parity    adds torch and compares live with transformers
#   bash tests/run.sh slow      the learning proofs (about an hour)
# Further arguments go to pytest.
set -euo pipefail
cd "$(dirname "$0")/.."
source launch/setup.sh
what=fast
case "${1:-}" in
  -*|"") ;;  # options of pytest
  *) what=$1; shift ;;
esac
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
case "$what" in
  fast)   make_venv .venv test;               exec .venv/bin/python -m pytest "$@" ;;
  parity) make_venv .venv-parity test,parity; exec .venv-parity/bin/python -m pytest -m parity "$@" ;;
  slow)   make_venv .venv test;               exec .venv/bin/python -m pytest -m slow "$@" ;;
  *)      echo "tests/run.sh: unknown argument $what; use nothing, parity or slow" >&2; exit 2 ;;
esac
