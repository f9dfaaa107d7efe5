// SPDX-License-Identifier: Apache-2.0

// Package queue implements the commands for queues and their subscriptions.
package queue

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

// Command returns the `lockstep queue` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "queue", Aliases: []string{"queues", "q"}, GroupID: "use",
		Short: "Manage queues and their messages",
		Args:  cli.KnownSubcommand,
		RunE:  cli.NeedsSubcommand,
	}
	cmd.AddCommand(createCommand(env), listCommand(env), showCommand(env), alterCommand(env), deleteCommand(env),
		purgeCommand(env), moveCommand(env), removeCommand(env), dropCorruptCommand(env), replayCommand(env),
		seekCommand(env), forwardCommand(env), pauseCommand(env), resumeCommand(env))
	return cmd
}

type queueState struct {
	Name          string              `json:"name"`
	Pair          string              `json:"pair,omitempty"` // only in lists of the queues of a fleet
	ID            uint64              `json:"id"`
	Messages      uint64              `json:"messages"`
	Bytes         uint64              `json:"bytes"`
	NextSequence  uint64              `json:"next_sequence"`
	Delayed       uint64              `json:"delayed,omitempty"`
	Dropped       uint64              `json:"dropped,omitempty"`
	Expired       uint64              `json:"expired,omitempty"`
	MessageIDs    uint64              `json:"message_ids,omitempty"`
	Duplicates    uint64              `json:"duplicates,omitempty"`
	Forwards      []forwardState      `json:"forwards,omitempty"`
	Subscriptions []subscriptionState `json:"subscriptions"`
	Digest        string              `json:"digest"`
	Activity      *activityState      `json:"activity,omitempty"`
	Pause         *pauseState         `json:"pause,omitempty"`
	Partitions    []partitionState    `json:"partitions,omitempty"`
	// Sources contains the source of each option in the state.
	Sources map[string]string `json:"sources"`

	config admin.QueueConfig
}

// MarshalJSON implements json.Marshaler. It adds the fields of the configuration.
func (q queueState) MarshalJSON() ([]byte, error) {
	type plain queueState
	state, err := json.Marshal(plain(q))
	if err != nil {
		return nil, fmt.Errorf("encode queue: %w", err)
	}
	config, err := json.Marshal(configJSON(&q.config))
	if err != nil {
		return nil, fmt.Errorf("encode queue: %w", err)
	}
	return append(append(state[:len(state)-1], ','), config[1:]...), nil
}

type subscriptionState struct {
	Name      string `json:"name"`
	Floor     uint64 `json:"floor"`
	Backlog   uint64 `json:"backlog"`
	InFlight  uint64 `json:"in_flight"`
	Consumers uint32 `json:"consumers"`
	Filter    string `json:"filter,omitempty"`
	// Redelivery contains the settings that the subscription overrides; nil if none.
	Redelivery *policyState `json:"redelivery,omitempty"`
	Active     *activeState `json:"active_consumer,omitempty"`
	Pause      *pauseState  `json:"pause,omitempty"`
	// OldestInFlight is the longest time, in seconds, that a message has been in flight; 0 if no message is.
	OldestInFlight float64 `json:"oldest_in_flight_seconds,omitempty"`
}

type activeState struct {
	Address string    `json:"address"`
	Since   time.Time `json:"since"`
}

func newSubscriptionState(s admin.Subscription) subscriptionState {
	state := subscriptionState{
		Name: s.Name, Floor: s.Floor, Backlog: s.Backlog, InFlight: s.InFlight, Consumers: s.Consumers,
		Filter:     s.Filter,
		Redelivery: newPolicyState(s.Redelivery), Pause: newPauseState(s.Pause),
		OldestInFlight: s.OldestInFlightAge.Seconds(),
	}
	if s.Active != nil {
		state.Active = &activeState{Address: s.Active.Address, Since: s.Active.Since.UTC()}
	}
	return state
}

func newQueueState(q admin.Queue) queueState {
	j := queueState{
		Name: q.Name, ID: q.ID, Messages: q.Messages, Bytes: q.Bytes, NextSequence: q.NextSequence,
		Forwards: forwardStates(q), config: q.Config,
		Delayed: q.Delayed, Dropped: q.Dropped, Expired: q.Expired, MessageIDs: q.MessageIDs, Duplicates: q.Duplicates,
		Digest: fmt.Sprintf("%016x", q.Digest), Subscriptions: []subscriptionState{},
		Activity: newActivityState(q.Activity), Pause: newPauseState(q.Pause),
		Sources: make(map[string]string), Partitions: partitionStates(q, nil),
	}
	for _, name := range slices.AppendSeq(slices.Clone(q.Own.Fields), maps.Keys(configJSON(&q.Config))) {
		j.Sources[name] = q.Source(name)
	}
	for _, s := range q.Subscriptions {
		j.Subscriptions = append(j.Subscriptions, newSubscriptionState(s))
	}
	return j
}

func createCommand(env *cli.Env) *cobra.Command {
	var given configFlags
	var o admin.CreateQueueOptions
	cmd := &cobra.Command{
		Use: "create NAME", Short: "Create a queue",
		Long: `Create a queue. Without --subscription and --topic, it has one subscription, named "default". Options that
are not given get the defaults of a matching policy (lockstep policy), or their default values. After the time of
--temporary without consumers, the queue is deleted with its messages.

With --partitions, the queue consists of several queues, the partitions. Messages with the same group are stored in the
same partition. Limits apply to each partition. If the command fails, run it again to create the missing partitions.`,
		Example: `  lockstep queue create orders
  lockstep queue create prices --subscription billing --subscription audit
  lockstep queue create orders --if-not-exists --max-messages 1000000
  lockstep queue create orders.dead && lockstep queue create orders --max-deliveries 5 --dead-letter orders.dead
  lockstep queue create jobs --ack-timeout 5m
  lockstep queue create mails --priorities --ttl 24h --redelivery-delay 5s --redelivery-multiplier 2
  lockstep queue create events --topic --retention-age 168h --retention-bytes 10GiB
  lockstep queue create payments --partitions 8 --exclusive`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Explicit = given.change(cmd, &o.Config)
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				q, created, err := admin.New(c).CreateQueue(ctx, args[0], o)
				if err != nil {
					return err
				}
				if err := env.Print.Object(newQueueState(q)); err != nil {
					return err
				}
				switch {
				case !created:
					return env.Print.Sentence("queue %s already exists", q.Name)
				case o.Partitions > 0:
					return env.Print.Sentence("created queue %s with %d partitions", q.Name, o.Partitions)
				}
				return env.Print.Sentence("created queue %s", q.Name)
			})
		},
	}
	given.register(cmd)
	cmd.Flags().StringArrayVarP(&o.Subscriptions, "subscription", "s", nil,
		"name of an initial subscription; may be repeated")
	cmd.Flags().BoolVar(&o.Topic, "topic", false,
		"create no subscription; while none exists, only a queue with retention stores messages")
	cmd.Flags().BoolVar(&o.IfNotExists, "if-not-exists", false,
		"succeed if the queue already exists; its options and subscriptions are not changed")
	cmd.Flags().IntVar(&o.Partitions, "partitions", 0, "number of partitions, 2 to 64 (default: not partitioned)")
	cmd.Flags().StringVar(&o.PlacementGroup, "placement-group", "",
		"in a fleet: group of queues that are created on the same pair (default: text between { and } in NAME)")
	return cmd
}

func showCommand(env *cli.Env) *cobra.Command {
	var history bool
	var since time.Duration
	cmd := &cobra.Command{
		Use: "show [NAME]", Short: "Show a queue with its subscriptions",
		Long: `Show the size and configuration of a queue with its subscriptions and partitions. With --history, show
instead the rates, the depth and the age of the oldest message over the last hour (--since). Without NAME, the
history is that of all queues of the pair together.

The history is only in memory, for 24 hours. At most 100 queues have a history, usually the busiest.`,
		Example: `  lockstep queue show orders
  lockstep queue show orders --history
  lockstep queue show --history --since 24h`,
		Args: func(cmd *cobra.Command, args []string) error {
			if history {
				return cobra.MaximumNArgs(1)(cmd, args)
			}
			return cobra.ExactArgs(1)(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if history {
				return showHistory(cmd.Context(), env, strings.Join(args, ""), since)
			}
			if cmd.Flags().Changed("since") {
				return cli.Usage("--since requires --history")
			}
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				q, err := admin.New(c).GetQueue(ctx, args[0])
				if err != nil {
					return err
				}
				return showQueueAt(env, q, partitionPairs(ctx, c, q))
			})
		},
	}
	cmd.Flags().BoolVar(&history, "history", false, "show recorded rates, depth and oldest age")
	cmd.Flags().DurationVar(&since, "since", time.Hour, "period of the history, at most 24h")
	return cmd
}

func printSubscriptions(env *cli.Env, q admin.Queue) error {
	rows := make([][]any, len(q.Subscriptions))
	for i, s := range q.Subscriptions {
		rows[i] = []any{s.Name, s.Backlog, s.InFlight, s.Consumers, s.Floor}
	}
	head := []string{"Subscription", "Backlog", "In flight", "Consumers", "Acknowledged below"}
	for _, column := range []struct { // displayed if a subscription has a value
		name string
		text func(s admin.Subscription) string
	}{
		{"Filter", func(s admin.Subscription) string { return s.Filter }},
		{"Overrides", func(s admin.Subscription) string { return policyText(s.Redelivery) }},
		{"Active consumer", func(s admin.Subscription) string { return activeText(s.Active) }},
		{"Paused", func(s admin.Subscription) string { return pauseText(s.Pause) }},
		{"In flight for", func(s admin.Subscription) string { return output.Span(s.OldestInFlightAge.Round(time.Second)) }},
	} {
		if !slices.ContainsFunc(q.Subscriptions, func(s admin.Subscription) bool { return column.text(s) != "" }) {
			continue
		}
		head = append(head, column.name)
		for i, s := range q.Subscriptions {
			rows[i] = append(rows[i], column.text(s))
		}
	}
	return env.Print.Table(head, rows)
}

func alterCommand(env *cli.Env) *cobra.Command {
	var given configFlags
	var reset []string
	cmd := &cobra.Command{
		Use: "alter NAME", Short: "Change the options of a queue",
		Long: `Change the options of a queue. Options that are not given stay unchanged. To turn a boolean option off, add
=false to its flag. An option that is set on the queue overrides the defaults of policies, even if it is 0 or "". To
apply the policies again, use --reset.

The change also applies to stored messages: for example, messages that are older than the new TTL expire, and with a
shorter retention, retained messages are deleted. After the time of --temporary without consumers, the queue is
deleted with its messages.`,
		Example: `  lockstep queue alter orders --max-messages 1000000
  lockstep queue alter orders --max-bytes 0
  lockstep queue alter orders --max-deliveries 5 --dead-letter orders.dead
  lockstep queue alter orders --dead-letter ""
  lockstep queue alter orders --retention-age 168h --exclusive=false
  lockstep queue alter orders --reset max-deliveries --reset dead-letter`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			options, err := optionNames(reset)
			if err != nil {
				return err
			}
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				q, err := admin.New(c).GetQueue(ctx, args[0])
				if err != nil {
					return err
				}
				// Nodes of release 0.1.0 always change both limits: the request must contain both values.
				change := admin.QueueChange{Set: given.change(cmd, &q.Config), Reset: options, Config: q.Config}
				if q, err = admin.New(c).ChangeQueue(ctx, args[0], change); err != nil {
					return err
				}
				return showQueue(env, q)
			})
		},
	}
	given.register(cmd)
	cmd.Flags().StringSliceVar(&reset, "reset", nil,
		"option to unset on the queue, so that policies apply; may be repeated")
	cmd.MarkFlagsOneRequired(append(configFlagNames(), "reset")...)
	return cmd
}

func deleteCommand(env *cli.Env) *cobra.Command {
	var ifEmpty, yes bool
	cmd := &cobra.Command{
		Use: "delete NAME", Aliases: []string{"rm"}, Short: "Delete a queue with all messages",
		Long: "Delete a queue with its subscriptions and all messages. Schedules that publish to the queue are kept. A " +
			"queue cannot be deleted while another queue forwards to it, while it is the dead-letter queue of another " +
			"queue, a subscription or a policy, while a prepared transaction uses it, or while it is moved to another " +
			"pair. Without a terminal, the command does not ask for confirmation.",
		Example: "  lockstep queue delete orders --if-empty\n  lockstep queue delete orders --yes",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if err := env.ConfirmMessages(ctx, c, yes || ifEmpty, args[0], "",
					"Delete queue "+args[0]); err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(ctx, env.Timeout)
				defer cancel()
				n, err := admin.New(c).DeleteQueue(ctx, args[0], ifEmpty)
				if err != nil {
					return err
				}
				return countResult(env, "deleted queue "+args[0]+" with %s", n)
			})
		},
	}
	cmd.Flags().BoolVar(&ifEmpty, "if-empty", false, "refuse if the queue has messages")
	cli.AddYes(cmd, &yes)
	return cmd
}

func purgeCommand(env *cli.Env) *cobra.Command {
	var subscription string
	var yes bool
	cmd := &cobra.Command{
		Use: "purge NAME", Short: "Delete all messages of a queue or subscription",
		Long: "Delete all messages of a queue, including delayed, retained and in-flight ones. With --subscription, " +
			"acknowledge the backlog of this subscription instead; messages that no other subscription needs are then " +
			"deleted, unless the queue retains them. Without a terminal, the command does not ask for confirmation.",
		Example: "  lockstep queue purge orders\n  lockstep queue purge prices --subscription audit",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				label := "Purge queue " + args[0]
				if subscription != "" {
					label = "Purge subscription " + subscription + " of queue " + args[0]
				}
				if err := env.ConfirmMessages(ctx, c, yes, args[0], subscription, label); err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(ctx, env.Timeout)
				defer cancel()
				n, err := admin.New(c).PurgeQueue(ctx, args[0], subscription)
				if err != nil {
					return err
				}
				return countResult(env, "purged %s from "+args[0], n)
			})
		},
	}
	cmd.Flags().StringVarP(&subscription, "subscription", "s", "",
		"acknowledge only the backlog of this subscription; default: delete all messages")
	cli.AddYes(cmd, &yes)
	return cmd
}

// countResult prints a sentence, which contains %s for the number of messages.
func countResult(env *cli.Env, sentence string, n uint64) error {
	return env.Print.Result(map[string]uint64{"messages": n}, sentence, output.Plural(n, "message"))
}
