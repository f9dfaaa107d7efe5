// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/profiles"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const defaultName = "default"

const maxTokenBytes = 64 << 10

// LoginCommand returns the `lockstep login` command.
func LoginCommand(env *cli.Env) *cobra.Command {
	var stdin, unverified bool
	cmd := &cobra.Command{
		Use: "login [PROFILE]", GroupID: "use",
		Short: "Store connection settings in a profile",
		Long: `Store the addresses of a pair, the paths of TLS files, and a token in a profile, and make it the current
profile. The default of PROFILE is "default". An existing profile with that name is replaced; if no addresses are
given, its addresses and TLS files are kept.

Without --no-verify, nothing is stored if the active node cannot be reached, or if it rejects the credentials.

If no token and no client certificate are given, the command prompts for a token on a terminal. With --token-file, the
profile stores the path of the file instead of the token.`,
		Example: `  lockstep login --addr node-a:7420,node-b:7420 --tls-ca ca.pem
  lockstep login production --addr node-a:7420,node-b:7420 --tls-ca ca.pem --token-stdin < token
  lockstep login robot --addr node-a:7420,node-b:7420 --tls-ca ca.pem --tls-cert robot.pem --tls-key robot-key.pem
  lockstep login jwt --addr node-a:7420,node-b:7420 --tls-ca ca.pem --token-file /run/secrets/token`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			name := defaultName
			if len(args) > 0 {
				name = args[0]
			}
			if err := profiles.CheckName(name); err != nil {
				return cli.Usage("%v", err)
			}
			c, err := env.Login(name)
			if err != nil {
				return err
			}
			if err := ask(env, &c, stdin); err != nil {
				return err
			}
			l := &login{env: env, name: name, connection: c, unverified: unverified}
			return l.run(cmd.Context())
		},
	}
	cmd.Flags().BoolVar(&stdin, "token-stdin", false, "read the token from standard input")
	cmd.Flags().BoolVar(&unverified, "no-verify", false, "store the profile without contacting a node")
	return cmd
}

func ask(env *cli.Env, c *cli.Connection, stdin bool) error {
	switch {
	case stdin && (c.Token != "" || c.TokenFile != ""):
		return cli.Usage("--token-stdin cannot be combined with another token")
	case stdin:
		raw, err := io.ReadAll(io.LimitReader(env.Stdin, maxTokenBytes))
		if err != nil {
			return fmt.Errorf("read the token: %w", err)
		}
		if c.Token = strings.TrimSpace(string(raw)); c.Token == "" {
			return cli.Usage("--token-stdin: standard input is empty")
		}
	case c.Token == "" && c.TokenFile == "" && c.Certificate == "" && env.Asks():
		token, err := typed(env)
		if err != nil {
			return err
		}
		c.Token = token
	}
	return nil
}

func typed(env *cli.Env) (string, error) {
	if _, err := fmt.Fprint(env.Stderr, "Token (not shown; empty for none): "); err != nil {
		return "", fmt.Errorf("prompt for the token: %w", err)
	}
	var raw []byte
	var err error
	if f, is := env.Stdin.(*os.File); is {
		raw, err = term.ReadPassword(int(f.Fd()))
	} else {
		raw, err = io.ReadAll(io.LimitReader(env.Stdin, maxTokenBytes))
	}
	_, _ = fmt.Fprintln(env.Stderr)
	if err != nil {
		return "", fmt.Errorf("read the token: %w", err)
	}
	return strings.TrimSpace(string(raw)), nil
}

type login struct {
	env        *cli.Env
	name       string
	connection cli.Connection
	unverified bool
}

func (l *login) run(ctx context.Context) error {
	f, err := l.env.Profiles()
	if err != nil {
		return err
	}
	p := profiles.Profile{Token: l.connection.Token}
	if p.Addresses, err = l.connection.List(); err != nil {
		return err
	}
	for _, file := range []struct {
		from string
		into *string
	}{
		{l.connection.CA, &p.CA},
		{l.connection.Certificate, &p.Certificate},
		{l.connection.Key, &p.Key},
		{l.connection.TokenFile, &p.TokenFile},
	} {
		if file.from == "" {
			continue
		}
		if *file.into, err = filepath.Abs(file.from); err != nil { // later commands may run in another directory
			return fmt.Errorf("%s: %w", file.from, err)
		}
	}
	var identity *pb.WhoAmIResponse
	if !l.unverified {
		if identity, err = l.verify(ctx); err != nil {
			return err
		}
	}
	f.Profiles[l.name], f.Current = p, l.name
	if err := f.Save(); err != nil {
		return err
	}
	s := newShown(l.name, &p, l.name)
	if identity == nil {
		return l.env.Print.Result(s, "profile %s is the current profile; it was not verified", l.name)
	}
	return l.env.Print.Result(s, "profile %s is the current profile; authenticated as %s", l.name, identity.GetPrincipal())
}

func (l *login) verify(ctx context.Context) (identity *pb.WhoAmIResponse, err error) {
	err = l.env.With(ctx, l.connection, func(ctx context.Context, c *client.Client) error {
		ctx, cancel := context.WithTimeout(ctx, l.env.Timeout)
		defer cancel()
		identity, err = admin.New(c).WhoAmI(ctx)
		return err
	})
	switch {
	case errors.Is(err, client.ErrUnauthenticated), errors.Is(err, client.ErrDenied):
		return nil, fmt.Errorf("profile not stored: %w", err)
	case err != nil:
		return nil, fmt.Errorf("profile not stored, verification failed (--no-verify skips it): %w", err)
	}
	return identity, nil
}

// LogoutCommand returns the `lockstep logout` command.
func LogoutCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "logout [PROFILE]", GroupID: "use", Short: "Delete the token of a profile",
		Long: `Delete the stored token, or the path of the token file, from a profile, by default from the current one. The
profile is then no longer the current profile. Its addresses and the paths of its TLS files are kept.

The token stays valid; to revoke a static token, use lockstep access token revoke. A token file is not deleted.`,
		Example: "  lockstep logout\n  lockstep logout production",
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
			p.Token, p.TokenFile = "", ""
			f.Profiles[name] = p
			if f.Current == name {
				f.Current = ""
			}
			if err := f.Save(); err != nil {
				return err
			}
			return env.Print.Result(newShown(name, &p, f.Current), "deleted the token of profile %s, which is no longer current",
				name)
		},
	}
}
