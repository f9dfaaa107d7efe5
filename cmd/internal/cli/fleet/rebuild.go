// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	// rebuildTime is added to --timeout for the contribution of a pair.
	rebuildTime = 10 * time.Minute
	// rounds is the maximum number of requests per pair. A pair with a conflict must contribute again after the other
	// pair.
	rounds = 3
	// maxShown is the maximum number of conflicts of a pair in the table format.
	maxShown = 20
)

var errNotRebuilt = cli.WithHint(errors.New("the rebuild of the directory is not finished, or found conflicts"),
	"the command again when the reported problems are corrected")

type rebuildFlags struct {
	pairs []string
	yes   bool
}

func rebuildCommand(env *cli.Env) *cobra.Command {
	var f rebuildFlags
	cmd := &cobra.Command{
		Use: "rebuild", Short: "Write a lost or restored directory from the pairs",
		Long: `Rebuild the directory from the queues of the pairs, after it was lost or restored from an older copy. Until
all pairs have contributed, no queues can be created; existing queues remain usable. Placement rules of a lost
directory are not restored.

If the directory is lost, --addr must contain at least one node of each pair. --pairs contains the names of all
pairs; the default is the pairs that respond or are registered. MAKE SURE THAT NO PAIR IS MISSING in this list: its
queue names could be assigned to other pairs.

The exit code is 1 if a pair has not contributed, or if there are conflicts or malformed values in etcd. Then correct
the reported problems, and run the command again. On a terminal, the command asks for confirmation; scripts use
--yes.`,
		Example: `  lockstep fleet rebuild --addr a-1:7420,b-1:7420,c-1:7420 --pairs a,b,c
  lockstep fleet rebuild --addr a-1:7420,b-1:7420 --yes --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return rebuild(ctx, env, c, &f)
			})
		},
	}
	cmd.Flags().StringSliceVar(&f.pairs, "pairs", nil, "names of all pairs; default: all that respond or are registered")
	cli.AddYes(cmd, &f.yes)
	return cmd
}

// rebuilt is the output of lockstep fleet rebuild.
type rebuilt struct {
	// Done reports whether the pairs were requested to contribute, and Finished whether all pairs have contributed.
	Done     bool `json:"done"`
	Finished bool `json:"finished"`
	// Pairs are the names of all pairs of the fleet.
	Pairs   []string       `json:"pairs"`
	Reports []contribution `json:"reports"`
	// Missing are the pairs that have not contributed.
	Missing []string `json:"missing_pairs"`
}

// contribution is the result of one pair.
type contribution struct {
	Pair    string `json:"pair"`
	Address string `json:"address,omitempty"`
	Error   string `json:"error,omitempty"`
	Added   uint64 `json:"added"`
	Updated uint64 `json:"updated"`
	Removed uint64 `json:"removed"`
	// Conflicts are queues that the directory assigns to other pairs, at most 1,000.
	Conflicts      []conflict `json:"conflicts"`
	ConflictsTotal uint64     `json:"conflicts_total"`
	Malformed      []string   `json:"malformed"`
}

type conflict struct {
	Queue     string `json:"queue"`
	Epoch     uint64 `json:"epoch"`
	Pair      string `json:"pair"`
	PairEpoch uint64 `json:"pair_epoch"`
}

func rebuild(ctx context.Context, env *cli.Env, c *client.Client, f *rebuildFlags) error {
	addresses, err := env.Addresses()
	if err != nil {
		return err
	}
	pairs, failed := members(ctx, env, c, addresses)
	if len(pairs) == 0 {
		return failure(failed)
	}
	if more := registered(pairs); len(more) > 0 {
		others, _ := members(ctx, env, c, more) // listed as missing if they do not respond
		pairs = append(pairs, others...)
		slices.SortFunc(pairs, func(a, b member) int { return cmp.Compare(a.name, b.name) })
		pairs = slices.CompactFunc(pairs, func(a, b member) bool { return a.name == b.name })
	}
	r := rebuilt{Pairs: allPairs(f.pairs, pairs), Reports: []contribution{}}
	for _, m := range pairs {
		if !slices.Contains(r.Pairs, m.name) {
			return cli.Usage("--pairs does not contain pair %s, which responds", m.name)
		}
		r.Reports = append(r.Reports, newContribution(m))
	}
	r.Missing = slices.DeleteFunc(slices.Clone(r.Pairs), func(name string) bool {
		return slices.ContainsFunc(pairs, func(m member) bool { return m.name == name && m.node != nil })
	})
	if err := printRebuildPlan(env, &r, failed); err != nil {
		return err
	}
	if err := env.ConfirmPlan(ctx, f.yes, &r, "Rebuild the directory from %s?", output.Plural(len(r.Pairs),
		"pair")); err != nil {
		return err
	}
	r.run(ctx, env, pairs)
	return printRebuilt(env, &r)
}

// allPairs returns the names of all pairs: the given ones or, without them, those that respond or are registered.
func allPairs(given []string, pairs []member) []string {
	all := slices.Clone(given)
	if len(all) == 0 {
		all = names(pairs)
		for _, m := range pairs {
			for _, p := range m.fleet.GetPairs() {
				all = append(all, p.GetName())
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

func newContribution(m member) contribution {
	out := contribution{Pair: m.name, Conflicts: []conflict{}, Malformed: []string{}}
	if m.node != nil {
		out.Address = m.node.Address()
	} else {
		out.Error = m.err.Error()
	}
	return out
}

// run requests the contributions of the pairs, and repeats the requests if a pair must contribute after another one.
func (r *rebuilt) run(ctx context.Context, env *cli.Env, pairs []member) {
	r.Done = true
	for range rounds {
		again := false
		for i, m := range pairs {
			if m.node == nil {
				continue
			}
			limited, cancel := context.WithTimeout(ctx, env.Timeout+rebuildTime)
			resp, err := m.node.RebuildDirectory(limited, r.Pairs)
			cancel()
			r.Reports[i].add(resp, err)
			if err == nil {
				r.Missing = append([]string{}, resp.GetMissingPairs()...)
			}
		}
		for i, m := range pairs {
			again = again || m.node != nil && r.Reports[i].Error == "" && slices.Contains(r.Missing, m.name)
		}
		if !again {
			break
		}
	}
	r.Finished = len(r.Missing) == 0 && !slices.ContainsFunc(r.Reports, func(c contribution) bool { return c.Error != "" })
}

func (c *contribution) add(resp *pb.RebuildDirectoryResponse, err error) {
	c.Error = ""
	if err != nil {
		c.Error = err.Error()
		return
	}
	c.Added, c.Updated, c.Removed = c.Added+resp.GetAdded(), c.Updated+resp.GetUpdated(), c.Removed+resp.GetRemoved()
	c.Conflicts, c.ConflictsTotal = []conflict{}, resp.GetConflictsTotal()
	c.Malformed = append([]string{}, resp.GetMalformed()...)
	for _, q := range resp.GetConflicts() {
		c.Conflicts = append(c.Conflicts, conflict{q.GetQueue(), q.GetEpoch(), q.GetPair(), q.GetPairEpoch()})
	}
}

func printRebuildPlan(env *cli.Env, r *rebuilt, failed []answer) error {
	var lines []string
	for _, c := range r.Reports {
		lines = append(lines, fmt.Sprintf("pair %s contributes through %s", c.Pair, c.Address))
		if c.Error != "" {
			lines[len(lines)-1] = c.Error
		}
	}
	if len(failed) > 0 {
		lines = append(lines, "nodes that do not respond:\n"+describe(failed))
	}
	if len(r.Missing) > 0 {
		lines = append(lines, "MISSING: pairs that cannot contribute now: "+strings.Join(r.Missing, ", "))
	}
	lines = append(lines, "all pairs of the fleet: "+strings.Join(r.Pairs, ", ")+
		"\nqueue names of a pair that is not in this list could be assigned to other pairs")
	return env.Print.Sentence("%s", strings.Join(lines, "\n"))
}

func notFinished(missing []string) string {
	const text = "NOT FINISHED: no queues can be created until "
	if len(missing) == 0 {
		return text + "the pairs with an error have contributed. Correct the errors, and run the command again"
	}
	return text + "these pairs have contributed: " + strings.Join(missing, ", ") +
		". Start their nodes, and run the command again with a node of each pair in --addr"
}

func printRebuilt(env *cli.Env, r *rebuilt) error {
	conflicts, malformed := uint64(0), 0
	rows := make([][]any, len(r.Reports))
	var notes []string
	for i, c := range r.Reports {
		rows[i] = []any{c.Pair, c.Added, c.Updated, c.Removed, c.ConflictsTotal, cmp.Or(c.Error, "-")}
		conflicts, malformed = conflicts+c.ConflictsTotal, malformed+len(c.Malformed)
		for _, q := range c.Conflicts[:min(len(c.Conflicts), maxShown)] {
			notes = append(notes, fmt.Sprintf("CONFLICT: pair %s has the queue %s (epoch %d), which the directory assigns to "+
				"pair %s (epoch %d): delete it at one of them", c.Pair, q.Queue, q.Epoch, q.Pair, q.PairEpoch))
		}
		for _, m := range c.Malformed {
			notes = append(notes, "malformed value in etcd: "+m)
		}
	}
	if r.Finished {
		notes = append(notes, "the directory is complete; if it was lost, set its placement rules again with lockstep "+
			"fleet place")
	} else {
		notes = append(notes, notFinished(r.Missing))
	}
	err := errors.Join(
		env.Print.Object(r),
		env.Print.Table([]string{"Pair", "Added", "Updated", "Removed", "Conflicts", "Error"}, rows),
		env.Print.Sentence("%s", strings.Join(notes, "\n")),
	)
	if err == nil && (!r.Finished || conflicts > 0 || malformed > 0) {
		return errNotRebuilt
	}
	return err
}
