package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/out"
	"github.com/lockstep-mq/lockstep/server/config"
)

const (
	defaultAddr    = "127.0.0.1:7420,127.0.0.1:7421"
	envAddr        = "LOCKSTEP_ADDR"
	envTLSCA       = "LOCKSTEP_TLS_CA"
	envTLSCert     = "LOCKSTEP_TLS_CERT"
	envTLSKey      = "LOCKSTEP_TLS_KEY"
	defaultTimeout = 10 * time.Second
)

// errUsage is returned when the command line makes no sense; the exit code is 2.
var errUsage = errors.New("wrong usage")

// errSilent is returned when all that is to be said was printed already.
var errSilent = errors.New("failed")

// errNotMeant is returned when somebody was asked whether it was meant and did not say so.
var errNotMeant = errors.New("nothing was done")

// environment is what the process was started with.
type environment struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	environ        []string
	lookup         func(string) (string, bool)
	terminal       func() bool // tells whether somebody can be asked; nil: looks at stdin
}

// app is what the commands share: the global flags, and where to print.
type app struct {
	*environment
	addr    string
	output  string
	timeout time.Duration
	patient bool // --timeout was given: wait so long, whatever is wrong
	tls     struct{ ca, cert, key string }
	started bool // a command began: what fails from now on is no wrong usage
	print   *out.Printer
}

func (a *app) rootCommand() *cobra.Command {
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
		SilenceUsage:  true,
		SilenceErrors: true,
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) (err error) {
			if err := cmd.ValidateFlagGroups(); err != nil { // cobra does it only after this
				return fmt.Errorf("%w: %w", errUsage, err)
			}
			if a.print, err = out.New(a.stdout, a.output); err != nil {
				return fmt.Errorf("%w: %w", errUsage, err)
			}
			a.patient = cmd.Flags().Changed("timeout")
			a.started = true
			return nil
		},
	}
	addr := defaultAddr
	if v, ok := a.lookup(envAddr); ok && v != "" {
		addr = v
	}
	f := root.PersistentFlags()
	f.StringVar(&a.addr, "addr", addr, "addresses of the nodes, comma-separated (environment: "+envAddr+")")
	for _, o := range []struct {
		value          *string
		name, env, say string
	}{
		{&a.tls.ca, "tls-ca", envTLSCA, "file with the authorities that the nodes' certificates are checked against; " +
			"turns TLS on"},
		{&a.tls.cert, "tls-cert", envTLSCert, "file with the certificate to show to the nodes"},
		{&a.tls.key, "tls-key", envTLSKey, "file with the key of that certificate"},
	} {
		value, ok := a.lookup(o.env)
		if !ok {
			value = ""
		}
		f.StringVar(o.value, o.name, value, o.say+" (environment: "+o.env+")")
	}
	f.StringVarP(&a.output, "output", "o", "table", "form of the output: table, for people, or json, for programs")
	f.DurationVar(&a.timeout, "timeout", defaultTimeout,
		"how long to look for a node that can do it; if it is given, also while nobody listens at any address")
	root.SetGlobalNormalizationFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name == "address" {
			name = "addr"
		}
		return pflag.NormalizedName(name)
	})
	root.AddGroup(
		&cobra.Group{ID: "run", Title: "Run:"},
		&cobra.Group{ID: "use", Title: "Use:"},
		&cobra.Group{ID: "operate", Title: "Operate:"},
	)
	root.AddCommand(
		a.serveCommand(), a.witnessCommand(), a.devCommand(), a.demoCommand(),
		a.queueCommand(), a.subscriptionCommand(), a.publishCommand(), a.consumeCommand(), a.browseCommand(),
		a.statusCommand(), a.switchoverCommand(), a.failoverCommand(), a.restartCommand(), a.pauseCommand(),
		a.resumeCommand(), a.checkpointCommand(), a.verifyCommand(), a.pairCommand(), a.storeCommand(),
		a.jobCommand(), a.settingsCommand(), a.benchCommand(),
		a.versionCommand(),
	)
	return root
}

// addresses are the nodes to talk to.
func (a *app) addresses() ([]string, error) {
	var list []string
	for s := range strings.SplitSeq(a.addr, ",") {
		if s = strings.TrimSpace(s); s != "" {
			list = append(list, s)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%w: --addr names no node", errUsage)
	}
	return list, nil
}

// withClient runs fn with a client of the pair.
func (a *app) withClient(ctx context.Context, fn func(context.Context, *client.Client) error) error {
	addrs, err := a.addresses()
	if err != nil {
		return err
	}
	secure, err := config.ClientTLS(a.tls.ca, a.tls.cert, a.tls.key)
	if err != nil {
		return fmt.Errorf("%w: --tls: %w", errUsage, err)
	}
	c, err := client.Open(ctx, client.Options{Addresses: addrs, TLS: secure, FailFast: !a.patient})
	if errors.Is(err, client.ErrInvalid) {
		return fmt.Errorf("%w: --addr: %w", errUsage, err)
	}
	if err != nil {
		return err
	}
	return errors.Join(fn(ctx, c), c.Close())
}

// nodeAt is the node at an address that was named on the command line.
func nodeAt(c *client.Client, address string) (*client.Node, error) {
	n, err := c.Node(address)
	if errors.Is(err, client.ErrInvalid) {
		return nil, fmt.Errorf("%w: %w", errUsage, err)
	}
	return n, err
}

// withTimeout runs fn with a client and a context that ends after --timeout: for commands that are one question.
func (a *app) withTimeout(ctx context.Context, fn func(context.Context, *client.Client) error) error {
	return a.withClient(ctx, func(ctx context.Context, c *client.Client) error {
		ctx, cancel := context.WithTimeout(ctx, a.timeout)
		defer cancel()
		return fn(ctx, c)
	})
}

// usage makes an error with exit code 2.
func usage(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errUsage, fmt.Sprintf(format, args...))
}
