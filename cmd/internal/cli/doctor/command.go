// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/server/config"
)

type report struct {
	Problems   int       `json:"problems"`
	Warnings   int       `json:"warnings"`
	NotChecked int       `json:"not_checked"`
	Findings   []Finding `json:"findings"`
}

// Command returns the `lockstep doctor` command.
func Command(env *cli.Env) *cobra.Command {
	var file, peer string
	cmd := &cobra.Command{
		Use: "doctor", GroupID: "operate",
		Short: "Check the machine and settings of a node",
		Long: `Check the settings of a node, its machine, its coordinator and the other node for problems. Run the command
on the node's machine as the user of the node, with the same file, flags and environment as lockstep serve. Some
checks are available on Linux only.

The node can be running. The command does not change its files, but writes small temporary files to the data
directory or, if it does not exist, to its nearest existing parent directory, to test the disk.

The exit code is 1 if a check reports a problem.`,
		Example: `  lockstep doctor --config /etc/lockstep/node.yaml
  lockstep doctor --config node.yaml --peer 10.0.0.2:7420
  sudo -u lockstep lockstep doctor --config /etc/lockstep/node.yaml --output json | jq '.findings[] | select(.verdict != "ok")'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			environ := slices.DeleteFunc(slices.Clone(env.Environ),
				func(s string) bool { return strings.HasPrefix(s, cli.EnvAddr+"=") })
			cfg, err := config.Load(file, environ, cmd.Flags())
			if errors.Is(err, config.ErrInvalid) {
				return printReport(env, []Finding{
					{
						Check: "settings", Verdict: Problem, Measured: err.Error(), Meaning: "the node does not start",
						Do: "correct them; docs/reference/configuration.md lists all settings",
					},
					{Check: "all other checks", Verdict: NotChecked, Meaning: "they require valid settings"},
				})
			}
			if err != nil {
				return err
			}
			found := []Finding{{Check: "settings", Verdict: OK, Measured: "valid"}}
			for _, w := range cfg.Warnings {
				found = append(found, Finding{Check: "settings", Verdict: Warning, Measured: w})
			}
			found = append(found, Run(cmd.Context(), Options{Config: cfg, Peer: peer, Version: env.Version})...)
			return printReport(env, found)
		},
	}
	cmd.Flags().StringVar(&file, "config", "", "YAML file with settings")
	cmd.Flags().StringVar(&peer, "peer", "",
		"address of the other node, host:port; default with etcd: the address in the cluster record")
	config.RegisterFlags(cmd.Flags())
	return cmd
}

func printReport(env *cli.Env, found []Finding) error {
	r := report{Findings: found}
	for i := range found {
		f := &found[i]
		switch f.Verdict {
		case Problem:
			r.Problems++
		case Warning:
			r.Warnings++
		case NotChecked:
			r.NotChecked++
		case OK:
		}
		if err := env.Print.Sentence("%s", text(f)); err != nil {
			return err
		}
	}
	if err := env.Print.Object(r); err != nil {
		return err
	}
	err := env.Print.Sentence("\n%s, %s, %d not checked, of %s", output.Plural(r.Problems, "problem"),
		output.Plural(r.Warnings, "warning"), r.NotChecked, output.Plural(len(found), "check"))
	if err == nil && r.Problems > 0 {
		err = cli.WithHint(fmt.Errorf("%s found", output.Plural(r.Problems, "problem")),
			"`lockstep doctor` again after the fix")
	}
	return err
}

func text(f *Finding) string {
	verdict := strings.ToUpper(string(f.Verdict))
	if f.Verdict == OK {
		verdict = "ok"
	}
	line := fmt.Sprintf("%-11s  %s", verdict, f.Check)
	if f.Subject != "" {
		line += ", " + f.Subject
	}
	if f.Measured != "" {
		line += ": " + f.Measured
	}
	for _, more := range []struct{ name, text string }{{"means", f.Meaning}, {"do", f.Do}} {
		if more.text != "" && (f.Verdict != OK || more.name == "means") {
			line += fmt.Sprintf("\n%13s%s: %s", "", more.name, more.text)
		}
	}
	return line
}
