// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Defaults of the global flags.
const (
	DefaultAddr    = "127.0.0.1:7420,127.0.0.1:7421"
	DefaultTimeout = 10 * time.Second
)

// Environment variables that replace global flags.
const (
	EnvAddr    = "LOCKSTEP_ADDR"
	envTLSCA   = "LOCKSTEP_CLIENT_TLS_CA" // LOCKSTEP_TLS_CA is the node setting tls.ca
	envTLSCert = "LOCKSTEP_CLIENT_TLS_CERT"
	envTLSKey  = "LOCKSTEP_CLIENT_TLS_KEY"
)

// Root returns the root command with the given subcommands. Its global flags fill env.
func Root(env *Env, commands ...*cobra.Command) *cobra.Command {
	root := &cobra.Command{
		Use:   "lockstep",
		Short: "A durable message store on two nodes that fail over without losing a message",
		Long: `Lockstep keeps queues on two nodes. Every message is on both before it is acknowledged; when the active node
dies, the other takes over within milliseconds and nothing acknowledged is lost.

Start with one of:
  lockstep demo     a pair that is killed before your eyes (20 seconds)
  lockstep dev      a pair on this machine to play with, until Ctrl-C
  lockstep serve    one node`,
		Example: `  lockstep dev
  lockstep publish orders "first message"
  lockstep consume orders
  lockstep status`,
	}
	Globals(env, root)
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run:"},
		&cobra.Group{ID: "use", Title: "Use:"},
		&cobra.Group{ID: "operate", Title: "Operate:"},
	)
	root.AddCommand(commands...)
	return root
}

// Globals makes root the root of a program: it adds the global flags, which fill env before a command runs.
func Globals(env *Env, root *cobra.Command) {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		if err := cmd.ValidateFlagGroups(); err != nil { // cobra validates them only after this hook
			return fmt.Errorf("%w: %w", ErrUsage, err)
		}
		if env.Print, err = output.New(env.Stdout, env.output); err != nil {
			return fmt.Errorf("%w: %w", ErrUsage, err)
		}
		env.patient = cmd.Flags().Changed("timeout")
		env.started = true
		return nil
	}
	globalFlags(env, root)
}

// globalFlags adds the flags of all commands to root; they fill env.
func globalFlags(env *Env, root *cobra.Command) {
	addr := DefaultAddr
	if v, ok := env.Lookup(EnvAddr); ok && v != "" {
		addr = v
	}
	f := root.PersistentFlags()
	f.StringVar(&env.flags.Addresses, "addr", addr, "addresses of the nodes, comma-separated (environment: "+EnvAddr+")")
	for _, o := range []struct {
		value          *string
		name, env, say string
	}{
		{&env.flags.CA, "tls-ca", envTLSCA, "file with the authorities that the nodes' certificates are checked " +
			"against; turns TLS on"},
		{&env.flags.Certificate, "tls-cert", envTLSCert, "file with the certificate to show to the nodes"},
		{&env.flags.Key, "tls-key", envTLSKey, "file with the key of that certificate"},
	} {
		value, ok := env.Lookup(o.env)
		if !ok {
			value = ""
		}
		f.StringVar(o.value, o.name, value, o.say+" (environment: "+o.env+")")
	}
	connectionFlags(env, root)
	f.StringVarP(&env.output, "output", "o", "table", "form of the output: table, for people, or json, for programs")
	f.DurationVar(&env.Timeout, "timeout", DefaultTimeout,
		"how long to look for a node that can do it; if it is given, also while no node listens at any address")
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "address" {
			name = "addr"
		}
		return pflag.NormalizedName(name)
	})
}
