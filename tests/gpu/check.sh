#!/usr/bin/env bash
# Everything that only a CUDA machine can check, in under 8 minutes. Prints one JSON document; exit 1 where it fails.
# Without a CUDA device it says so in the same form and exits with 0: usage: tests/gpu/check.sh [--out FILE]
set -euo pipefail
cd "$(dirname "$0")/../.."
python=.venv/bin/python
[ -x "$python" ] || python=python3
exec "$python" -m tests.gpu.check "$@"
