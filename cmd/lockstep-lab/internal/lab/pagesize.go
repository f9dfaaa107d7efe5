// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/measure"
)

func pageSizeCommand(env *cli.Env) *cobra.Command {
	var f benchcli.Flags
	var o measure.PageSizeOptions
	var mix, to, limit string
	cmd := &cobra.Command{
		Use: "pagesize", Short: "Compare page sizes before and after a resize",
		Long: `Publish all messages and then consume all with pages of 2 KiB; fill the queues again, scan, rewrite
the page files with the recommended page size, consume the rewritten messages, and publish and consume all again.

Each phase has the rate, the size of page.db, and the bytes written to disk (by all nodes, including the log, a
checkpoint, and other load on the disk) per byte of a body; the rewrite has its time and its speed compared with a
plain copy with sync. "Peak MB" is the peak resident memory of a node in the phase, next to memory.budget. "Start
ms" is the time from starting the full, cleanly stopped nodes until they serve (a pair: until both are in sync),
the median of three: after the queues were filled again, and after the rewrite, with the same messages in both page
sizes. --messages is the total number.`,
		Example: `  lockstep-lab pagesize
  lockstep-lab pagesize --size 15000 --senders 5 --queues 5 --messages 40000 --pair
  lockstep-lab pagesize --mix 40000x15000,6000x512 --sync off --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := f.Parse()
			if err != nil {
				return err
			}
			if o.Mix, err = parseMix(mix, p.Sizes, f.Messages); err != nil {
				return err
			}
			size, err := cli.ParsePageSize("--to", to)
			if err != nil {
				return err
			}
			largest, err := cli.ParsePageSize("--page-size-max", limit)
			switch {
			case err != nil:
				return err
			case o.Senders < 1 || f.Queues < 1 || o.Window < 1 || o.Prefetch < 1:
				return cli.Usage("--senders, --queues, --window and --prefetch must be at least 1")
			case o.Senders < f.Queues:
				return cli.Usage("each of the %d queues requires a sender", f.Queues)
			}
			o.PageSize, o.PageSizeMax, o.Queues = int(size), int(largest), f.Queues
			f.Standalone = !f.Pair
			return benchcli.WithTarget(cmd.Context(), env, cmd, f, p, func(t bench.Target) error {
				return pageSizeRounds(env, cmd, t, o, f.Rounds)
			})
		},
	}
	f.Register(cmd)
	benchcli.SetDefaults(cmd, map[string]string{"size": "15000", "messages": "40000", "queues": "5", "rounds": "1"})
	cmd.Flags().StringVar(&mix, "mix", "", "messages of several sizes, such as 40000x15000,6000x512, instead of "+
		"--messages and --size")
	cmd.Flags().IntVar(&o.Senders, "senders", 5, "number of concurrent producers")
	cmd.Flags().IntVar(&o.Window, "window", 256, "maximum unacknowledged messages of a sender")
	cmd.Flags().IntVar(&o.Prefetch, "prefetch", 1000, "messages in flight per consumer")
	cmd.Flags().StringVar(&to, "to", "", "page size to compare with; default: the recommendation of the scan")
	cmd.Flags().StringVar(&limit, "page-size-max", "",
		"maximum recommended page size; default: the setting of that name")
	return cmd
}

// pageSizeRounds runs the given number of rounds and prints the results.
func pageSizeRounds(env *cli.Env, cmd *cobra.Command, t bench.Target, o measure.PageSizeOptions, rounds int) error {
	var results []bench.Result
	for round := range rounds {
		err := measure.PageSize(cmd.Context(), t, o, func(r bench.Result) error {
			r.Round = round + 1
			results = append(results, r)
			return env.Print.Object(r)
		})
		if err != nil {
			return err
		}
	}
	return printPageSize(env, results)
}

// parseMix parses 40000x15000,6000x512. An empty text selects messages of the one size.
func parseMix(text string, sizes []int, messages int) ([]measure.Group, error) {
	if text == "" {
		if len(sizes) != 1 {
			return nil, cli.Usage("one --size at a time, or a --mix")
		}
		return []measure.Group{{Messages: messages, SizeBytes: sizes[0]}}, nil
	}
	var mix []measure.Group
	for part := range strings.SplitSeq(text, ",") {
		n, size, ok := strings.Cut(strings.TrimSpace(part), "x")
		count, err1 := strconv.Atoi(n)
		bytes, err2 := strconv.Atoi(size)
		if !ok || err1 != nil || err2 != nil || count < 1 || bytes < 1 || bytes > 64<<20 {
			return nil, cli.Usage("--mix: %q must be like 40000x15000", part)
		}
		mix = append(mix, measure.Group{Messages: count, SizeBytes: bytes})
	}
	return mix, nil
}

// printPageSize prints a table, and a comparison of the page sizes.
func printPageSize(env *cli.Env, results []bench.Result) error {
	rows := make([][]any, 0, len(results))
	for _, r := range results {
		disk, cp := fmt.Sprintf("%.2f", r.DiskPerByte), ""
		if r.CopyMB > 0 {
			cp = fmt.Sprintf("cp: %.0f MB/s, rewrite: %.0f%% of that", r.CopyMB, 100*r.MB/r.CopyMB)
		}
		if r.DiskWritten == 0 {
			disk = "?"
		}
		start := ""
		if r.StartMS > 0 {
			start = fmt.Sprintf("%.0f", r.StartMS)
		}
		rows = append(rows, []any{
			r.Phase, r.Round, output.Bytes(r.PageSize), fmt.Sprintf("%.2f", r.Seconds), fmt.Sprintf("%.0f", r.Rate),
			fmt.Sprintf("%.0f", r.MB),
			fmt.Sprintf("%.1f", r.FileMB), disk, benchcli.Digits(r.P99), fmt.Sprintf("%.1f", r.CPU),
			fmt.Sprintf("%.0f", r.PeakRSS), start, cp,
		})
	}
	err := env.Print.Table([]string{
		"Phase", "Round", ">Pages", ">Seconds", ">Messages/s", ">MB/s", ">page.db MB", ">Disk B per B", ">p99 ms",
		">CPU s", ">Peak MB", ">Start ms", "",
	}, rows)
	if err != nil {
		return err
	}
	for _, line := range comparePageSizes(results) {
		if err := env.Print.Sentence("%s", line); err != nil {
			return err
		}
	}
	for _, r := range results {
		if r.Comment != "" {
			if err := env.Print.Sentence("round %d: %s", r.Round, r.Comment); err != nil {
				return err
			}
		}
	}
	return nil
}

// comparePageSizes reports, for each round, the memory of the rewrite and the rates before and after it. The refill is
// used as the rate of producing before it, since both then write to a file that has already grown.
func comparePageSizes(results []bench.Result) (lines []string) {
	before := map[string]bench.Result{}
	rewritten := 0
	var filled bench.Result
	for _, r := range results {
		phase := r.Phase
		if phase == measure.PhaseRefill {
			phase, filled = measure.PhaseProduce, r
		}
		switch was := before[phase]; {
		case phase == measure.PhaseRewrite:
			rewritten = r.Round
			for _, u := range r.Processes {
				had := fmt.Sprintf("%.0f MB resident before and", u.RSSBefore)
				if u.RSSBefore == 0 {
					had = "just been started, and had" // it rewrites at its start
				}
				lines = append(lines, fmt.Sprintf("round %d, rewrite: %s had %s %.0f MB at most", r.Round, u.Name, had,
					u.PeakRSS))
			}
			lines = append(lines, fmt.Sprintf("round %d, start: %.0f ms with pages of %s, %.0f with %s: %.2f times the time",
				r.Round, filled.StartMS, output.Bytes(filled.PageSize), r.StartMS, output.Bytes(r.PageSize),
				r.StartMS/max(filled.StartMS, 1e-9)))
		case rewritten != r.Round:
			before[phase] = r
		case was.Round == r.Round:
			lines = append(lines, fmt.Sprintf("round %d, %s: %.0f messages/s with pages of %s, %.0f with %s: %.2f "+
				"times", r.Round, phase,
				was.Rate, output.Bytes(was.PageSize), r.Rate, output.Bytes(r.PageSize), r.Rate/was.Rate))
		}
	}
	return lines
}
