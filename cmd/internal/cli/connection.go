// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/profiles"
)

// Environment variables with a token.
const (
	EnvToken     = "LOCKSTEP_TOKEN"
	EnvTokenFile = "LOCKSTEP_TOKEN_FILE" //nolint:gosec // the name of a variable, not a secret
)

// Connection is how the nodes are reached, and who calls.
type Connection struct {
	// Addresses of the nodes, as they were given: comma-separated.
	Addresses string
	// CA, Certificate and Key are files in PEM.
	CA, Certificate, Key string
	// Token, or a file that has it.
	Token, TokenFile string
	// Profile that it is from; empty: none.
	Profile string
}

// flagValues are the global flags about the connection.
type flagValues struct {
	Connection

	changed func(name string) bool
}

// Profiles reads the user's profiles.
func (env *Env) Profiles() (*profiles.File, error) {
	return profiles.Load(profiles.Path(env.Lookup))
}

// Connection is what flags, environment and profile say together: a flag counts before the environment, and that
// before the profile. The current profile is for its own nodes: where other addresses are given it is not used, unless
// it is named.
func (env *Env) Connection() (Connection, error) {
	if env.connection != nil {
		return *env.connection, nil
	}
	c := env.given()
	name := env.flags.Profile
	if name == "" {
		name, _ = env.Lookup(profiles.EnvProfile)
	}
	if name != "" || c.Addresses == "" {
		if err := env.addProfile(&c, name); err != nil {
			return c, fmt.Errorf("%w: %w", ErrUsage, err)
		}
	}
	if c.Addresses == "" {
		c.Addresses = DefaultAddr
	}
	env.connection = &c
	return c, nil
}

// Given is what flags and environment say, and the profile that is named, if one is: not the current one. It is for a
// command that makes a profile.
func (env *Env) Given() (Connection, error) {
	c := env.given()
	if env.flags.Profile != "" {
		if err := env.addProfile(&c, env.flags.Profile); err != nil {
			return c, fmt.Errorf("%w: %w", ErrUsage, err)
		}
	}
	if c.Addresses == "" {
		c.Addresses = DefaultAddr
	}
	return c, nil
}

// given is what flags and environment say.
func (env *Env) given() Connection {
	c := Connection{}
	for _, o := range []struct {
		into            *string
		flag, env, text string
	}{
		{&c.Addresses, "addr", EnvAddr, env.flags.Addresses},
		{&c.CA, "tls-ca", envTLSCA, env.flags.CA},
		{&c.Certificate, "tls-cert", envTLSCert, env.flags.Certificate},
		{&c.Key, "tls-key", envTLSKey, env.flags.Key},
	} {
		*o.into, _ = env.Lookup(o.env)
		if env.flags.changed(o.flag) {
			*o.into = o.text
		}
	}
	c.Token, c.TokenFile = env.flags.Token, env.flags.TokenFile
	if c.Token == "" && c.TokenFile == "" {
		c.Token, _ = env.Lookup(EnvToken)
	}
	if c.Token == "" && c.TokenFile == "" {
		c.TokenFile, _ = env.Lookup(EnvTokenFile)
	}
	return c
}

// addProfile fills in what is not given: from the profile of that name, or from the current one.
func (env *Env) addProfile(c *Connection, name string) error {
	file, err := env.Profiles()
	if err != nil {
		return err
	}
	if name == "" {
		name = file.Current
	}
	if name == "" {
		return nil
	}
	p, err := file.Get(name)
	if err != nil {
		return err
	}
	c.Profile = name
	fill := func(into *string, value string) {
		if *into == "" {
			*into = value
		}
	}
	fill(&c.Addresses, strings.Join(p.Addresses, ","))
	fill(&c.CA, p.CA)
	if c.Certificate == "" && c.Key == "" {
		c.Certificate, c.Key = p.Certificate, p.Key
	}
	if c.Token == "" && c.TokenFile == "" {
		c.Token, c.TokenFile = p.Token, p.TokenFile
	}
	return nil
}

// List is the addresses one by one.
func (c *Connection) List() ([]string, error) {
	var list []string
	for s := range strings.SplitSeq(c.Addresses, ",") {
		if s = strings.TrimSpace(s); s != "" {
			list = append(list, s)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: --addr names no node", ErrUsage)
	}
	return list, nil
}

// Options of a client for the connection.
func (c *Connection) Options() (client.Options, error) {
	addrs, err := c.List()
	return client.Options{
		Addresses: addrs, TLSFiles: client.TLSFiles{CA: c.CA, Cert: c.Certificate, Key: c.Key},
		Token: c.Token, TokenFile: c.TokenFile,
	}, err
}

// connectionFlags gives root the flags of who calls. None of them shows what the environment has: that may be secret.
func connectionFlags(env *Env, root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(
		&env.flags.Token,
		"token",
		"",
		"token that says who you are; others on this machine can see it in the list "+
			"of processes: use --token-file or lockstep login (environment: "+EnvToken+")",
	)
	f.StringVar(&env.flags.TokenFile, "token-file", "", "file with that token (environment: "+EnvTokenFile+")")
	f.StringVar(&env.flags.Profile, "profile", "", "profile that lockstep login has made, in place of the current one "+
		"(environment: "+profiles.EnvProfile+")")
	root.MarkFlagsMutuallyExclusive("token", "token-file")
	env.flags.changed = func(name string) bool { return root.PersistentFlags().Changed(name) }
}
