// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

type scanned struct {
	Store        string      `json:"store"`
	Time         time.Time   `json:"time,omitzero"`
	PageSize     uint32      `json:"page_size"`
	Recommended  uint32      `json:"recommended"`
	GainBytes    uint64      `json:"gain_bytes"`
	FileBytes    uint64      `json:"file_bytes"`
	Messages     uint64      `json:"messages"`
	MessageBytes uint64      `json:"message_bytes"`
	Note         string      `json:"note"`
	Histogram    []bucket    `json:"histogram"`
	Candidates   []candidate `json:"candidates"`
	Problems     []string    `json:"problems,omitempty"`

	pair bool // the node belongs to a pair: a rolling operation is possible
}

type bucket struct {
	FromBytes uint64 `json:"from_bytes"`
	ToBytes   uint64 `json:"to_bytes"`
	Messages  uint64 `json:"messages"`
	Bytes     uint64 `json:"bytes"`
}

type candidate struct {
	PageSize   uint32 `json:"page_size"`
	FileBytes  uint64 `json:"file_bytes"`
	Pages      uint64 `json:"pages"`
	WasteBytes uint64 `json:"waste_bytes"`
}

func scanCommand(env *cli.Env) *cobra.Command {
	var w location
	var limit string
	var full, last bool
	cmd := &cobra.Command{
		Use: "scan", Short: "Scan messages and recommend a page size",
		Long: `Read a snapshot of a page file, and report the distribution of message sizes, the size of page.db for
several page sizes, and the recommended page size. Without --page-size-max and --data-dir, the pair stores the
recommendation in the setting page-size-recommended. To change the page size, use lockstep store resize.`,
		Example: `  lockstep store scan
  lockstep store scan --node active --page-size-max 64KiB
  lockstep store scan --full-speed
  lockstep store scan --last
  lockstep store scan --data-dir /var/lib/lockstep --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			largest, err := cli.ParsePageSize("--page-size-max", limit)
			if err != nil {
				return err
			}
			if last {
				if !cmd.Flags().Changed("node") {
					w.node = ""
				}
				return lastScans(cmd.Context(), env, w.node)
			}
			if w.dataDir != "" {
				return scanOffline(cmd.Context(), env, w.dataDir, int(largest))
			}
			return onNode(cmd.Context(), env, w.node, func(ctx context.Context, t target) error {
				r, err := scanNode(ctx, env, t, &pb.ScanRequest{PageSizeMax: largest, FullSpeed: full})
				if err != nil {
					return err
				}
				return printScan(env.Print, r)
			})
		},
	}
	w.register(cmd, true)
	cmd.Flags().StringVar(&limit, "page-size-max", "",
		"maximum page size to recommend; default: the setting page-size-max, or 32KiB with --data-dir")
	cmd.Flags().BoolVar(&last, "last", false, "show the last scan of each node, or of --node, without a new scan")
	cli.AddFullSpeed(cmd, &full)
	for _, other := range []string{"data-dir", "page-size-max", "full-speed"} {
		cmd.MarkFlagsMutuallyExclusive("last", other)
	}
	return cmd
}

func lastScans(ctx context.Context, env *cli.Env, want string) error {
	return env.WithPair(ctx, func(ctx context.Context, c *client.Client) error {
		targets, err := answering(ctx, env, c, want)
		if err != nil {
			return err
		}
		all := struct {
			Scans []scanned `json:"scans"`
		}{[]scanned{}}
		for _, t := range targets {
			r, err := t.Scan(ctx, &pb.ScanRequest{Last: true}, nil)
			if err != nil {
				return fmt.Errorf("last scan of %s: %w", t.label(), err)
			}
			j := newScanned(t.label(), r)
			j.pair = t.inPair()
			all.Scans = append(all.Scans, j)
		}
		if env.Print.JSON() {
			return env.Print.Object(all)
		}
		for i, j := range all.Scans {
			if err := printLast(env.Print, j, i > 0); err != nil {
				return err
			}
		}
		return nil
	})
}

// answering returns the selected node, or all nodes that respond if want is empty.
func answering(ctx context.Context, env *cli.Env, c *client.Client, want string) ([]target, error) {
	if want != "" {
		t, err := chooseNode(ctx, env, c, want)
		return []target{t}, err
	}
	var targets []target
	for _, n := range env.QueryNodes(ctx, c, min(env.Timeout, 2*time.Second)).Nodes {
		if n.Error != "" {
			fmt.Fprintf(env.Stderr, "Node %s does not respond: %s\n", n.Address, n.Error)
			continue
		}
		node, err := cli.NodeAt(c, n.Address)
		if err != nil {
			return nil, err
		}
		targets = append(targets, target{Node: node, status: n})
	}
	if len(targets) == 0 {
		return nil, cli.ErrNoAnswer
	}
	return targets, nil
}

func printLast(p *output.Printer, j scanned, more bool) error {
	if more {
		if err := p.Sentence(""); err != nil {
			return err
		}
	}
	if j.PageSize == 0 {
		return p.Sentence("%s: not scanned yet; use lockstep store scan", j.Store)
	}
	if err := p.Sentence("%s, scanned %s:", j.Store, j.Time.Local().Format(time.DateTime)); err != nil {
		return err
	}
	return printScan(p, j)
}

func (t target) inPair() bool {
	return pairstatus.BaseRole(t.status.Role) != pairstatus.Active || t.status.Standby != ""
}

func scanNode(ctx context.Context, env *cli.Env, t target, req *pb.ScanRequest) (j scanned, err error) {
	err = env.WithProgress(ctx, t.label(), func(show func(progress.Step)) error {
		r, err := t.Scan(ctx, req, func(p *pb.Progress) { show(progress.StepOf(p)) })
		j = newScanned(t.label(), r)
		return err
	})
	j.pair = t.inPair()
	return j, err
}

func newScanned(store string, r *pb.ScanResult) scanned {
	j := scanned{
		Store: store, PageSize: r.GetCurrent(), Recommended: r.GetRecommended(), GainBytes: r.GetGainBytes(),
		FileBytes: r.GetFileBytes(),
		Messages:  r.GetMessages(), MessageBytes: r.GetMessageBytes(), Note: r.GetNote(), Histogram: []bucket{},
		Candidates: []candidate{},
	}
	if r.GetTime() != nil {
		j.Time = r.GetTime().AsTime()
	}
	for _, b := range r.GetHistogram() {
		j.Histogram = append(j.Histogram, bucket{
			FromBytes: b.GetFromBytes(), ToBytes: b.GetToBytes(),
			Messages: b.GetMessages(), Bytes: b.GetBytes(),
		})
	}
	for _, c := range r.GetCandidates() {
		j.Candidates = append(j.Candidates, candidate{
			PageSize: c.GetPageSize(), FileBytes: c.GetFileBytes(), Pages: c.GetPages(), WasteBytes: c.GetWasteBytes(),
		})
	}
	return j
}

func scanOffline(ctx context.Context, env *cli.Env, dir string, largest int) error {
	var r checkpoint.ScanResult
	err := env.WithProgress(ctx, dir, func(show func(progress.Step)) (err error) {
		return checkpoint.ReadDir(vfs.OS(), dir, func(c *checkpoint.Checkpoint) (err error) {
			r, err = c.Scan(ctx, checkpoint.ScanOptions{MaxPageSize: largest, Progress: func(p checkpoint.Progress) {
				showStore(show, p)
			}})
			return err
		})
	})
	if err != nil {
		return err
	}
	problems := r.Problems
	r.Problems = nil // the next lines add all problems, not only the first
	j := newScanned(dir, protoconv.ScanToProto(&r))
	j.Problems = problems
	return printScan(env.Print, j)
}

func showStore(show func(progress.Step), p checkpoint.Progress) {
	if p.Phase != "done" {
		show(progress.Step{Phase: p.Phase, Done: p.Bytes, Total: p.TotalBytes, Left: p.Left})
	}
}

// PrintScan prints the scan result of a node of a pair.
func PrintScan(p *output.Printer, node string, r *pb.ScanResult) error {
	j := newScanned(node, r)
	j.pair = true
	return printScan(p, j)
}

func printScan(p *output.Printer, j scanned) error {
	if p.JSON() {
		return p.Object(j)
	}
	err := p.Sentence("%s: %s, %s; page.db: %s in pages of %s\n", j.Store, output.Plural(j.Messages, "message"),
		output.Bytes(j.MessageBytes), output.Bytes(j.FileBytes), output.Bytes(uint64(j.PageSize)))
	if err != nil {
		return err
	}
	for _, problem := range j.Problems {
		if err := p.Sentence("corrupt: %s", problem); err != nil {
			return err
		}
	}
	if len(j.Histogram) > 0 {
		if err := p.Table([]string{">Message size", ">Messages", ">Bytes", ""},
			histogramRows(j.Histogram)); err != nil {
			return err
		}
		if err := p.Sentence(""); err != nil {
			return err
		}
	}
	if err := p.Table([]string{">Page size", ">page.db", ">Change", ">Pages", ">Unused", ""},
		candidateRows(j)); err != nil {
		return err
	}
	return p.Sentence("\n%s", j.advice())
}

const chartWidth = 40

// histogramRows returns the buckets with bars. Every non-zero count has a visible bar.
func histogramRows(buckets []bucket) [][]any {
	most := uint64(1)
	for _, b := range buckets {
		most = max(most, b.Messages)
	}
	rows := make([][]any, 0, len(buckets))
	for _, b := range buckets {
		rows = append(rows, []any{
			output.Bytes(b.FromBytes) + " – " + output.Bytes(b.ToBytes), output.Count(b.Messages), output.Bytes(b.Bytes),
			chart(b.Messages, most),
		})
	}
	return rows
}

// chart returns a bar with a resolution of an eighth of a character.
func chart(n, most uint64) string {
	eighths := int(float64(n) / float64(most) * chartWidth * 8)
	if n > 0 {
		eighths = max(eighths, 1)
	}
	s := strings.Repeat("█", eighths/8)
	if eighths%8 > 0 {
		s += string([]rune("▏▎▍▌▋▊▉")[eighths%8-1])
	}
	return s
}

func candidateRows(j scanned) [][]any {
	rows := make([][]any, 0, len(j.Candidates))
	for _, c := range j.Candidates {
		var marks []string
		if c.PageSize == j.PageSize {
			marks = append(marks, "current")
		}
		if c.PageSize == j.Recommended {
			marks = append(marks, "← recommended")
		}
		rows = append(rows, []any{
			output.Bytes(uint64(c.PageSize)), output.Bytes(c.FileBytes), percentChange(j.FileBytes, c.FileBytes),
			output.Count(c.Pages), output.Bytes(c.WasteBytes),
			strings.Join(marks, " "),
		})
	}
	return rows
}

func (j scanned) advice() string {
	if j.Messages == 0 {
		return fmt.Sprintf("Recommended: pages of %s; no messages are stored.", output.Bytes(uint64(j.Recommended)))
	}
	then, present := j.FileBytes, uint64(0)
	for _, c := range j.Candidates {
		if c.PageSize == j.Recommended {
			then = c.FileBytes
		}
		if c.PageSize == j.PageSize {
			present = c.FileBytes
		}
	}
	s := fmt.Sprintf("Recommended: pages of %s", output.Bytes(uint64(j.Recommended)))
	const worthwhile = 100 // a rewrite is recommended if it saves more than 1/100 of the file
	verb := "resize"
	switch gains := then+j.FileBytes/worthwhile < j.FileBytes; {
	case j.Recommended != j.PageSize:
		s += fmt.Sprintf(". A resize changes page.db from %s to %s", output.Bytes(j.FileBytes), output.Bytes(then))
		if present > 0 {
			s += fmt.Sprintf(", a compaction with the current page size to %s", output.Bytes(present))
		}
		s += "."
	case gains:
		verb = "compact"
		s += fmt.Sprintf(" (unchanged). A compaction shrinks page.db from %s to %s.", output.Bytes(j.FileBytes),
			output.Bytes(then))
	default:
		return s + " (unchanged). A resize or compaction would not save space."
	}
	if j.pair {
		return s + fmt.Sprintf("\nTo do this without downtime: lockstep store %s --rolling", verb)
	}
	return s + fmt.Sprintf("\nTo do this at the next start: lockstep store settings set %s-on-startup true", verb)
}
