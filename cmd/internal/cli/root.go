// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"strings"
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

// Environment variables with the defaults of global flags.
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
		Short: "Highly available message store on two nodes",
		Long: `Lockstep stores messages in queues on a pair of nodes. While both nodes are in sync, a publish is
acknowledged only after both have the messages, so that the standby can take over without losing them.

Get started:
  lockstep demo     kill the active node of a demo pair (about 20 seconds)
  lockstep dev      run a pair on this machine until Ctrl-C
  lockstep serve    run one node`,
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
	root.AddCommand(optionsCommand(env, root))
	WrapHelp(root)
	const section = "Global Flags:\n{{.InheritedFlags.FlagUsages | trimTrailingWhitespaces}}"
	root.SetUsageTemplate(strings.Replace(root.UsageTemplate(), section, `Use "lockstep options" for global flags.`, 1))
	return root
}

const helpColumns = 80

// WrapHelp wraps the long texts of a command and its subcommands at helpColumns, except indented lines.
func WrapHelp(cmd *cobra.Command) {
	var wrapped []string
	text := ""
	for line := range strings.SplitSeq(cmd.Long+"\n", "\n") {
		if line != "" && !strings.HasPrefix(line, " ") {
			text += " " + line
			continue
		}
		wrapped = append(append(wrapped, output.Wrap(text, helpColumns)...), line)
		text = ""
	}
	cmd.Long = strings.TrimSuffix(strings.Join(wrapped, "\n"), "\n")
	for _, c := range cmd.Commands() {
		WrapHelp(c)
	}
}

// optionsCommand returns the command that lists the global flags, which the help of other commands omits.
func optionsCommand(env *Env, root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:     "options",
		Short:   "List global flags",
		Long:    "List the global flags with their defaults.",
		Example: "  lockstep options",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			type option struct {
				Name    string `json:"name"`
				Default string `json:"default"`
				Usage   string `json:"usage"`
			}
			var all []option
			root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
				all = append(all, option{f.Name, f.DefValue, f.Usage})
			})
			return env.Print.Result(all, "%s", strings.TrimRight(root.PersistentFlags().FlagUsages(), "\n"))
		},
	}
}

// Globals prepares the root command of a program: it adds the global flags, which fill env before a command runs.
func Globals(env *Env, root *cobra.Command) {
	root.SilenceUsage, root.SilenceErrors = true, true
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) (err error) {
		// Cobra validates required flags and flag groups only after this hook.
		if err := checkFlags(cmd); err != nil {
			return err
		}
		if env.Print, err = output.New(env.Stdout, env.output); err != nil {
			return Usage("%w", err)
		}
		env.waitsForServer = cmd.Flags().Changed("timeout")
		env.started = true
		return nil
	}
	globalFlags(env, root)
}

func globalFlags(env *Env, root *cobra.Command) {
	addr := DefaultAddr
	if v, ok := env.Lookup(EnvAddr); ok && v != "" {
		addr = v
	}
	f := root.PersistentFlags()
	f.StringVar(&env.flags.Addresses, "addr", addr, "node addresses, comma-separated (environment: "+EnvAddr+")")
	for _, o := range []struct {
		value             *string
		name, env, format string
	}{
		{&env.flags.CA, "tls-ca", envTLSCA, "file with the CA certificates of the nodes; enables TLS"},
		{&env.flags.Certificate, "tls-cert", envTLSCert, "client certificate file"},
		{&env.flags.Key, "tls-key", envTLSKey, "client key file"},
	} {
		value, ok := env.Lookup(o.env)
		if !ok {
			value = ""
		}
		f.StringVar(o.value, o.name, value, o.format+" (environment: "+o.env+")")
	}
	connectionFlags(env, root)
	f.StringVarP(&env.output, "output", "o", "table", "output format: table or json")
	f.DurationVar(&env.Timeout, "timeout", DefaultTimeout,
		"time limit for requests; without this flag, commands usually fail earlier if no node is reachable")
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "address" {
			name = "addr"
		}
		return pflag.NormalizedName(name)
	})
}
