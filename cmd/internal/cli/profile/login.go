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
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/profiles"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// defaultName is the profile name if none is given.
const defaultName = "default"

// maxTokenBytes bounds the input for a token.
const maxTokenBytes = 64 << 10

// LoginCommand returns the `lockstep login` command.
func LoginCommand(env *cli.Env) *cobra.Command {
	var stdin, unverified bool
	cmd := &cobra.Command{
		Use: "login [PROFILE]", GroupID: "use",
		Short: "Keep how to reach a pair, and who you are, in a profile",
		Long: `Keep the addresses of a pair, the files for TLS and a token in a profile, and make it the current one: other commands
use it from then on. The pair is asked first whether it lets you in. The profile is called default if no name is given;
one of that name is replaced.

Without --token-file or --token-stdin, and without a certificate, the token is asked for, and not shown while it is
typed. With --token-file the profile has the name of the file, which is read each time: for tokens that something else
keeps fresh.`,
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
			c, err := env.Given()
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
	cmd.Flags().BoolVar(&stdin, "token-stdin", false, "read the token from the standard input")
	cmd.Flags().BoolVar(&unverified, "no-verify", false, "do not ask the pair whether it lets you in")
	return cmd
}

// ask reads the token if it was not given by flags.
func ask(env *cli.Env, c *cli.Connection, stdin bool) error {
	switch {
	case stdin && (c.Token != "" || c.TokenFile != ""):
		return cli.Usage("--token-stdin and another token are given; only one of them can be meant")
	case stdin:
		raw, err := io.ReadAll(io.LimitReader(env.Stdin, maxTokenBytes))
		if err != nil {
			return fmt.Errorf("read the token: %w", err)
		}
		if c.Token = strings.TrimSpace(string(raw)); c.Token == "" {
			return cli.Usage("--token-stdin: there is nothing on the standard input")
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

// typed prompts for a token at a terminal, without echo.
func typed(env *cli.Env) (string, error) {
	if _, err := fmt.Fprint(env.Stderr, "Token (not shown; empty for none): "); err != nil {
		return "", fmt.Errorf("ask for the token: %w", err)
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

// login is one login.
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
		if *file.into, err = filepath.Abs(file.from); err != nil { // commands run in other directories
			return fmt.Errorf("%s: %w", file.from, err)
		}
	}
	var who *pb.WhoAmIResponse
	if !l.unverified {
		if who, err = l.verify(ctx); err != nil {
			return err
		}
	}
	f.Profiles[l.name], f.Current = p, l.name
	if err := f.Save(); err != nil {
		return err
	}
	s := newShown(l.name, &p, l.name)
	if who == nil {
		return told(l.env, s, "profile %s is the current one now; it was not tried", l.name)
	}
	return told(l.env, s, "profile %s is the current one now; the pair takes you for %s", l.name, who.GetPrincipal())
}

// verify checks that the pair accepts the credentials, and returns the caller's identity.
func (l *login) verify(ctx context.Context) (who *pb.WhoAmIResponse, err error) {
	err = l.env.With(ctx, l.connection, func(ctx context.Context, c *client.Client) error {
		ctx, cancel := context.WithTimeout(ctx, l.env.Timeout)
		defer cancel()
		who, err = c.WhoAmI(ctx)
		return err
	})
	switch {
	case errors.Is(err, client.ErrUnauthenticated), errors.Is(err, client.ErrDenied):
		return nil, fmt.Errorf("nothing was kept: %w", err)
	case err != nil:
		return nil, fmt.Errorf("nothing was kept, since it could not be tried (--no-verify keeps it all the same): %w", err)
	}
	return who, nil
}

// LogoutCommand returns the `lockstep logout` command.
func LogoutCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "logout [PROFILE]", GroupID: "use", Short: "Forget the token of a profile, and use none",
		Long: `Forget the token of a profile, of the current one if none is named. It is not the current one any more; its addresses
and files stay for the next login. The token itself goes on being good: revoke it in the pair if it is not wanted any
more.`,
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
			return told(env, newShown(name, &p, f.Current), "profile %s has no token any more, and is not the current one",
				name)
		},
	}
}
