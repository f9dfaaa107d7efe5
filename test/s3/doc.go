// SPDX-License-Identifier: Apache-2.0

// Package s3 tests backups and log archives in a bucket of a real S3 server: versitygw with its posix backend, which
// is killed during backup and restore, slow, and busy. run.sh installs it and runs the tests. LOCKSTEP_S3_SERVER is
// the path of that program. Without it, the tests that require a server are skipped, and the contract of
// backup.Objects is checked for the directory only.
package s3
