// SPDX-License-Identifier: Apache-2.0

// Package s3 tests backups and log archives in a bucket of a real S3 server, versitygw with its posix backend. The
// tests kill the server during backups and restores, and make it slow or busy. run.sh installs the server and runs the
// tests. LOCKSTEP_S3_SERVER is the path of the server. If it is not set, the tests that require a server are skipped,
// and the contract of backup.Objects is checked only for a directory.
package s3
