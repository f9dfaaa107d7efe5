// SPDX-License-Identifier: Apache-2.0

// Package profile implements the commands for profiles, which store addresses and credentials of pairs.
package profile

import (
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/profiles"
)

// Command returns the `lockstep profile` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "profile", GroupID: "use", Short: "Manage connection profiles",
		Long: `A profile contains the addresses of a pair, the paths of TLS files, and a token or the path of a token file.
lockstep login creates it. Other commands use the current profile unless addresses (--addr, LOCKSTEP_ADDR) or another
profile (--profile, LOCKSTEP_PROFILE) are given. Flags and environment variables take precedence over the profile.

The profiles are in the file lockstep/config.yaml in the user's configuration directory, such as ~/.config, or in the
file named by LOCKSTEP_PROFILES.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddCommand(listCommand(env), useCommand(env), showCommand(env), deleteCommand(env))
	return cmd
}

// shown is the output for a profile. Its token is masked.
type shown struct {
	Name        string   `json:"name"`
	Current     bool     `json:"current"`
	Addresses   []string `json:"addresses"`
	CA          string   `json:"ca,omitempty"`
	Certificate string   `json:"certificate,omitempty"`
	Key         string   `json:"key,omitempty"`
	Token       string   `json:"token,omitempty"`
	TokenFile   string   `json:"token_file,omitempty"`
}

func newShown(name string, p *profiles.Profile, current string) shown {
	return shown{
		Name: name, Current: name == current, Addresses: p.Addresses, CA: p.CA, Certificate: p.Certificate, Key: p.Key,
		Token: profiles.Masked(p.Token), TokenFile: p.TokenFile,
	}
}

func (s *shown) token() string {
	switch {
	case s.Token != "":
		return s.Token
	case s.TokenFile != "":
		return "in " + s.TokenFile
	}
	return "none"
}

func (s *shown) tls() string {
	switch {
	case s.Certificate != "":
		return "with a certificate"
	case s.CA != "":
		return "yes"
	}
	return "no"
}

func listCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List profiles",
		Long:    "List the profiles of this user. Stored tokens are masked.",
		Example: "  lockstep profile list\n  lockstep profile list --output json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			f, err := env.Profiles()
			if err != nil {
				return err
			}
			var rows [][]any
			for _, name := range f.Names() {
				p := f.Profiles[name]
				s := newShown(name, &p, f.Current)
				if err := env.Print.Object(s); err != nil {
					return err
				}
				rows = append(rows, []any{s.Name, output.YesNo(s.Current), strings.Join(s.Addresses, ","), s.tls(), s.token()})
			}
			if len(rows) == 0 {
				return env.Print.Sentence("no profiles; to create one, use lockstep login")
			}
			return env.Print.Table([]string{"Profile", "Current", "Addresses", "TLS", "Token"}, rows)
		},
	}
}

func useCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "use PROFILE", Short: "Set the current profile",
		Long: `Set the current profile. Commands use it if neither addresses (--addr, LOCKSTEP_ADDR) nor a profile
(--profile, LOCKSTEP_PROFILE) are given.`,
		Example: "  lockstep profile use production",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return change(env, args[0], func(f *profiles.File, p profiles.Profile) error {
				f.Current = args[0]
				if err := f.Save(); err != nil {
					return err
				}
				return env.Print.Result(newShown(args[0], &p, f.Current), "profile %s is the current profile", args[0])
			})
		},
	}
}

func namedOrCurrent(f *profiles.File, args []string) (name string, p profiles.Profile, err error) {
	name = f.Current
	if len(args) > 0 {
		name = args[0]
	}
	if name == "" {
		return "", p, cli.WithHint(errors.New("no current profile"),
			"`lockstep profile list` to list the profiles, and one of their names as the argument")
	}
	p, err = f.Get(name)
	return name, p, err
}

func showCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "show [PROFILE]", Short: "Show a profile without its token",
		Long:    "Show a profile, by default the current one. A stored token is masked.",
		Example: "  lockstep profile show\n  lockstep profile show production --output json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			f, err := env.Profiles()
			if err != nil {
				return err
			}
			name, p, err := namedOrCurrent(f, args)
			if err != nil {
				return err
			}
			s := newShown(name, &p, f.Current)
			if err := env.Print.Object(s); err != nil {
				return err
			}
			return env.Print.Pairs([][2]string{
				{"Profile", s.Name},
				{"Current", output.YesNo(s.Current)},
				{"Addresses", strings.Join(s.Addresses, ", ")},
				{"CA", s.CA},
				{"Certificate", s.Certificate},
				{"Key", s.Key},
				{"Token", s.token()},
				{"File", f.Path()},
			})
		},
	}
}

func deleteCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "delete PROFILE", Aliases: []string{"rm"}, Short: "Delete a profile and its token",
		Long: "Delete a profile with its stored token. The token stays valid; to revoke a static token, use lockstep " +
			"access token revoke. A token file is not deleted.",
		Example: "  lockstep profile delete staging",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return change(env, args[0], func(f *profiles.File, p profiles.Profile) error {
				delete(f.Profiles, args[0])
				if f.Current == args[0] {
					f.Current = ""
				}
				if err := f.Save(); err != nil {
					return err
				}
				return env.Print.Result(newShown(args[0], &p, f.Current), "deleted profile %s", args[0])
			})
		},
	}
}

func change(env *cli.Env, name string, fn func(*profiles.File, profiles.Profile) error) error {
	f, err := env.Profiles()
	if err != nil {
		return err
	}
	p, err := f.Get(name)
	if err != nil {
		return err
	}
	return fn(f, p)
}
