// SPDX-License-Identifier: Apache-2.0

// Package schedule implements the commands for schedules of recurring messages.
package schedule

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/message"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const maxBodyBytes = 32 << 10

// Command returns the `lockstep schedule` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "schedule", GroupID: "use",
		Short: "Publish messages at recurring times",
		Long: `A schedule publishes a message to a queue at the times of a cron expression or an interval. The
schedule is stored by the pair that has the queue when the schedule is created. Schedules continue after a failover,
without publishing an occurrence twice.

In a fleet, the commands delete, pause, resume, run and show look for a schedule on the pair in --addr first, and
then on the other pairs. If the queue of a schedule is moved to another pair, the schedule is not moved, and its
publishes fail. In this case, delete the schedule, and create it again.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddCommand(putCommand(env), listCommand(env), showCommand(env), runCommand(env), pauseCommand(env, true),
		pauseCommand(env, false), deleteCommand(env))
	return cmd
}

func putCommand(env *cli.Env) *cobra.Command {
	var s pb.Schedule
	var every time.Duration
	var body, missed string
	var given message.Flags
	cmd := &cobra.Command{
		Use: "put NAME", Short: "Create or replace a schedule",
		Long: `Create a schedule, or replace the schedule with that name and keep its history. In a fleet, only a schedule
on the pair of --queue is replaced. Without --paused, a paused schedule is resumed.

--cron has five fields (minute, hour, day of month, month, day of week), or is @hourly, @daily, @weekly, @monthly or
@yearly. The next occurrence is computed from the time of this command, unless a replacement changes neither the
times nor --paused. If a publish fails, for example because the queue is full, it is retried until the next
occurrence is due or, with --missed skip, for at most one minute.

The message, with all fields, has at most 32 KiB.`,
		Example: `  lockstep schedule put nightly --cron "0 2 * * *" --tz Europe/Berlin --queue jobs --body @job.json
  lockstep schedule put poll --every 30s --queue jobs --body '{"job":"poll"}' --content-type application/json
  lockstep schedule put report --cron @weekly --queue jobs --missed all --property team=sales --paused`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			s.Name = args[0]
			switch {
			case s.GetQueue() == "":
				return cli.Usage("--queue is required")
			case (s.GetCron() == "") == !cmd.Flags().Changed("every"):
				return cli.Usage("either --cron or --every is required")
			case s.GetTimeZone() != "" && s.GetCron() == "":
				return cli.Usage("--tz requires --cron")
			}
			if cmd.Flags().Changed("every") {
				s.Every = durationpb.New(every)
			}
			rule, ok := MissedRules()[missed]
			if !ok {
				return cli.Usage("--missed %q: must be skip, once or all", missed)
			}
			s.Missed = rule
			m, err := given.Parse(cmd)
			if err != nil {
				return err
			}
			s.Message = messageToProto(&m)
			if s.Message.Body, err = readBody(env, body); err != nil {
				return err
			}
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				now, err := admin.New(c).PutSchedule(ctx, &s)
				if err != nil {
					return err
				}
				return printNext(env, now)
			})
		},
	}
	cmd.Flags().StringVar(&s.Cron, "cron", "", "cron expression with five fields, or @hourly, @daily, @weekly, @monthly, "+
		"@yearly")
	cmd.Flags().DurationVar(&every, "every", 0, "interval, such as 30s or 6h; at least 1s")
	cmd.Flags().StringVar(&s.TimeZone, "tz", "", "IANA time zone of --cron, such as Europe/Berlin; default: UTC")
	cmd.Flags().StringVar(&s.Queue, "queue", "", "queue to publish to")
	cmd.Flags().StringVar(&body, "body", "", "message body, or @FILE; @-: standard input")
	cmd.Flags().StringVar(&missed, "missed", "once",
		"occurrences for which no node is active within a minute: skip, once (publish only the last one) or all")
	cmd.Flags().BoolVar(&s.Paused, "paused", false, "store the schedule as paused")
	given.Register(cmd)
	if err := cmd.Flags().MarkHidden("message-id"); err != nil { // set by the node
		panic(err)
	}
	return cmd
}

// MissedRules returns the rules for missed occurrences by their names.
func MissedRules() map[string]pb.MissedOccurrences {
	return map[string]pb.MissedOccurrences{
		"skip": pb.MissedOccurrences_MISSED_OCCURRENCES_SKIP, "once": pb.MissedOccurrences_MISSED_OCCURRENCES_ONCE,
		"all": pb.MissedOccurrences_MISSED_OCCURRENCES_ALL,
	}
}

func readBody(env *cli.Env, body string) ([]byte, error) {
	name, isFile := strings.CutPrefix(body, "@")
	if !isFile {
		return []byte(body), nil
	}
	in := env.Stdin
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, fmt.Errorf("--body: %w", err)
		}
		defer f.Close()
		in = f
	}
	b, err := io.ReadAll(io.LimitReader(in, maxBodyBytes+1))
	if err != nil {
		return nil, fmt.Errorf("--body: %w", err)
	}
	if len(b) > maxBodyBytes {
		return nil, cli.Usage("--body %s: larger than %s", body, output.Bytes(maxBodyBytes))
	}
	return b, nil
}

func messageToProto(m *client.Message) *pb.Message {
	out := &pb.Message{
		MessageId: m.MessageID, CorrelationId: m.CorrelationID, ReplyTo: m.ReplyTo, ContentType: m.ContentType,
		Subject: m.Subject, Group: m.Group, Properties: m.Properties,
	}
	if m.Priority != nil {
		out.Priority = new(uint32(*m.Priority))
	}
	if m.TTL != 0 {
		out.Ttl = durationpb.New(m.TTL)
	}
	if m.Delay != 0 {
		out.Delay = durationpb.New(m.Delay)
	}
	for k, v := range m.Values {
		if out.GetTypedProperties() == nil {
			out.TypedProperties = make(map[string]*pb.PropertyValue)
		}
		p := &pb.PropertyValue{}
		switch v := v.(type) {
		case bool:
			p.Kind = &pb.PropertyValue_BoolValue{BoolValue: v}
		case int64:
			p.Kind = &pb.PropertyValue_IntValue{IntValue: v}
		case float64:
			p.Kind = &pb.PropertyValue_DoubleValue{DoubleValue: v}
		}
		out.TypedProperties[k] = p
	}
	return out
}

func printNext(env *cli.Env, s *pb.Schedule) error {
	state := newState(s)
	if err := env.Print.Object(state); err != nil {
		return err
	}
	switch {
	case state.Paused:
		return env.Print.Sentence("schedule %s is paused", state.Name)
	case state.NextAt.IsZero():
		return env.Print.Sentence("schedule %s has no occurrence within five years", state.Name)
	}
	return env.Print.Sentence("schedule %s: next occurrence at %s", state.Name, output.LocalTime(state.NextAt))
}

func listCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "list [PREFIX]", Aliases: []string{"ls"}, Short: "List schedules with their next and last occurrence",
		Long: `List the schedules with names that begin with PREFIX, or all schedules. Only schedules for queues on which the
caller has a right are listed. In a fleet, the schedules of all pairs are listed. This requires the operate right on
the pair in --addr; without it, only the schedules of that pair are listed, with a warning.`,
		Example: "  lockstep schedule list\n  lockstep schedule list reports. --output json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var list []state
			err := env.EachPair(cmd.Context(), "schedules", func(ctx context.Context, pair string, c *client.Client) error {
				schedules, err := admin.New(c).Schedules(ctx, strings.Join(args, ""))
				for _, s := range schedules {
					one := newState(s)
					one.Pair = pair
					list = append(list, one)
				}
				return err
			})
			if err != nil {
				return err
			}
			return printList(env, list)
		},
	}
}

func printList(env *cli.Env, list []state) error {
	rows := make([][]any, 0, len(list))
	columns := []string{"Schedule", "Queue", "Times", "Next", "Last"}
	for i := range list {
		s := &list[i]
		if err := env.Print.Object(*s); err != nil {
			return err
		}
		next, last := output.LocalTime(s.NextAt), "-"
		if s.Paused {
			next = "paused"
		}
		if len(s.History) > 0 {
			last = output.LocalTime(s.History[0].DueAt) + ": " + s.History[0].text()
		}
		row := []any{s.Name, s.Queue, s.times(), next, last}
		if s.Pair != "" { // in a fleet, all schedules have one
			row = slices.Insert(row, 1, any(s.Pair))
		}
		rows = append(rows, row)
	}
	switch {
	case len(rows) == 0:
		return env.Print.Sentence("no schedules; to create one, use lockstep schedule put nightly --cron \"0 2 * * *\" " +
			"--queue QUEUE --body TEXT")
	case list[0].Pair != "":
		columns = slices.Insert(columns, 1, "Pair")
	}
	return env.Print.Table(columns, rows)
}

func showCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "show NAME", Short: "Show a schedule and its last occurrences",
		Long: `Show the times, the message and the next occurrence of a schedule, and its last 20 outcomes, latest first.
Of the message, the content type and the body are shown; --output json contains all fields.`,
		Example: "  lockstep schedule show nightly\n  lockstep schedule show nightly --output json",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withSchedule(cmd.Context(), env, func(ctx context.Context, a *admin.Client) error {
				s, err := a.Schedule(ctx, args[0])
				if err != nil {
					return err
				}
				return printSchedule(env, newState(s))
			})
		},
	}
}

func printSchedule(env *cli.Env, s state) error {
	if err := env.Print.Object(s); err != nil {
		return err
	}
	next := output.LocalTime(s.NextAt)
	if s.Paused {
		next = "paused"
	}
	pairs := [][2]string{
		{"Schedule", s.Name}, {"Queue", s.Queue}, {"Times", s.times()}, {"Missed occurrences", s.Missed}, {"Next", next},
	}
	if s.PutBy != "" {
		pairs = append(pairs, [2]string{"Put by", s.PutBy})
	}
	if s.Message.ContentType != "" {
		pairs = append(pairs, [2]string{"Content type", s.Message.ContentType})
	}
	pairs = append(pairs, [2]string{"Body", output.Body(s.body)})
	if err := env.Print.Pairs(pairs); err != nil {
		return err
	}
	rows := make([][]any, 0, len(s.History))
	for i := range s.History {
		r := &s.History[i]
		rows = append(rows, []any{output.LocalTime(r.DueAt), output.LocalTime(r.At), r.text()})
	}
	if len(rows) == 0 {
		return env.Print.Sentence("no occurrence yet")
	}
	return env.Print.Table([]string{"Due", "At", "Outcome"}, rows)
}

func runCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "run NAME", Short: "Publish the message of a schedule now",
		Long: `Publish the message of a schedule now, even if the schedule is paused. The next occurrence does not
change. The command returns when the publish is acknowledged, and fails if the queue refuses it.`,
		Example: "  lockstep schedule run nightly",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withSchedule(cmd.Context(), env, func(ctx context.Context, a *admin.Client) error {
				r, err := a.RunSchedule(ctx, args[0])
				if err != nil {
					return err
				}
				out := ran{Schedule: args[0], Queue: r.GetQueue(), Sequence: r.GetSequence(), LSN: r.GetLsn()}
				if message.WarnIfDiscarded(ctx, env, a, r.GetQueue()) {
					return env.Print.Result(out, "discarded the message of schedule %s", args[0])
				}
				return env.Print.Result(out,
					"published a message of schedule %s to %s, sequence %d", args[0], r.GetQueue(), r.GetSequence())
			})
		},
	}
}

func pauseCommand(env *cli.Env, paused bool) *cobra.Command {
	cmd := &cobra.Command{
		Use: "pause NAME", Short: "Pause a schedule",
		Long:    `Pause a schedule until lockstep schedule resume. Occurrences during the pause are never published.`,
		Example: "  lockstep schedule pause nightly",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withSchedule(cmd.Context(), env, func(ctx context.Context, a *admin.Client) error {
				s, err := a.SetSchedulePaused(ctx, args[0], paused)
				if err != nil {
					return err
				}
				return printNext(env, s)
			})
		},
	}
	if !paused {
		cmd.Use, cmd.Short, cmd.Example = "resume NAME", "Resume a schedule", "  lockstep schedule resume nightly"
		cmd.Long = "Resume a paused schedule, beginning with its next occurrence. Occurrences during the pause are skipped."
	}
	return cmd
}

func deleteCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Aliases: []string{"rm"}, Short: "Delete a schedule and its history",
		Long:    `Delete a schedule and its history. Messages that it has published are kept.`,
		Example: "  lockstep schedule delete nightly",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return withSchedule(cmd.Context(), env, func(ctx context.Context, a *admin.Client) error {
				if err := a.DeleteSchedule(ctx, args[0]); err != nil {
					return err
				}
				return env.Print.Result(map[string]string{"deleted": args[0]}, "deleted schedule %s", args[0])
			})
		},
	}
}
