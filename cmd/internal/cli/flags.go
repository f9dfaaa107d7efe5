// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/spf13/cobra"
)

// ParsePageSize parses a page size, such as 16KiB or 16384; empty returns 0.
func ParsePageSize(flag, text string) (uint32, error) {
	if text == "" {
		return 0, nil
	}
	n, err := config.ParseSize(text)
	if err != nil {
		return 0, Usage("%s: %v", flag, err)
	}
	if err := page.CheckPageSize(int(n)); err != nil {
		return 0, Usage("%s: %v", flag, err)
	}
	return uint32(n), nil
}

// AddFullSpeed adds the flag that disables throttling.
func AddFullSpeed(cmd *cobra.Command, full *bool) {
	cmd.Flags().BoolVar(full, "full-speed", false,
		"disable rate limits (ignores maintenance.background-share); may slow down publishers")
}

// WantsRaft parses the flag --coordinator and reports whether it selects raft.
func WantsRaft(coordinator string) (bool, error) {
	switch coordinator {
	case "etcd":
		return false, nil
	case "raft":
		return true, nil
	default:
		return false, Usage("--coordinator %q: must be etcd or raft", coordinator)
	}
}
