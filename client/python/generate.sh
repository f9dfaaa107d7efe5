#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Writes the generated protobuf code of the package from proto/, with the pinned grpcio-tools. With --check, reports
# whether the committed code is up to date. Usage: client/python/generate.sh [--check]   (PYTHON is the interpreter)
set -euo pipefail
cd "$(dirname "$0")"

python=${PYTHON:-python3}
into=src/lockstep_mq/_proto
wanted=$(sed -n 's/^grpcio-tools==//p' requirements-dev.txt)
found=$("$python" -c 'import importlib.metadata as m; print(m.version("grpcio-tools"))')
if [[ $found != "$wanted" ]]; then
  echo "grpcio-tools is $found; the generated code is made with $wanted (requirements-dev.txt)" >&2
  exit 2
fi

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
protos=(lockstep/v1/types.proto lockstep/v1/errors.proto lockstep/v1/queue.proto lockstep/v1/admin.proto lockstep/v1/maintenance.proto
  lockstep/v1/connection.proto lockstep/v1/schedule.proto lockstep/v1/site.proto lockstep/v1/fleet.proto)
"$python" -m grpc_tools.protoc -I ../../proto --python_out="$scratch" --pyi_out="$scratch" "${protos[@]}"

# Inside the package, so that the generated modules do not collide with others named lockstep.
out=$scratch/out
mkdir -p "$out"
for file in "$scratch"/lockstep/v1/*.py "$scratch"/lockstep/v1/*.pyi; do
  {
    echo '# SPDX-License-Identifier: Apache-2.0'
    sed -e 's/^from lockstep\.v1 import/from lockstep_mq._proto import/' "$file"
  } >"$out/$(basename "$file")"
done
printf '# SPDX-License-Identifier: Apache-2.0\n"""Generated from proto/lockstep/v1 by client/python/generate.sh. Not part of the public interface."""\n' >"$out/__init__.py"

if [[ ${1:-} == --check ]]; then
  if ! diff -rq -x __pycache__ "$out" "$into"; then
    echo "the generated code is not up to date: run client/python/generate.sh" >&2
    exit 1
  fi
  exit 0
fi
rm -rf "$into"
cp -r "$out" "$into"
