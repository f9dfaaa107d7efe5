// SPDX-License-Identifier: Apache-2.0

package config

// formerUntil is the release that takes former names of settings away.
const formerUntil = "0.3.0"

// formerKeys gives the names that a setting had in the last release. They are accepted with a warning. Until 0.1.0 the
// log of messages and the log lines of the process shared one group.
func formerKeys(key string) []string {
	switch key {
	case "wal.keep-bytes":
		return []string{"log.keep-bytes"}
	case "wal.segment-bytes":
		return []string{"log.segment-bytes"}
	case "wal.archive":
		return []string{"log.archive"}
	case "wal.archive-interval":
		return []string{"log.archive-interval"}
	case "wal.archive-hold-bytes":
		return []string{"log.archive-hold-bytes"}
	default:
		return nil
	}
}
