// SPDX-License-Identifier: Apache-2.0

package commands_test

import (
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// Every duration flag accepts days, and no boolean flag is shown with its values.
func TestFlagForms(t *testing.T) {
	durations := 0
	var each func(cmd *cobra.Command)
	each = func(cmd *cobra.Command) {
		require.NotContains(t, cmd.UsageString(), "true|false", cmd.CommandPath())
		require.NotContains(t, cmd.UsageString(), "(default 0s)", cmd.CommandPath())
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "duration" {
				durations++
				require.NoError(t, f.Value.Set("7d"), "%s --%s", cmd.CommandPath(), f.Name)
				d, err := time.ParseDuration(f.Value.String())
				if err == nil { // node settings keep their text for config.Load
					require.Equal(t, 7*24*time.Hour, d, "%s --%s", cmd.CommandPath(), f.Name)
				}
			}
		})
		for _, below := range cmd.Commands() {
			each(below)
		}
	}
	each(newRoot())
	require.Greater(t, durations, 20)
}
