#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Tests backups and the log archive with a real S3 server: installs versitygw into a separate directory and runs the
# tests of this package. Exit code 0: success; 3, with a one-line reason: the test cannot run here.
set -eu
cd "$(dirname "$0")/../.."
version=v1.8.0
tools=${LOCKSTEP_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/lockstep/tools}/versitygw-$version
if [ -z "${LOCKSTEP_S3_SERVER:-}" ]; then
	LOCKSTEP_S3_SERVER=$tools/versitygw
	if [ ! -x "$LOCKSTEP_S3_SERVER" ]; then
		mkdir -p "$tools"
		if ! why=$(cd "$tools" && GOFLAGS=-mod=mod GOWORK=off GOBIN="$tools" \
			go install "github.com/versity/versitygw/cmd/versitygw@$version" 2>&1); then
			echo "versitygw $version cannot be installed: $(echo "$why" | tail -1)"
			exit 3
		fi
	fi
fi
export LOCKSTEP_S3_SERVER
go test -tags deep -count=1 -timeout 20m ./test/s3 "$@"
