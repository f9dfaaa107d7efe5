// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockstep-mq/lockstep/store/units"
)

// ShapeFlags adjusts a command and its subcommands: durations accept days ("7d"), the help shows boolean flags without
// [=true|false], and a wrong number of arguments is a usage error.
func ShapeFlags(cmd *cobra.Command) {
	cmd.InitDefaultHelpFlag()
	for _, set := range []*pflag.FlagSet{cmd.PersistentFlags(), cmd.Flags()} {
		set.VisitAll(shape)
	}
	if check := cmd.Args; check != nil && !cmd.HasSubCommands() {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			err := check(cmd, args)
			if err == nil || errors.Is(err, ErrUsage) {
				return err
			}
			given := "no arguments"
			if len(args) > 0 {
				given = fmt.Sprintf("%q", args)
			}
			return Usage("expected %s, got %s", cmd.UseLine(), given)
		}
	}
	for _, below := range cmd.Commands() {
		ShapeFlags(below)
	}
}

func shape(f *pflag.Flag) {
	switch f.Value.(type) {
	case *days, *plain:
		return // persistent flags are visited more than once
	}
	switch f.Value.Type() {
	case "duration":
		f.Value = &days{f.Value}
		if f.DefValue == "0s" {
			f.DefValue = "0" // pflag omits "0", as for its own durations
		}
	case "bool":
		f.Value = &plain{f.Value}
	}
}

type days struct{ pflag.Value }

// Set implements pflag.Value.
func (d *days) Set(text string) error {
	return d.Value.Set(units.ExpandDays(text)) //nolint:wrapcheck // pflag adds the flag's name
}

// plain hides the method IsBoolFlag, so that the help does not show [=true|false].
type plain struct{ pflag.Value }
