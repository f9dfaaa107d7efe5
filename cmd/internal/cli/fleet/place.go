// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func placeCommand(env *cli.Env) *cobra.Command {
	rule := &pb.PlacementRule{}
	var remove bool
	cmd := &cobra.Command{
		Use: "place PATTERN", Short: "Set the pairs of new queues",
		Long: `Set the pairs on which queues with a matching name are created: one pair, or the pairs with all of the given
labels (setting fleet.labels). In PATTERN, * matches any text, and ? matches one byte. If several patterns match a
name, the one with the most bytes other than * and ? applies.

The rule replaces a rule with the same pattern. It has no effect on existing queues, or on new queues of a placement
group that already has queues. If no pair of the rule is open and live, other matching queues cannot be created.`,
		Example: `  lockstep fleet place 'orders.*' --pair b
  lockstep fleet place 'eu.*' --label region=eu --label disk=ssd
  lockstep fleet place 'orders.*' --delete`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			rule.Pattern = args[0]
			return change(cmd.Context(), env, func(ctx context.Context, a answer) error {
				return place(ctx, env, a, rule, remove)
			})
		},
	}
	f := cmd.Flags()
	f.StringVar(&rule.Pair, "pair", "", "name of the pair")
	f.StringToStringVar(&rule.Labels, "label", nil, "label that a pair must have, NAME=VALUE; may be repeated")
	f.BoolVar(&remove, "delete", false, "delete the rule")
	cmd.MarkFlagsMutuallyExclusive("pair", "label", "delete")
	cmd.MarkFlagsOneRequired("pair", "label", "delete")
	return cmd
}

// placed is the output of lockstep fleet place.
type placed struct {
	ruleInfo
	Deleted bool `json:"deleted"`
	// Matching are the names of the registered pairs that the rule permits.
	Matching []string `json:"matching_pairs"`
}

func place(ctx context.Context, env *cli.Env, a answer, rule *pb.PlacementRule, remove bool) error {
	p := placed{ruleInfo: ruleInfo{rule.GetPattern(), rule.GetPair(), rule.GetLabels()}, Deleted: remove}
	if remove {
		if err := a.node.DeletePlacementRule(ctx, rule.GetPattern()); err != nil {
			return err
		}
		p.Matching = []string{}
		return env.Print.Result(p, "no placement rule for %s", rule.GetPattern())
	}
	if err := a.node.PutPlacementRule(ctx, rule); err != nil {
		return err
	}
	p.Matching = matching(a.fleet, rule)
	text := fmt.Sprintf("new queues that match %s are created on %s (%s)", p.Pattern, p.target(),
		output.Plural(len(p.Matching), "registered pair"))
	if len(p.Matching) == 0 {
		text += "\nWARNING: such queues cannot be created, because no registered pair matches; change the rule, or add a " +
			"matching pair"
	}
	return env.Print.Result(p, "%s", text)
}

// matching returns the names of the registered pairs that a rule permits.
func matching(f *pb.GetFleetResponse, rule *pb.PlacementRule) []string {
	pairs := []string{}
	for _, p := range f.GetPairs() {
		permitted := p.GetName() == rule.GetPair()
		if rule.GetPair() == "" {
			labels := maps.Clone(p.GetLabels())
			maps.DeleteFunc(labels, func(k, _ string) bool { _, ok := rule.GetLabels()[k]; return !ok })
			permitted = maps.Equal(labels, rule.GetLabels())
		}
		if permitted {
			pairs = append(pairs, p.GetName())
		}
	}
	return slices.Clip(pairs)
}
