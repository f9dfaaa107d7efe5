// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/server/config"
)

// behaviour is the configuration of a queue except its limits and dead letters, for programs.
type behaviour struct {
	TTL                  string  `json:"ttl,omitempty"`
	Delay                string  `json:"delay,omitempty"`
	RedeliveryDelay      string  `json:"redelivery_delay,omitempty"`
	RedeliveryMultiplier float64 `json:"redelivery_multiplier,omitempty"`
	RedeliveryMaxDelay   string  `json:"redelivery_max_delay,omitempty"`
	RetentionAge         string  `json:"retention_age,omitempty"`
	RetentionBytes       uint64  `json:"retention_bytes,omitempty"`
	RetentionMessages    uint64  `json:"retention_messages,omitempty"`
	Overflow             string  `json:"overflow,omitempty"`
	Priorities           bool    `json:"priorities,omitempty"`
	Exclusive            bool    `json:"exclusive,omitempty"`
	DeadLetterExpired    bool    `json:"dead_letter_expired,omitempty"`
	TemporaryGrace       string  `json:"temporary_grace,omitempty"`
}

func newBehaviour(c client.QueueConfig) behaviour {
	b := behaviour{
		TTL: output.Span(c.TTL), Delay: output.Span(c.Delay), RedeliveryDelay: output.Span(c.RedeliveryDelay),
		RedeliveryMultiplier: c.RedeliveryMultiplier, RedeliveryMaxDelay: output.Span(c.RedeliveryMaxDelay),
		RetentionAge: output.Span(c.RetentionAge), RetentionBytes: c.RetentionBytes, RetentionMessages: c.RetentionMessages,
		Priorities: c.Priorities, Exclusive: c.Exclusive, DeadLetterExpired: c.DeadLetterExpired,
		TemporaryGrace: output.Span(c.TemporaryGrace),
	}
	if c.Overflow != client.OverflowReject {
		b.Overflow = c.Overflow.String()
	}
	return b
}

// pairs returns the settings for display.
func (b behaviour) pairs() (pairs [][2]string) {
	add := func(name, text string) {
		if text != "" {
			pairs = append(pairs, [2]string{name, text})
		}
	}
	add("Messages expire", after(b.TTL))
	if b.DeadLetterExpired {
		add("Expired messages", "are moved with the dead letters")
	}
	add("Delivered", after(b.Delay))
	if b.RedeliveryDelay != "" {
		text := after(b.RedeliveryDelay)
		if b.RedeliveryMultiplier > 1 {
			text += fmt.Sprintf(", multiplied by %g for each redelivery", b.RedeliveryMultiplier)
		}
		if b.RedeliveryMaxDelay != "" {
			text += ", at most " + b.RedeliveryMaxDelay
		}
		add("Redelivered", text)
	}
	add("Kept", b.retention())
	add("When full", b.Overflow)
	if b.Priorities {
		add("Priorities", "higher ones are delivered first")
	}
	if b.Exclusive {
		add("Exclusive", "one consumer per subscription at a time")
	}
	if b.TemporaryGrace != "" {
		add("Temporary", "deleted after no consumer for "+b.TemporaryGrace)
	}
	return pairs
}

func after(d string) string {
	if d == "" {
		return ""
	}
	return "after " + d
}

// retention describes how long acknowledged messages are retained.
func (b behaviour) retention() string {
	var until []string
	if b.RetentionAge != "" {
		until = append(until, "for "+b.RetentionAge)
	}
	if b.RetentionBytes > 0 {
		until = append(until, "up to "+output.Bytes(b.RetentionBytes))
	}
	if b.RetentionMessages > 0 {
		until = append(until, "up to "+output.Plural(b.RetentionMessages, "message"))
	}
	return strings.Join(until, ", ")
}

// configFlags are the flags of a queue's configuration.
type configFlags struct {
	config                             client.QueueConfig
	maxBytes, retentionBytes, overflow string
}

// configFlag is a configuration flag: how it is registered, and how its value is applied to a configuration.
type configFlag struct {
	name     string
	register func(cmd *cobra.Command, f *configFlags)
	copy     func(to, from *client.QueueConfig)
}

func configFlagNames() []string {
	var names []string
	for _, flag := range allConfigFlags() {
		names = append(names, flag.name)
	}
	return names
}

func durationFlag(name, usage string, of func(c *client.QueueConfig) *time.Duration) configFlag {
	return configFlag{
		name, func(cmd *cobra.Command, f *configFlags) { cmd.Flags().DurationVar(of(&f.config), name, 0, usage) },
		func(to, from *client.QueueConfig) { *of(to) = *of(from) },
	}
}

func boolFlag(name, usage string, of func(c *client.QueueConfig) *bool) configFlag {
	return configFlag{
		name, func(cmd *cobra.Command, f *configFlags) { cmd.Flags().BoolVar(of(&f.config), name, false, usage) },
		func(to, from *client.QueueConfig) { *of(to) = *of(from) },
	}
}

func countFlag(name, usage string, of func(c *client.QueueConfig) *uint64) configFlag {
	return configFlag{
		name, func(cmd *cobra.Command, f *configFlags) { cmd.Flags().Uint64Var(of(&f.config), name, 0, usage) },
		func(to, from *client.QueueConfig) { *of(to) = *of(from) },
	}
}

func textFlag(
	name, usage, otherwise string, text func(f *configFlags) *string, copyTo func(to, from *client.QueueConfig),
) configFlag {
	return configFlag{
		name, func(cmd *cobra.Command, f *configFlags) { cmd.Flags().StringVar(text(f), name, otherwise, usage) }, copyTo,
	}
}

func allConfigFlags() []configFlag {
	return append(limitFlags(), behaviourFlags()...)
}

// limitFlags returns the flags for limits and overflow.
func limitFlags() []configFlag {
	return []configFlag{
		countFlag("max-messages", "maximum number of messages; 0: unlimited",
			func(c *client.QueueConfig) *uint64 { return &c.MaxMessages }),
		textFlag("max-bytes", "maximum size, such as 64MiB; 0: unlimited", "0",
			func(f *configFlags) *string { return &f.maxBytes },
			func(to, from *client.QueueConfig) { to.MaxBytes = from.MaxBytes }),
		textFlag("overflow", "action for a publish to a full queue: reject, drop-head or dead-letter-head",
			client.OverflowReject.String(), func(f *configFlags) *string { return &f.overflow },
			func(to, from *client.QueueConfig) { to.Overflow = from.Overflow }),
		{
			"max-deliveries", func(cmd *cobra.Command, f *configFlags) {
				cmd.Flags().Uint32Var(&f.config.MaxDeliveries, "max-deliveries", 0,
					"deliveries before a message is dead-lettered or discarded; 0: unlimited")
			}, func(to, from *client.QueueConfig) { to.MaxDeliveries = from.MaxDeliveries },
		},
		textFlag("dead-letter",
			"dead-letter queue; if empty, messages are discarded", "",
			func(f *configFlags) *string { return &f.config.DeadLetter },
			func(to, from *client.QueueConfig) { to.DeadLetter = from.DeadLetter }),
		durationFlag("retention-age", "retention time of acknowledged messages; 0: no retention by age",
			func(c *client.QueueConfig) *time.Duration { return &c.RetentionAge }),
		textFlag("retention-bytes", "retention size of acknowledged messages, such as 10GiB; 0: no retention by size", "0",
			func(f *configFlags) *string { return &f.retentionBytes },
			func(to, from *client.QueueConfig) { to.RetentionBytes = from.RetentionBytes }),
		countFlag("retention-messages", "number of acknowledged messages to retain; 0: no retention by count",
			func(c *client.QueueConfig) *uint64 { return &c.RetentionMessages }),
	}
}

// behaviourFlags returns the flags for the time and the consumers of deliveries.
func behaviourFlags() []configFlag {
	return []configFlag{
		durationFlag("ttl", "message time to live, such as 30s or 24h; 0: unlimited",
			func(c *client.QueueConfig) *time.Duration { return &c.TTL }),
		boolFlag("dead-letter-expired", "move expired messages to --dead-letter instead of discarding them",
			func(c *client.QueueConfig) *bool { return &c.DeadLetterExpired }),
		durationFlag("delay", "default delivery delay of messages; 0: none",
			func(c *client.QueueConfig) *time.Duration { return &c.Delay }),
		durationFlag("redelivery-delay", "delay before a nacked message is redelivered; 0: none",
			func(c *client.QueueConfig) *time.Duration { return &c.RedeliveryDelay }),
		{
			"redelivery-multiplier", func(cmd *cobra.Command, f *configFlags) {
				cmd.Flags().Float64Var(&f.config.RedeliveryMultiplier, "redelivery-multiplier", 0,
					"multiplier of --redelivery-delay for each redelivery: 1 to 1000; 0: same as 1")
			}, func(to, from *client.QueueConfig) { to.RedeliveryMultiplier = from.RedeliveryMultiplier },
		},
		durationFlag("redelivery-max-delay", "maximum redelivery delay; 0: unlimited",
			func(c *client.QueueConfig) *time.Duration { return &c.RedeliveryMaxDelay }),
		boolFlag("priorities", "deliver messages with higher priority first; fixed at creation",
			func(c *client.QueueConfig) *bool { return &c.Priorities }),
		boolFlag("exclusive", "deliver to one consumer per subscription at a time",
			func(c *client.QueueConfig) *bool { return &c.Exclusive }),
		durationFlag("temporary", "delete the queue after this time without consumers, such as 30s; 0: never",
			func(c *client.QueueConfig) *time.Duration { return &c.TemporaryGrace }),
	}
}

func (f *configFlags) register(cmd *cobra.Command) {
	for _, flag := range allConfigFlags() {
		flag.register(cmd, f)
	}
}

// parse returns the configuration given by the flags; the other fields are zero.
func (f *configFlags) parse() (*client.QueueConfig, error) {
	c := f.config
	for _, size := range []struct {
		flag, text string
		to         *uint64
	}{{"max-bytes", f.maxBytes, &c.MaxBytes}, {"retention-bytes", f.retentionBytes, &c.RetentionBytes}} {
		v, err := config.ParseSize(size.text)
		if err != nil {
			return nil, cli.Usage("--%s: %v", size.flag, err)
		}
		*size.to = uint64(v)
	}
	var err error
	if c.Overflow, err = client.ParseOverflow(f.overflow); err != nil {
		return nil, cli.Usage("--overflow: %v", err)
	}
	return &c, nil
}

// change applies the given flags to c.
func (f *configFlags) change(cmd *cobra.Command, given, c *client.QueueConfig) {
	for _, flag := range allConfigFlags() {
		if cmd.Flags().Changed(flag.name) {
			flag.copy(c, given)
		}
	}
}

// showQueue prints all details of one queue.
func showQueue(env *cli.Env, q client.Queue) error {
	if err := env.Print.Object(newQueueState(q)); err != nil {
		return err
	}
	limit := func(n uint64, text string) string {
		if n == 0 {
			return "unlimited"
		}
		return text
	}
	deadLetters := "discarded"
	if q.Config.DeadLetter != "" {
		deadLetters = "to " + q.Config.DeadLetter
	}
	pairs := [][2]string{
		{"Queue", fmt.Sprintf("%s (number %d)", q.Name, q.ID)},
		{"Messages", fmt.Sprintf("%s, %s", output.Count(q.Messages), output.Bytes(q.Bytes))},
		{"Next sequence", fmt.Sprint(q.NextSequence)},
		{"Limits", fmt.Sprintf("messages: %s, bytes: %s, deliveries per message: %s",
			limit(q.Config.MaxMessages, output.Count(q.Config.MaxMessages)),
			limit(q.Config.MaxBytes, output.Bytes(q.Config.MaxBytes)),
			limit(uint64(q.Config.MaxDeliveries), output.Count(q.Config.MaxDeliveries)))},
		{"Dead letters", deadLetters},
	}
	pairs = append(pairs, newBehaviour(q.Config).pairs()...)
	for _, f := range q.Forwards {
		pairs = append(pairs, [2]string{"Forwards", describeForward(f)})
	}
	err := env.Print.Pairs(append(pairs, [2]string{"Digest", fmt.Sprintf("%016x", q.Digest)}))
	if err != nil || len(q.Subscriptions) == 0 {
		return err
	}
	if err := env.Print.Sentence(""); err != nil {
		return err
	}
	return printSubscriptions(env, q)
}
