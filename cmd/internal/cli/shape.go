// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockstep-mq/lockstep/store/units"
)

// ShapeFlags gives the flags of a command and of those below it their form: durations take days ("7d"), and the help
// shows boolean flags without [=true|false]. A wrong number of arguments is refused with the usage of the command.
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
		return // a persistent flag is seen more than once
	}
	switch f.Value.Type() {
	case "duration":
		f.Value = &days{f.Value}
		if f.DefValue == "0s" {
			f.DefValue = "0" // which pflag does not show, as for its own durations
		}
	case "bool":
		f.Value = &plain{f.Value}
	}
}

// days is the value of a flag that takes days, too.
type days struct{ pflag.Value }

// Set implements pflag.Value.
func (d *days) Set(text string) error {
	return d.Value.Set(units.ExpandDays(text)) //nolint:wrapcheck // pflag adds the flag's name
}

// plain is the value of a boolean flag that is not shown as [=true|false]: without the method IsBoolFlag.
type plain struct{ pflag.Value }
