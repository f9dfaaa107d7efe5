// SPDX-License-Identifier: Apache-2.0

// Package definitions implements the commands that export queues and other objects of a pair or a fleet to a file,
// compare such a file with a pair or a fleet, and apply it.
package definitions

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

const maxFileBytes = 64 << 20

var (
	errDiffers   = errors.New("the pair differs from the file")
	errConflicts = cli.WithHint(errors.New("aborted, no changes made: the file changes immutable settings"),
		"the file with the current values of these settings, or with other queue names")
)

// Command returns the `lockstep definitions` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "definitions", Aliases: []string{"defs"}, GroupID: "use",
		Short: "Export, compare and import queue definitions",
		Long: `A definitions file (YAML) contains the queues of a pair, with their own options, subscriptions and forwards,
and its policies and schedules. It contains no messages. With --fleet, a file contains these objects of all pairs, and
the placement rules, access rules and roles.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddCommand(exportCommand(env), importCommand(env), diffCommand(env))
	return cmd
}

func exportCommand(env *cli.Env) *cobra.Command {
	var prefix string
	var ofFleet bool
	cmd := &cobra.Command{
		Use: "export [FILE]", Short: "Export definitions to a file",
		Long: `Write queues, policies and schedules to a file or to standard output; with --fleet, those of all pairs, and
the placement rules, access rules and roles. An existing file is replaced. Messages, tokens, quotas, jobs and
temporary queues (--temporary of the queue or a policy) are not exported.`,
		Example: "  lockstep definitions export > queues.yaml\n  lockstep definitions export queues.yaml --prefix orders.",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			content, err := export(cmd.Context(), env, prefix, ofFleet)
			if err != nil {
				return err
			}
			if env.Print.JSON() && len(args) == 0 {
				return env.Print.Object(content.object())
			}
			text, err := encode(&content)
			if err != nil {
				return err
			}
			if len(args) == 0 || args[0] == "-" {
				return env.Print.Raw(text)
			}
			if err := os.WriteFile(args[0], text, 0o600); err != nil {
				return fmt.Errorf("write the definitions: %w", err)
			}
			return env.Print.Sentence("wrote %s to %s", output.Plural(len(content.queues), "queue"), args[0])
		},
	}
	addPrefix(cmd, &prefix)
	addFleet(cmd, &ofFleet)
	return cmd
}

// export returns the definitions of a pair or fleet.
func export(ctx context.Context, env *cli.Env, prefix string, ofFleet bool) (content document, _ error) {
	if ofFleet {
		err := withFleet(ctx, env, prefix, func(_ context.Context, f *fleetState) error {
			content = f.export(prefix)
			return nil
		})
		return content, err
	}
	err := env.WithTimeout(ctx, func(ctx context.Context, c *client.Client) error {
		there, err := list(ctx, c, prefix)
		for _, q := range there.queues {
			if !temporary(q) {
				content.queues = append(content.queues, fromClient(q))
			}
		}
		content.policies, content.schedules = there.policies, there.schedules
		return err
	})
	return content, err
}

func importCommand(env *cli.Env) *cobra.Command {
	var prefix string
	var yes, prune, dryRun, ofFleet bool
	cmd := &cobra.Command{
		Use: "import FILE", Short: "Apply definitions from a file",
		Long: `Print the changes that make the pair match the file, and apply them; "-" is standard input. On a terminal,
the command asks for confirmation. Without a terminal, changes are applied without confirmation, except that
deletions require --yes. If a change fails, the previous changes stay applied, and another run applies the rest.

Objects in the file are created, or changed to match it. Options and forwards of a queue that are not in the file are
removed, even without --prune. Changed options can delete messages, for example a shorter TTL or retention. A
subscription that is added to an existing queue starts with the next message.

With --prune, queues and subscriptions that are not in the file are deleted, with their messages, except for
temporary queues. Policies, schedules, access rules, roles and placement rules that are not in the file are only
deleted if the file has a list of that kind.

With --fleet, queues that are on another pair than in the file are reported, but not moved.`,
		Example: `  lockstep definitions import queues.yaml
  lockstep definitions import queues.yaml --dry-run
  git show main:queues.yaml | lockstep definitions import - --yes --prune`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			wanted, err := readFile(env, args[0], prefix)
			if err != nil {
				return err
			}
			return withPlan(cmd.Context(), env, wanted, prefix, ofFleet, func(
				ctx context.Context, c *client.Client, p *plan,
			) error {
				return carryOut(ctx, env, c, p, importOptions{yes: yes, prune: prune, dryRun: dryRun})
			})
		},
	}
	cmd.Flags().BoolVar(&prune, "prune", false,
		"delete objects that are not in the file, with their messages")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only print the changes")
	addPrefix(cmd, &prefix)
	addFleet(cmd, &ofFleet)
	cli.AddYes(cmd, &yes)
	return cmd
}

func diffCommand(env *cli.Env) *cobra.Command {
	var prefix string
	var ofFleet bool
	cmd := &cobra.Command{
		Use: "diff FILE", Short: "Compare a file with the pair",
		Long: `Print the changes, including deletions, that make the pair match the file; "-" is standard input. Nothing is
changed. The exit code is 1 if there are differences.`,
		Example: "  lockstep definitions diff queues.yaml\n  lockstep definitions diff queues.yaml --output json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			wanted, err := readFile(env, args[0], prefix)
			if err != nil {
				return err
			}
			return withPlan(cmd.Context(), env, wanted, prefix, ofFleet, func(
				_ context.Context, _ *client.Client, p *plan,
			) error {
				if err := env.Print.Object(p.result(slices.Concat(p.steps, p.prune), nil, 0)); err != nil {
					return err
				}
				if err := printSteps(env, p, slices.Concat(p.steps, p.prune)); err != nil {
					return err
				}
				if !p.empty() {
					return errDiffers
				}
				return env.Print.Sentence("the pair matches the file")
			})
		},
	}
	addPrefix(cmd, &prefix)
	addFleet(cmd, &ofFleet)
	return cmd
}

// withPlan calls fn with the plan that makes the pair or fleet match a document.
func withPlan(
	ctx context.Context, env *cli.Env, wanted *document, prefix string, ofFleet bool,
	fn func(context.Context, *client.Client, *plan) error,
) error {
	if ofFleet {
		return withFleet(ctx, env, prefix, func(ctx context.Context, f *fleetState) error {
			p, err := f.plan(wanted, prefix)
			if err != nil {
				return err
			}
			return fn(ctx, f.any, &p)
		})
	}
	if wanted.ofFleet() {
		return cli.Usage("%w", errNeedsFleet)
	}
	return env.WithClient(ctx, func(ctx context.Context, c *client.Client) error {
		p, err := planFor(ctx, env, c, wanted, prefix)
		if err != nil {
			return err
		}
		return fn(ctx, c, &p)
	})
}

func addFleet(cmd *cobra.Command, ofFleet *bool) {
	cmd.Flags().BoolVar(ofFleet, "fleet", false, "include all pairs of the fleet, placement rules, access rules and roles")
}

func addPrefix(cmd *cobra.Command, prefix *string) {
	cmd.Flags().StringVar(prefix, "prefix", "",
		"only queues with names that begin with this prefix, and no other objects")
}

// existing contains the objects of a pair.
type existing struct {
	settings

	queues []admin.Queue
}

// list returns the queues with names that begin with prefix. If prefix is empty, it also returns the policies and
// schedules.
func list(ctx context.Context, c *client.Client, prefix string) (there existing, err error) {
	for q, err := range admin.New(c).Queues(ctx, prefix) {
		if err != nil {
			return existing{}, err
		}
		there.queues = append(there.queues, q)
	}
	if prefix != "" {
		return there, nil
	}
	if there.policies, err = admin.New(c).Policies(ctx); err != nil {
		return existing{}, err
	}
	there.schedules, err = admin.New(c).Schedules(ctx, "")
	return there, err
}

func readFile(env *cli.Env, name, prefix string) (*document, error) {
	in := env.Stdin
	if name == "-" {
		name = "standard input"
	} else {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("read the definitions: %w", err)
		}
		defer f.Close()
		in = f
	}
	content, err := io.ReadAll(io.LimitReader(in, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read the definitions: %w", err)
	}
	if len(content) > maxFileBytes {
		return nil, fmt.Errorf("%s: %w: larger than %s", name, errFile, output.Bytes(maxFileBytes))
	}
	wanted, err := decode(name, content)
	if err != nil || prefix == "" {
		return wanted, err
	}
	wanted.settings, wanted.placements, wanted.pairs = settings{}, nil, nil
	wanted.queues = slices.DeleteFunc(wanted.queues, func(q queue) bool { return !strings.HasPrefix(q.name, prefix) })
	return wanted, nil
}

func planFor(ctx context.Context, env *cli.Env, c *client.Client, wanted *document, prefix string) (plan, error) {
	ctx, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	there, err := list(ctx, c, prefix)
	if err == nil && (wanted.access != nil || wanted.roles != nil) {
		err = there.addAccess(ctx, c)
	}
	if err != nil {
		return plan{}, err
	}
	return compare(wanted, &there), nil
}

type result struct {
	Changes []step `json:"changes"`
	// LeftAlone contains the deletions that --prune would execute.
	LeftAlone []step   `json:"left_alone,omitempty"`
	Conflicts []string `json:"conflicts,omitempty"`
	// Misplaced are queues that belong to another pair than in the file.
	Misplaced []misplaced `json:"misplaced,omitempty"`
	Applied   int         `json:"applied"`
}

func (p *plan) result(steps, left []step, applied int) result {
	return result{
		Changes: append([]step{}, steps...), LeftAlone: left, Conflicts: p.conflicts, Misplaced: p.misplaced,
		Applied: applied,
	}
}

func printSteps(env *cli.Env, p *plan, steps []step) error {
	for i := range steps {
		if err := env.Print.Sentence("%s", steps[i].text()); err != nil {
			return err
		}
	}
	for _, text := range p.conflicts {
		if err := env.Print.Sentence("! %s", text); err != nil {
			return err
		}
	}
	for i := range p.misplaced {
		if err := env.Print.Sentence("! %s", p.misplaced[i].text()); err != nil {
			return err
		}
	}
	return nil
}

func printLeft(env *cli.Env, left []step) error {
	var names []string
	for i := range left {
		if left[i].deletes() {
			names = append(names, left[i].what())
		}
	}
	if len(names) == 0 {
		return nil
	}
	return env.Print.Sentence("not in the file (kept without --prune): %s", strings.Join(names, ", "))
}

type importOptions struct{ yes, prune, dryRun bool }

// carryOut prints the plan. Unless the plan has conflicts or o.dryRun is set, it then asks for confirmation and
// executes the plan. Without a terminal, it executes deletions only if o.yes is set.
func carryOut(ctx context.Context, env *cli.Env, c *client.Client, p *plan, o importOptions) error {
	steps, left := p.steps, p.prune
	if o.prune {
		steps, left = slices.Concat(p.steps, p.prune), nil
	}
	if err := printSteps(env, p, steps); err != nil {
		return err
	}
	if err := printLeft(env, left); err != nil {
		return err
	}
	done := 0
	err := func() error {
		if len(p.conflicts) > 0 {
			return errConflicts
		}
		if o.dryRun || len(steps) == 0 {
			return nil
		}
		if !o.yes && !env.Asks() && slices.ContainsFunc(steps, func(s step) bool { return s.deletes() }) {
			return cli.ErrNeedsYes
		}
		if err := env.Confirm(ctx, o.yes, "%s?", question(steps)); err != nil {
			return err
		}
		for i := range steps {
			step, cancel := context.WithTimeout(ctx, env.Timeout)
			err := p.do(step, &steps[i], c)
			cancel()
			if err != nil {
				return fmt.Errorf("step %d of %d (%s) failed; the previous steps are applied: %w",
					i+1, len(steps), steps[i].text(), err)
			}
			done++
		}
		return nil
	}()
	if printErr := env.Print.Object(p.result(steps, left, done)); err == nil {
		err = printErr
	}
	switch {
	case err != nil:
		return err
	case len(steps) == 0:
		return env.Print.Sentence("no changes")
	case o.dryRun:
		return env.Print.Sentence("no changes made: --dry-run")
	}
	return env.Print.Sentence("applied %s", output.Plural(uint64(done), "change"))
}

// do executes a step on the pair or fleet.
func (p *plan) do(ctx context.Context, s *step, c *client.Client) error {
	if p.fleet != nil {
		return p.fleet.do(ctx, s)
	}
	return s.do(ctx, c)
}

func question(steps []step) string {
	deletes, messages := uint64(0), uint64(0)
	for i := range steps {
		if steps[i].deletes() {
			deletes++
			messages += steps[i].Messages
		}
	}
	text := "Apply " + output.Plural(uint64(len(steps)), "change")
	if deletes > 0 {
		text += fmt.Sprintf(" (%s, deleting %s permanently)", output.Plural(deletes, "deletion"),
			output.Plural(messages, "message"))
	}
	return text
}
