// SPDX-License-Identifier: Apache-2.0

package config

// formerUntil is the release that removes former names of settings.
const formerUntil = "0.3.0"

// removedGroup is a group of settings that release 0.1.0 had. It is ignored with a warning.
const removedGroup = "maintenance.autotune"

// formerKeys returns the names of a setting in the last release, which are accepted with a warning. Until 0.1.0 the
// message log and the process log shared one group.
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
