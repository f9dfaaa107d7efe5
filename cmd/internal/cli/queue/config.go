// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/queueconfig"
)

// configJSON returns the options for JSON output. It omits default values, except for max_messages and max_bytes.
func configJSON(c *admin.QueueConfig) map[string]any {
	out := make(map[string]any)
	for _, f := range queueconfig.Fields() {
		value := f.Value(c)
		if value.IsZero() && f.Name != "max_messages" && f.Name != "max_bytes" {
			continue
		}
		switch typed := value.Interface().(type) {
		case time.Duration:
			out[f.Name] = output.Span(typed)
		case fmt.Stringer:
			out[f.Name] = typed.String()
		default:
			out[f.Name] = typed
		}
	}
	return out
}

// configPairs returns the options for display, without those that the function describe adds. It combines the
// redelivery options into one pair, and the retention options into another.
func configPairs(c *admin.QueueConfig) (pairs [][2]string) {
	add := func(name, text string) {
		if text != "" {
			pairs = append(pairs, [2]string{name, text})
		}
	}
	for _, f := range queueconfig.Fields() {
		switch f.Name {
		case "max_messages", "max_bytes", "max_deliveries", "dead_letter", "redelivery_multiplier", "redelivery_max_delay",
			"retention_bytes", "retention_messages":
		case "ttl":
			add("Messages expire", after(c.TTL))
		case "delay":
			add("Delivered", after(c.Delay))
		case "redelivery_delay":
			add("Redelivered", redelivery(c))
		case "retention_age":
			add("Retained", retention(c))
		case "temporary_grace":
			if c.TemporaryGrace != 0 {
				add("Temporary", "deleted after "+output.Span(c.TemporaryGrace)+" without a consumer")
			}
		default:
			if value := f.Get(c); value == true {
				add(f.Label(), "yes")
			} else if value != nil {
				add(f.Label(), fmt.Sprint(value))
			}
		}
	}
	return pairs
}

func after(d time.Duration) string {
	if d == 0 {
		return ""
	}
	return "after " + output.Span(d)
}

func redelivery(c *admin.QueueConfig) string {
	text := after(c.RedeliveryDelay)
	if text == "" {
		return ""
	}
	if c.RedeliveryMultiplier > 1 {
		text += fmt.Sprintf(", multiplied by %g for each redelivery", c.RedeliveryMultiplier)
	}
	if c.RedeliveryMaxDelay != 0 {
		text += ", at most " + output.Span(c.RedeliveryMaxDelay)
	}
	return text
}

func retention(c *admin.QueueConfig) string {
	var until []string
	if c.RetentionAge > 0 {
		until = append(until, "for "+output.Span(c.RetentionAge))
	}
	if c.RetentionBytes > 0 {
		until = append(until, "up to "+output.Bytes(c.RetentionBytes))
	}
	if c.RetentionMessages > 0 {
		until = append(until, "up to "+output.Plural(c.RetentionMessages, "message"))
	}
	return strings.Join(until, ", ")
}

type configFlags struct{ config admin.QueueConfig }

func configFlagNames() []string {
	var names []string
	for _, f := range queueconfig.Fields() {
		names = append(names, f.Flag())
	}
	return names
}

type configFlag struct {
	field  queueconfig.Field
	config *admin.QueueConfig
}

// Set parses a value. Its errors omit the name of the field, because pflag adds the name of the flag.
func (v configFlag) Set(text string) error {
	err := v.field.Set(v.config, text)
	if err == nil {
		return nil
	}
	reason := err.Error()
	for _, prefix := range []string{client.ErrInvalid.Error(), queueconfig.ErrValue.Error(), v.field.Name} {
		reason = strings.TrimPrefix(reason, prefix+": ")
	}
	return errors.New(reason)
}

// String returns the value, or "" for a zero value.
func (v configFlag) String() string {
	if v.config == nil {
		return ""
	}
	switch value := v.field.Value(v.config).Interface().(type) {
	case time.Duration:
		return output.Span(value)
	case fmt.Stringer:
		return value.String()
	}
	if value := v.field.Get(v.config); value != nil {
		return fmt.Sprint(value)
	}
	return ""
}

// Type returns the name of the value's type for help texts.
func (v configFlag) Type() string {
	switch v.field.Value(v.config).Interface().(type) {
	case time.Duration:
		return "duration"
	case fmt.Stringer:
		return "string"
	}
	if v.field.IsSize() {
		return "size"
	}
	return strings.TrimRight(v.field.Value(v.config).Kind().String(), "0123456789")
}

func (f *configFlags) register(cmd *cobra.Command) { f.registerFields(cmd, queueconfig.Fields()) }

func (f *configFlags) registerFields(cmd *cobra.Command, fields []queueconfig.Field) {
	for _, field := range fields {
		flag := cmd.Flags().VarPF(configFlag{field, &f.config}, field.Flag(), "", field.Usage())
		if field.Value(&f.config).Kind() == reflect.Bool {
			flag.NoOptDefVal = "true"
		}
	}
}

// change copies the values of the given flags to c, and returns the names of their fields.
func (f *configFlags) change(cmd *cobra.Command, c *admin.QueueConfig) (names []string) {
	for _, field := range queueconfig.Fields() {
		if cmd.Flags().Changed(field.Flag()) {
			field.Value(c).Set(field.Value(&f.config))
			names = append(names, field.Name)
		}
	}
	return names
}

func showQueue(env *cli.Env, q admin.Queue) error { return showQueueAt(env, q, nil) }

// showQueueAt is showQueue with the pairs of the partitions.
func showQueueAt(env *cli.Env, q admin.Queue, pairs map[string]string) error {
	state := newQueueState(q)
	state.Partitions = partitionStates(q, pairs)
	if err := env.Print.Object(state); err != nil {
		return err
	}
	err := env.Print.Pairs(describe(q))
	if err == nil {
		err = printSources(env, q)
	}
	if err == nil && len(q.Subscriptions) > 0 {
		if err = env.Print.Sentence(""); err == nil {
			err = printSubscriptions(env, q)
		}
	}
	if err != nil || len(q.Partitions) == 0 {
		return err
	}
	if err := env.Print.Sentence(""); err != nil {
		return err
	}
	return printPartitions(env, state.Partitions)
}

func describe(q admin.Queue) [][2]string {
	limit := func(n uint64, text string) string {
		if n == 0 {
			return "unlimited"
		}
		return text
	}
	deadLetters := "discarded"
	if q.Config.DeadLetter != "" {
		deadLetters = "moved to " + q.Config.DeadLetter
	}
	pairs := [][2]string{
		{"Queue", title(q)},
		{"Messages", fmt.Sprintf("%s (%s)", output.Count(q.Messages), output.Bytes(q.Bytes))},
	}
	if len(q.Partitions) == 0 {
		pairs = append(pairs, [2]string{"Next sequence", fmt.Sprint(q.NextSequence)})
	}
	pairs = append(pairs, [2]string{"Limits", fmt.Sprintf("messages: %s, bytes: %s, deliveries per message: %s",
		limit(q.Config.MaxMessages, output.Count(q.Config.MaxMessages)),
		limit(q.Config.MaxBytes, output.Bytes(q.Config.MaxBytes)),
		limit(uint64(q.Config.MaxDeliveries), output.Count(q.Config.MaxDeliveries)))},
		[2]string{"Dead letters", deadLetters})
	if q.Pause != nil {
		pairs = append(pairs, [2]string{"Paused", pauseText(q.Pause)})
	}
	if q.Config.DedupWindow > 0 {
		pairs = append(pairs, [2]string{"Message IDs", fmt.Sprintf("%s kept, %s discarded", output.Count(q.MessageIDs),
			output.Plural(q.Duplicates, "duplicate"))})
	}
	pairs = append(pairs, configPairs(&q.Config)...)
	for _, f := range q.Forwards {
		pairs = append(pairs, [2]string{"Forwards", describeForward(f)})
	}
	if len(q.Partitions) == 0 {
		pairs = append(pairs, [2]string{"Digest", fmt.Sprintf("%016x", q.Digest)})
	}
	return pairs
}

func title(q admin.Queue) string {
	if n := len(q.Partitions); n > 0 {
		return fmt.Sprintf("%s (%d partitions)", q.Name, n)
	}
	return fmt.Sprintf("%s (ID %d)", q.Name, q.ID)
}
