// SPDX-License-Identifier: Apache-2.0

package harness

// SmallNodes are settings for nodes that share one machine with others, perhaps a nearly full one.
func SmallNodes() map[string]string {
	return map[string]string{"disk-low-watermark": "16MiB", "wal-segment-bytes": "16MiB", "memory-budget": "128MiB"}
}
