// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/units"
)

// ShapeFlags adjusts a command and its subcommands: duration flags accept days ("7d"), the help shows boolean flags
// without [=true|false], and a wrong number of arguments is a usage error.
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
				given = strings.Trim(fmt.Sprintf("%q", args), "[]")
			}
			return Usage("expected %s, got %s", cmd.UseLine(), given)
		}
	}
	for _, below := range cmd.Commands() {
		ShapeFlags(below)
	}
}

// flagErrors replaces errors of cobra, which name flags without dashes. The subexpression matches the names.
var flagErrors = []struct { //nolint:gochecknoglobals // a table
	cobra *regexp.Regexp
	text  string
}{
	{regexp.MustCompile(`^required flag\(s\) (.*) not set$`), "missing %s"},
	{regexp.MustCompile(`^at least one of the flags in the group \[(.*)\] is required$`), "at least one of %s is required"},
	{regexp.MustCompile(`must all be set; missing \[(.*)\]$`), "missing %s"},
	{regexp.MustCompile(`none of the others can be; \[(.*)\] were all set$`), "only one of %s is allowed"},
}

// checkFlags checks required flags and flag groups. It returns a usage error if a required flag is missing or flags
// exclude each other.
func checkFlags(cmd *cobra.Command) error {
	err := cmp.Or(cmd.ValidateRequiredFlags(), cmd.ValidateFlagGroups())
	if err == nil {
		return nil
	}
	for _, e := range flagErrors {
		if found := e.cobra.FindStringSubmatch(err.Error()); found != nil {
			names := strings.FieldsFunc(found[1], func(r rune) bool { return strings.ContainsRune(`", `, r) })
			return Usage(e.text, "--"+strings.Join(names, ", --"))
		}
	}
	return Usage("%w", err)
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

// ParsePageSize parses a page size, such as 16KiB or 16384. It returns 0 for an empty text, and a usage error for an
// invalid size.
func ParsePageSize(flag, text string) (uint32, error) {
	if text == "" {
		return 0, nil
	}
	n, err := config.ParseSize(text)
	if err != nil {
		return 0, Usage("%s: %v", flag, err)
	}
	if page.CheckPageSize(int(n)) != nil {
		return 0, Usage("%s %q: must be a multiple of %v, up to %v", flag, text, config.Size(page.MinPageBytes),
			config.Size(page.MaxPageBytes))
	}
	return uint32(n), nil
}

// AddFullSpeed adds the flag --full-speed, which disables the pauses for clients.
func AddFullSpeed(cmd *cobra.Command, full *bool) {
	cmd.Flags().BoolVar(full, "full-speed", false,
		"run without pauses for clients (ignores maintenance.background-share); may slow down publishers")
}

// WantsRaft parses the value of --coordinator, and reports whether it selects raft.
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

// KnownSubcommand rejects any argument of a command group as an unknown command. The error suggests similar commands,
// or lists all of them.
func KnownSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("unknown command %q for %q", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if names := cmd.SuggestionsFor(args[0]); len(names) > 0 {
		text += "; did you mean " + strings.Join(names, " or ") + "?"
	} else {
		text += "; available commands: " + strings.Join(subcommands(cmd), ", ")
	}
	return Usage("%s", text)
}

// NeedsSubcommand is the function of a command group, which requires a subcommand. It returns a usage error that
// lists the subcommands.
func NeedsSubcommand(cmd *cobra.Command, _ []string) error {
	return Usage("missing command for %q; available commands: %s", cmd.CommandPath(), strings.Join(subcommands(cmd), ", "))
}

func subcommands(cmd *cobra.Command) (names []string) {
	for _, below := range cmd.Commands() {
		if below.IsAvailableCommand() {
			names = append(names, below.Name())
		}
	}
	return names
}
