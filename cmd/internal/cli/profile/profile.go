// SPDX-License-Identifier: Apache-2.0

// Package profile implements the commands for profiles, which store addresses and credentials of pairs.
package profile

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/profiles"
)

// Command returns the `lockstep profile` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "profile", GroupID: "use", Short: "Show the profiles that lockstep login has made, and choose one",
		Long: `A profile has the addresses of a pair, the files for TLS, and a token. Commands use the current one, unless other
addresses are given (--addr, LOCKSTEP_ADDR) or another one is named (--profile, LOCKSTEP_PROFILE). What flags and the
environment say counts before the profile.

Profiles are in lockstep/config.yaml in your directory for configuration, such as ~/.config, or in the file that
LOCKSTEP_PROFILES names. Only you may read it.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddCommand(listCommand(env), useCommand(env), showCommand(env), deleteCommand(env))
	return cmd
}

// shown is a profile, for programs. It never contains the token.
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

// token describes the credentials.
func (s *shown) token() string {
	switch {
	case s.Token != "":
		return s.Token
	case s.TokenFile != "":
		return "in " + s.TokenFile
	}
	return "none"
}

// tls describes the TLS settings.
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
		Use: "list", Aliases: []string{"ls"}, Short: "List the profiles",
		Long: `Show the profiles that lockstep login has made, with their addresses; the current one is marked.
Profiles are on this machine, in the file that lockstep profile show names, and no node knows of them.`,
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
				return env.Print.Sentence("There is no profile; lockstep login makes one.")
			}
			return env.Print.Table([]string{"Profile", "Current", "Addresses", "TLS", "Token"}, rows)
		},
	}
}

func useCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "use PROFILE", Short: "Make a profile the current one",
		Long:    `Have commands without --addr and --profile use this profile from now on.`,
		Example: "  lockstep profile use production",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			return change(env, args[0], func(f *profiles.File, p profiles.Profile) error {
				f.Current = args[0]
				if err := f.Save(); err != nil {
					return err
				}
				return told(env, newShown(args[0], &p, f.Current), "profile %s is the current one now", args[0])
			})
		},
	}
}

// namedOrCurrent returns the named profile, or the current one without a name.
func namedOrCurrent(f *profiles.File, args []string) (name string, p profiles.Profile, err error) {
	name = f.Current
	if len(args) > 0 {
		name = args[0]
	}
	if name == "" {
		return "", p, fmt.Errorf("%w: none is current; name one", profiles.ErrNoProfile)
	}
	p, err = f.Get(name)
	return name, p, err
}

func showCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "show [PROFILE]", Short: "Show a profile, without its token; the current one if none is named",
		Long: `Show what a profile has: addresses, certificates, where its token is from. The token itself is not
shown.`,
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
				{"File", f.Where()},
			})
		},
	}
}

func deleteCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "delete PROFILE", Aliases: []string{"rm"}, Short: "Forget a profile and its token",
		Long: "Forget a profile and its token. The token itself goes on being good: revoke it in the pair if it is not " +
			"wanted any more.",
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
				return told(env, newShown(args[0], &p, f.Current), "profile %s is deleted", args[0])
			})
		},
	}
}

// change runs fn with an existing profile.
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

// told prints the result of a change.
func told(env *cli.Env, s shown, format string, args ...any) error {
	if err := env.Print.Object(s); err != nil {
		return err
	}
	return env.Print.Sentence(format, args...)
}
