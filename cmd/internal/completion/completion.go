// SPDX-License-Identifier: Apache-2.0

// Package completion completes arguments and flags in shells with the names that the nodes currently report. The
// kind of an argument is derived from the usage line of the command, so a new command with QUEUE in its usage line
// is completed automatically.
//
// A completion takes at most a second, because the shell waits for it. On an error, the result is empty.
package completion

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

const (
	// limit is the time limit of a completion. The shell waits for the result.
	limit = 900 * time.Millisecond
	// most is the maximum number of names.
	most = 200
)

type asked struct {
	env    *cli.Env
	client *client.Client // nil for local names
	queue  string         // the preceding queue argument, for its subscriptions
	prefix string
}

type kind struct {
	local bool // find does not query a node
	find  func(context.Context, *asked) ([]string, error)
}

// Add adds completion to root and to all commands below it.
func Add(env *cli.Env, root *cobra.Command) {
	for _, cmd := range root.Commands() {
		Add(env, cmd)
	}
	if root.ValidArgsFunction == nil && len(root.ValidArgs) == 0 && !root.HasSubCommands() {
		if args := ofUsage(root); slices.ContainsFunc(args, func(k string) bool { return k != "" }) {
			root.ValidArgsFunction = arguments(env, args)
		}
	}
	for _, f := range []struct{ name, kind string }{
		{"subscription", "subscription"},
		{"node", "node"},
		{"queue", "queue"},
		{"dead-letter", "queue"},
		{"profile", "profile"},
		{"output", "output"},
		{"to", flagTo(root)},
		{"from", flagFrom(root)},
		{"pair", flagPair(root)},
	} {
		if f.kind == "" || root.Flags().Lookup(f.name) == nil && root.PersistentFlags().Lookup(f.name) == nil {
			continue
		}
		// Completion functions registered by the command itself take precedence.
		_ = root.RegisterFlagCompletionFunc(f.name, func(cmd *cobra.Command, args []string, prefix string) (
			[]string, cobra.ShellCompDirective,
		) {
			queue := ""
			if len(args) > 0 {
				queue = args[0]
			}
			return names(cmd.Context(), env, f.kind, queue, prefix)
		})
	}
}

// flagTo returns the kind of the flag --to; empty if the flag is not completed.
func flagTo(cmd *cobra.Command) string {
	switch path := cmd.CommandPath(); {
	case path == "lockstep switchover":
		return "node"
	case path == "lockstep site switch":
		return "site"
	case path == "lockstep queue forward", path == "lockstep queue move", path == "lockstep queue replay-dead":
		return "queue"
	}
	return ""
}

func flagFrom(cmd *cobra.Command) string {
	if cmd.CommandPath() == "lockstep switchover" {
		return "node"
	}
	return ""
}

func flagPair(cmd *cobra.Command) string {
	if cmd.HasParent() && cmd.Parent().CommandPath() == "lockstep fleet" {
		return "pair"
	}
	return ""
}

// ofUsage derives the kind of each argument from the usage line. The kind is empty if the argument is not
// completed.
func ofUsage(cmd *cobra.Command) (args []string) {
	group := ""
	if cmd.HasParent() {
		group = cmd.Parent().Name()
	}
	if group == "settings" && cmd.Parent().Parent().Name() == "store" {
		return nil // store settings have different names
	}
	for i, word := range strings.Fields(cmd.Use)[1:] {
		word = strings.TrimRight(strings.Trim(word, "[]"), ".…]")
		k := ""
		switch {
		case word == "QUEUE", word == "PREFIX" && group == "queue", word == "NAME" && group == "queue":
			k = "queue"
		case word == "NAME" && group == "subscription" && i == 1:
			k = "subscription"
		case word == "NAME":
			k = map[string]string{
				"job": "job", "schedule": "schedule", "token": "token", "role": "role", "settings": "setting",
			}[group]
		case word == "PATTERN" && group == "quota":
			k = "quota"
		case word == "ADDRESS" && cmd.CommandPath() != "lockstep pair add": // there, ADDRESS is a voter
			k = "address"
		case word == "PROFILE":
			k = "profile"
		case word == "PAIR":
			k = "pair"
		case word == "XID":
			k = "transaction"
		}
		if cmd.Name() == "create" && i == len(strings.Fields(cmd.Use))-2 && k != "" {
			k = "" // a new name
		}
		args = append(args, k)
	}
	return args
}

func arguments(env *cli.Env, kinds []string) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, prefix string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(kinds) || kinds[len(args)] == "" {
			return nil, cobra.ShellCompDirectiveDefault // files
		}
		queue := ""
		if len(args) > 0 {
			queue = args[0]
		}
		return names(cmd.Context(), env, kinds[len(args)], queue, prefix)
	}
}

func names(ctx context.Context, env *cli.Env, which, queue, prefix string) ([]string, cobra.ShellCompDirective) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	k := kinds()[which]
	a := &asked{env: env, queue: queue, prefix: prefix}
	found := make(chan []string, 1)
	go func() { // ends soon after ctx, or with the process
		var all []string
		find := func(ctx context.Context, c *client.Client) (err error) {
			a.client = c
			all, err = k.find(ctx, a)
			return err
		}
		var err error
		if k.local {
			err = find(ctx, nil)
		} else {
			err = env.WithClient(ctx, find)
		}
		if err != nil {
			all = nil
		}
		found <- all
	}()
	var all []string
	select {
	case all = <-found:
	case <-ctx.Done():
	}
	all = slices.DeleteFunc(all, func(name string) bool { return !strings.HasPrefix(name, prefix) })
	return all[:min(len(all), most)], cobra.ShellCompDirectiveNoFileComp
}
