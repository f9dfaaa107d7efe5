// SPDX-License-Identifier: Apache-2.0

// Package s3 has tests only: save-sets and log archives in a bucket of a real S3 server, versitygw with its posix
// backend, which is killed in the middle of both directions, slow, and busy. run.sh installs it and runs them. Without
// LOCKSTEP_S3_SERVER, the path of that program, the tests that need a server are skipped, and the contract of
// backup.Objects is held for the directory alone.
package s3
