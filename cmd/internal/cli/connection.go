// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/profiles"
)

// Environment variables that contain a token.
const (
	EnvToken     = "LOCKSTEP_TOKEN"
	EnvTokenFile = "LOCKSTEP_TOKEN_FILE" //nolint:gosec // the name of a variable, not a secret
)

// Connection contains the addresses and credentials for the nodes.
type Connection struct {
	// Addresses contains the addresses of the nodes as given, comma-separated.
	Addresses string
	// CA, Certificate and Key are PEM files.
	CA, Certificate, Key string
	// Token is a token, TokenFile a file that contains one. At most one of them is set.
	Token, TokenFile string
	// Profile is the profile that supplied values; empty if no profile was used.
	Profile string
}

type flagValues struct {
	Connection

	changed func(name string) bool
}

// Profiles reads the user's profiles.
func (env *Env) Profiles() (*profiles.File, error) {
	return profiles.Load(profiles.Path(env.Lookup))
}

// Connection combines flags, environment and profile, in this order of precedence. The current profile is
// ignored if addresses are given: its credentials are for its own nodes.
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
			return c, Usage("%w", err)
		}
	}
	if c.Addresses == "" {
		c.Addresses = DefaultAddr
	}
	env.connection = &c
	return c, nil
}

// Login returns the values of flags, environment and the profile of the flag --profile, for a login that stores them in
// the profile name. It ignores the current profile. Without that flag and without addresses, it uses the addresses and
// files of the profile name, if it exists.
func (env *Env) Login(name string) (Connection, error) {
	c := env.given()
	file, err := env.Profiles()
	if err != nil {
		return c, err
	}
	stored, exists := file.Profiles[name]
	switch {
	case env.flags.Profile != "":
		if err := env.addProfile(&c, env.flags.Profile); err != nil {
			return c, Usage("%w", err)
		}
	case exists && c.Addresses == "":
		c.addFiles(&stored)
		c.Profile = name
	}
	if c.Addresses == "" {
		c.Addresses = DefaultAddr
	}
	return c, nil
}

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

// addProfile sets missing values from a profile. An empty name selects the current profile, if any.
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
	c.addFiles(&p)
	if c.Token == "" && c.TokenFile == "" {
		c.Token, c.TokenFile = p.Token, p.TokenFile
	}
	return nil
}

// addFiles sets missing addresses and TLS files from a profile.
func (c *Connection) addFiles(p *profiles.Profile) {
	c.Addresses = cmp.Or(c.Addresses, strings.Join(p.Addresses, ","))
	c.CA = cmp.Or(c.CA, p.CA)
	if c.Certificate == "" && c.Key == "" {
		c.Certificate, c.Key = p.Certificate, p.Key
	}
}

// List returns the addresses as a list; a usage error without addresses.
func (c *Connection) List() ([]string, error) {
	var list []string
	for s := range strings.SplitSeq(c.Addresses, ",") {
		if s = strings.TrimSpace(s); s != "" {
			list = append(list, s)
		}
	}
	if len(list) == 0 {
		return nil, Usage("--addr is empty")
	}
	return list, nil
}

// Options returns the client options for the connection.
func (c *Connection) Options() (client.Options, error) {
	addrs, err := c.List()
	return client.Options{
		Addresses: addrs, TLSFiles: client.TLSFiles{CA: c.CA, Cert: c.Certificate, Key: c.Key},
		Token: c.Token, TokenFile: c.TokenFile,
	}, err
}

// connectionFlags adds the flags for tokens and profiles. Their defaults do not show the environment, which may contain
// secrets.
func connectionFlags(env *Env, root *cobra.Command) {
	f := root.PersistentFlags()
	f.StringVar(
		&env.flags.Token,
		"token",
		"",
		"authentication token; visible to other users in the process list: prefer --token-file or lockstep login "+
			"(environment: "+EnvToken+")",
	)
	f.StringVar(&env.flags.TokenFile, "token-file", "",
		"file with an authentication token (environment: "+EnvTokenFile+")")
	f.StringVar(&env.flags.Profile, "profile", "", "profile created by lockstep login, instead of the current one "+
		"(environment: "+profiles.EnvProfile+")")
	root.MarkFlagsMutuallyExclusive("token", "token-file")
	env.flags.changed = func(name string) bool { return root.PersistentFlags().Changed(name) }
}
