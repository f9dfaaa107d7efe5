// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

type policyState struct {
	MaxDeliveries        *uint32  `json:"max_deliveries,omitempty"`
	DeadLetter           *string  `json:"dead_letter,omitempty"`
	RedeliveryDelay      *string  `json:"redelivery_delay,omitempty"`
	RedeliveryMultiplier *float64 `json:"redelivery_multiplier,omitempty"`
	RedeliveryMaxDelay   *string  `json:"redelivery_max_delay,omitempty"`
	AckTimeout           *string  `json:"ack_timeout,omitempty"`
}

func newPolicyState(p admin.RedeliveryPolicy) *policyState {
	if p == (admin.RedeliveryPolicy{}) {
		return nil
	}
	span := func(d *time.Duration) *string {
		if d == nil {
			return nil
		}
		text := spanText(*d)
		return &text
	}
	return &policyState{
		MaxDeliveries: p.MaxDeliveries, DeadLetter: p.DeadLetter, RedeliveryMultiplier: p.RedeliveryMultiplier,
		RedeliveryDelay: span(p.RedeliveryDelay), RedeliveryMaxDelay: span(p.RedeliveryMaxDelay),
		AckTimeout: span(p.AckTimeout),
	}
}

func policyText(p admin.RedeliveryPolicy) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if p.MaxDeliveries != nil {
		most := "unlimited"
		if *p.MaxDeliveries != 0 {
			most = output.Count(*p.MaxDeliveries)
		}
		add("max deliveries %s", most)
	}
	if p.DeadLetter != nil {
		add("dead letters %s", cmp.Or(*p.DeadLetter, "none"))
	}
	if p.RedeliveryDelay != nil {
		add("redelivery delay %s", spanText(*p.RedeliveryDelay))
	}
	if p.RedeliveryMultiplier != nil {
		add("multiplier %v", *p.RedeliveryMultiplier)
	}
	if p.RedeliveryMaxDelay != nil {
		add("max delay %s", spanText(*p.RedeliveryMaxDelay))
	}
	if p.AckTimeout != nil {
		add("ack timeout %s", spanText(*p.AckTimeout))
	}
	return strings.Join(parts, ", ")
}

func spanText(d time.Duration) string { return cmp.Or(output.Span(d), "0s") }

func activeText(a *admin.ActiveConsumer) string {
	if a == nil {
		return ""
	}
	return fmt.Sprintf("%s since %s", a.Address, a.Since.UTC().Format(time.RFC3339))
}

type policyFlags struct{ config admin.QueueConfig }

func (f *policyFlags) register(cmd *cobra.Command) {
	cmd.Flags().Uint32Var(&f.config.MaxDeliveries, "max-deliveries", 0,
		"maximum deliveries of a message; overrides the queue; 0: unlimited")
	cmd.Flags().StringVar(&f.config.DeadLetter, "dead-letter", "",
		"dead-letter queue for failed messages; overrides the queue; if \"\", messages are discarded")
	cmd.Flags().DurationVar(&f.config.RedeliveryDelay, "redelivery-delay", 0,
		"delay before the first redelivery of a message; overrides the queue")
	cmd.Flags().Float64Var(&f.config.RedeliveryMultiplier, "redelivery-multiplier", 0,
		"multiplier of the delay for each further redelivery; overrides the queue")
	cmd.Flags().DurationVar(&f.config.RedeliveryMaxDelay, "redelivery-max-delay", 0,
		"maximum redelivery delay; overrides the queue; 0: unlimited")
	cmd.Flags().DurationVar(&f.config.AckTimeout, "ack-timeout", 0,
		"requeue unacknowledged messages after this time; overrides the queue; 0: never")
}

func flagOf(field string) string { return strings.ReplaceAll(field, "_", "-") }

func (f *policyFlags) given(cmd *cobra.Command) admin.RedeliveryPolicy {
	var set []string
	for _, field := range admin.PolicyFields() {
		if cmd.Flags().Changed(flagOf(field)) {
			set = append(set, field)
		}
	}
	return admin.PolicyOf(f.config, set)
}

func alterSubscriptionCommand(env *cli.Env) *cobra.Command {
	var given policyFlags
	var filter string
	var inherit []string
	cmd := &cobra.Command{
		Use: "alter QUEUE NAME", Short: "Change the filter and options of a subscription",
		Long: `Change the filter of a subscription, or its overrides of queue options. Other settings stay unchanged.
With --inherit, the options of the queue apply again.

A new filter also applies to the backlog. Messages that a filter has skipped are acknowledged, and are not delivered
after a later change of the filter.`,
		Example: `  lockstep subscription alter orders billing --max-deliveries 3 --dead-letter billing.dead
  lockstep subscription alter orders billing --redelivery-delay 5s --redelivery-multiplier 2
  lockstep subscription alter orders billing --ack-timeout 5m
  lockstep subscription alter orders billing --inherit max-deliveries,dead-letter
  lockstep subscription alter orders large --filter 'properties.amount > 5000'`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			change := admin.SubscriptionChange{Redelivery: given.given(cmd)}
			if cmd.Flags().Changed("filter") {
				change.Filter = &filter
			}
			for _, name := range inherit {
				field := strings.ReplaceAll(name, "-", "_")
				switch {
				case name == "all":
					change.Inherit = admin.PolicyFields()
				case slices.Contains(admin.PolicyFields(), field):
					change.Inherit = append(change.Inherit, field)
				default:
					return cli.Usage("--inherit %q: must be all, %s", name,
						flagOf(strings.Join(admin.PolicyFields(), ", ")))
				}
			}
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				s, err := admin.New(c).AlterSubscription(ctx, args[0], args[1], change)
				if err != nil {
					return err
				}
				return env.Print.Result(newSubscriptionState(s), "altered subscription %s of %s", s.Name, args[0])
			})
		},
	}
	given.register(cmd)
	cmd.Flags().StringVar(&filter, "filter", "", "CEL expression that messages must match; \"\": all messages")
	cmd.Flags().StringSliceVar(&inherit, "inherit", nil, "overrides to remove, such as max-deliveries, or \"all\"")
	names := []string{"filter", "inherit"}
	for _, field := range admin.PolicyFields() {
		names = append(names, flagOf(field))
	}
	cmd.MarkFlagsOneRequired(names...)
	return cmd
}
