// SPDX-License-Identifier: Apache-2.0

package storetool

import (
	"errors"
	"fmt"
	"math/bits"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

type progressOf = *pb.CheckResponse

func toStored(sequence uint64, m txn.Message) client.Stored {
	s := client.Stored{Sequence: sequence, PublishedAt: time.UnixMilli(m.TimestampMS), Message: content(m)}
	if l := m.DeadLetter(); l != nil {
		s.DeadLetter = &client.DeadLetter{
			Queue: l.Queue, Subscription: l.Subscription, Sequence: l.Sequence, Reason: reasonOf(l.Reason),
			Deliveries: l.Deliveries, MovedAt: time.UnixMilli(l.MovedMS),
		}
	}
	return s
}

func reasonOf(r txn.DeadReason) string {
	name := strings.TrimPrefix(pb.DeadLetterReason(r).String(), "DEAD_LETTER_REASON_")
	return strings.ToLower(strings.ReplaceAll(name, "_", "-"))
}

func content(m txn.Message) client.Message {
	a := m.Attributes()
	c := client.Message{
		Body: m.Body, Properties: m.PropertyMap(), MessageID: a.MessageID, CorrelationID: a.CorrelationID,
		ReplyTo: a.ReplyTo, ContentType: a.ContentType, Subject: a.Subject, Group: a.Group, Priority: a.Priority,
		ExpiresAt: timeOf(a.ExpiresAtMS), DeliverAt: timeOf(a.DeliverAtMS),
	}
	if len(a.Values) > 0 {
		c.Values = make(map[string]any, len(a.Values))
	}
	for _, p := range a.Values {
		c.Values[p.Key] = p.Value.Any()
	}
	return c
}

func timeOf(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

type logFlags struct {
	from, to uint64
	limit    uint64
	seals    bool
	segments bool
	messages bool
}

func dumpLogCommand(env *cli.Env) *cobra.Command {
	var f logFlags
	cmd := &cobra.Command{
		Use: "dump-log [FILE]", Short: "Show log records of a stopped node",
		Long: `Show the records of the log in --data-dir, or in FILE, then the segments, and whether the log is complete.
If it is incomplete, the exit code is 1.

FILE is a segment of a log, or a file cut-*.seg with records that a node saved because another node, or another site,
was promoted without them. Queues are shown by ID.`,
		Example: `  lockstep store dump-log --data-dir /var/lib/lockstep --from 1000 --limit 20
  lockstep store dump-log --data-dir /var/lib/lockstep --segments
  lockstep store dump-log /var/lib/lockstep/cut-00000000000000000007-20261121T064238.748.seg --messages`,
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return dumpLog(env, args[0], f) },
	}
	cmd.Flags().Uint64Var(&f.from, "from", 0, "first LSN")
	cmd.Flags().Uint64Var(&f.to, "to", 0, "last LSN; 0: the end")
	cmd.Flags().Uint64VarP(&f.limit, "limit", "n", 0, "maximum number of records; 0: all")
	cmd.Flags().BoolVar(&f.seals, "seals", false,
		"include empty blocks, which only contain durable and committed positions")
	cmd.Flags().BoolVar(&f.messages, "messages", false, "include the published messages")
	cmd.Flags().BoolVar(&f.segments, "segments", false, "only the segments, no records")
	return cmd
}

type recordDump struct {
	output.Position
	Segment    string `json:"segment"`
	Offset     int64  `json:"offset"`
	Kind       string `json:"kind"`
	Bytes      int    `json:"bytes"`
	DurableLSN uint64 `json:"durable_lsn"`
	// CommittedLSN is the commit LSN in the header of the block; omitted if unknown.
	CommittedLSN uint64 `json:"committed_lsn,omitempty"`

	Time       time.Time `json:"time,omitzero"`
	Producer   string    `json:"producer,omitempty"`
	Epoch      uint32    `json:"epoch,omitempty"`
	Sequence   uint64    `json:"sequence,omitempty"`
	Operations []string  `json:"operations,omitempty"`
	// Site is the header of the envelope of a transaction of the primary site.
	Site  *siteDump `json:"site,omitempty"`
	Error string    `json:"error,omitempty"`

	Messages []messageDump `json:"messages,omitempty"`
}

type siteDump struct {
	Lineage  string          `json:"lineage"`
	Epoch    uint64          `json:"epoch"`
	Upstream output.Position `json:"upstream"`
	Logical  uint64          `json:"logical"`
}

// messageDump has no sequence, because the sequence is assigned when the record is applied.
type messageDump struct {
	Queue       uint64    `json:"queue"`
	PublishedAt time.Time `json:"published_at"`
	output.Content

	message client.Message
}

func dumpLog(env *cli.Env, dir string, f logFlags) error {
	s, err := vfs.OS().Stat(dir)
	if err != nil || !s.IsDir && !strings.HasSuffix(dir, ".seg") {
		return fmt.Errorf("%s is neither a data directory nor a log segment (*.seg)", dir)
	}
	shown := uint64(0)
	var reader txn.Reader
	visit := func(it wal.Item) error {
		switch at := it.Frame.Pos.LSN; {
		case f.segments, it.Seal && !f.seals, f.limit > 0 && shown >= f.limit:
			return nil
		case !it.Seal && (at < f.from || f.to > 0 && at > f.to):
			return nil
		}
		shown++
		return printRecord(env, &reader, it, f.messages)
	}
	if !s.IsDir {
		info, err := wal.InspectFile(vfs.OS(), dir, visit)
		if err != nil {
			return err
		}
		return printSegments(env, wal.Report{Segments: []wal.SegmentInfo{info}, End: info.Last, Problem: info.Stop})
	}
	report, err := wal.Inspect(vfs.OS(), datadir.LogDir(dir), visit)
	if err != nil {
		return err
	}
	return printSegments(env, report)
}

func printRecord(env *cli.Env, reader *txn.Reader, it wal.Item, messages bool) error {
	j := recordDump{
		Segment: filepath.Base(it.Segment), Offset: it.Offset, DurableLSN: it.DurableLSN, CommittedLSN: it.CommittedLSN,
		Kind:     "seal",
		Position: output.NewPosition(it.Frame.Pos), Bytes: len(it.Frame.Payload),
	}
	if !it.Seal {
		j.Kind = it.Frame.Kind.String()
	}
	if !it.Seal && it.Frame.Kind == wal.KindTxn {
		describeTxn(reader, it.Frame.Payload, &j, messages)
	}
	if env.Print.JSON() {
		return env.Print.Object(j)
	}
	text := strings.Join(j.Operations, "; ")
	if j.Producer != "" {
		text += fmt.Sprintf("  [producer %s/%d #%d]", j.Producer, j.Epoch, j.Sequence)
	}
	if s := j.Site; s != nil {
		text += fmt.Sprintf("  [site epoch %d, upstream LSN %d, term %d, logical %d]", s.Epoch, s.Upstream.LSN,
			s.Upstream.Term, s.Logical)
	}
	if j.Error != "" {
		text += "  " + j.Error
	}
	when := ""
	if !j.Time.IsZero() {
		when = j.Time.Local().Format("2006-01-02 15:04:05.000")
	}
	for _, m := range j.Messages {
		body := "(binary)"
		if m.Body != nil {
			body = output.Body([]byte(*m.Body))
		}
		text += strings.TrimRight(fmt.Sprintf("\n%12s queue %d  %s  %s", "", m.Queue, body,
			output.Properties(&m.message)), " ")
	}
	return env.Print.Sentence("%10d  term %d  %s  %-10s  %-23s  %9s  %s", j.LSN, j.Term, j.Chain, j.Kind, when,
		output.Bytes(j.Bytes),
		text)
}

// loggedMessages returns the messages of an operation, up to the first invalid one.
func loggedMessages(op *txn.Op) (list []messageDump) {
	for rec := range op.Records {
		m, err := txn.DecodeMessage(rec)
		if err != nil {
			return list
		}
		stored := toStored(0, m)
		j := output.NewMessage("", stored, true)
		list = append(list, messageDump{
			Queue: op.Queue, PublishedAt: j.PublishedAt, Content: j.Content, message: stored.Message,
		})
	}
	return list
}

// describeTxn adds the content of a transaction to j, up to the first error, and the error.
func describeTxn(reader *txn.Reader, payload []byte, j *recordDump, messages bool) {
	err := reader.Reset(payload)
	if s := reader.Site(); s != nil {
		j.Site = &siteDump{
			Lineage: s.Lineage.String(), Epoch: s.Epoch, Upstream: output.NewPosition(s.Upstream), Logical: s.Logical,
		}
	}
	if err != nil {
		j.Error = err.Error()
		return
	}
	j.Time = time.UnixMilli(reader.TimeMS()).UTC()
	if p, ok := reader.Producer(); ok {
		j.Producer, j.Epoch, j.Sequence = string(p.ID), p.Epoch, p.Sequence
	}
	for range reader.Ops() {
		op, err := reader.Next()
		if err != nil {
			j.Error = err.Error()
			return
		}
		j.Operations = append(j.Operations, describeOp(op))
		if messages {
			j.Messages = append(j.Messages, loggedMessages(op)...)
		}
	}
}

func describeOp(op *txn.Op) string {
	s := op.Code.String()
	if op.Queue != 0 {
		s += fmt.Sprintf(" queue %d", op.Queue)
	}
	if op.Sub != 0 {
		s += fmt.Sprintf(" subscription %d", op.Sub)
	}
	if len(op.Name) > 0 {
		s += fmt.Sprintf(" %q", op.Name)
	}
	switch op.Code {
	case txn.OpDeleteQueue:
		if op.Temporary > 0 {
			s += fmt.Sprintf(" if its grace is %s", time.Duration(op.Temporary)*time.Millisecond)
		}
	case txn.OpPublish:
		s += fmt.Sprintf(": %s, %s", output.Plural(uint64(op.Count), "message"), output.Bytes(len(op.Raw)))
	case txn.OpMove:
		to := "nowhere"
		if op.Target != txn.NoQueue {
			to = fmt.Sprintf("to queue %d", op.Target)
		}
		s += fmt.Sprintf(" %s: %s", to, output.Plural(uint64(op.Count), "message"))
	case txn.OpDue:
		s += ": " + output.Plural(uint64(op.Count), "message")
	case txn.OpSeek:
		s += fmt.Sprintf(" to %d", op.Sequence)
	case txn.OpPrepare:
		s += ": " + output.Bytes(len(op.Raw))
	case txn.OpAck, txn.OpRelease, txn.OpTake:
		s += ": " + rangesText(op)
	case txn.OpCreateQueue:
		var names []string
		for name := range op.Subscriptions {
			names = append(names, string(name))
		}
		s += " with subscriptions " + strings.Join(names, ", ")
	case txn.OpCreateSubscriptionWith:
		s += optionsText(op.SubscriptionOptions())
	case txn.OpPolicy:
		if _, set := op.Policy(); !set {
			s += ": delete"
		}
	case txn.OpPause:
		s += pauseText(op)
	case txn.OpSite:
		s += siteText(op.SiteChange())
	case txn.OpFleet:
		s += fleetText(op.FleetChange())
	case txn.OpOwn:
		s += fmt.Sprintf(" under epoch %d", op.Number)
	case txn.OpFence, txn.OpUnfence, txn.OpDropMoved, txn.OpImportBegin, txn.OpImport, txn.OpImportState, txn.OpTakeMoved,
		txn.OpCancelImport, txn.OpForgetMove:
		s += moveText(op)
	case txn.OpSwapMeta:
		s += fmt.Sprintf(" of version %d", op.Number)
	case txn.OpAlterSubscription:
		c := op.SubscriptionChange()
		if c.Filter && c.Options.Filter == "" {
			s += " without a filter"
		}
		s += optionsText(c.Options)
	default:
	}
	return s
}

// rangesText returns the first ranges of sequences of an operation.
func rangesText(op *txn.Op) string {
	var parts []string
	for r := range op.Ranges {
		if len(parts) == 8 {
			parts = append(parts, "…")
			break
		}
		if r.First == r.Last {
			parts = append(parts, fmt.Sprint(r.First))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", r.First, r.Last))
		}
	}
	return strings.Join(parts, ",")
}

func pauseText(op *txn.Op) (s string) {
	p, resume := op.Pause()
	if resume {
		s = ": resume"
	}
	if p.Publish {
		s += " publishing"
	}
	if p.Deliver {
		s += " delivery"
	}
	return s
}

func siteText(c txn.SiteChange) string {
	s := " " + c.Action.String()
	switch c.Action {
	case txn.SiteStart:
		s += fmt.Sprintf(" of lineage %s", c.Lineage)
	case txn.SitePromote:
		s += fmt.Sprintf(" from epoch %d to %d", c.Expected, c.Epoch)
	case txn.SiteFollow:
		s += fmt.Sprintf(" lineage %s, epoch %d, after upstream LSN %d, term %d, logical %d", c.Lineage, c.Epoch,
			c.Upstream.LSN, c.Upstream.Term, c.Logical)
	case txn.SiteCancel:
		s += fmt.Sprintf(" up to upstream LSN %d at epoch %d", c.Upstream.LSN, c.Expected)
	case txn.SiteStop, txn.SiteResume:
		s += fmt.Sprintf(" at epoch %d", c.Expected)
	}
	return s
}

// moveText describes an operation of a move of queues to another pair.
func moveText(op *txn.Op) string {
	s := fmt.Sprintf(" under epoch %d", op.Number)
	switch op.Code { //nolint:exhaustive // the others have no content
	case txn.OpFence, txn.OpImportBegin:
		s += ": " + output.Plural(uint64(op.Count), "queue")
	case txn.OpImport:
		s += ": " + output.Plural(uint64(op.Count), "message")
	case txn.OpImportState:
		if s += ": " + output.Plural(uint64(op.Count), "key-value pair"); op.Last {
			s += ", complete"
		}
	}
	return s
}

func fleetText(c txn.FleetChange) string {
	s := " " + c.Action.String()
	if c.Action == txn.FleetJoin {
		s += fmt.Sprintf(" %s as pair %q, epoch %d", c.ID, c.Pair, c.Epoch)
	}
	return s
}

type segmentDump struct {
	Segment string `json:"segment"`
	First   uint64 `json:"first"`
	Last    uint64 `json:"last"`
	Records uint64 `json:"records"`
	Seals   uint64 `json:"seals"`
	Bytes   int64  `json:"bytes"`
	Used    int64  `json:"used"`
	Stop    string `json:"stop,omitempty"`
}

func printSegments(env *cli.Env, r wal.Report) error {
	rows := make([][]any, 0, len(r.Segments))
	segments := []segmentDump{}
	for _, s := range r.Segments {
		j := segmentDump{
			Segment: filepath.Base(s.Name), First: s.First, Last: s.Last.LSN, Records: s.Records, Seals: s.Seals,
			Bytes: s.SizeBytes, Used: s.UsedBytes,
		}
		if s.Stop != nil {
			j.Stop = fmt.Sprintf("at offset %d, record %d: %v", s.StopOffset, s.StopLSN, s.Stop)
		}
		segments = append(segments, j)
		rows = append(rows, []any{j.Segment, j.First, j.Last, j.Records, output.Bytes(j.Used), output.Bytes(j.Bytes), j.Stop})
	}
	problem := ""
	if r.Problem != nil {
		problem = r.Problem.Error()
	}
	err := env.Print.Object(map[string]any{
		"log_id": fmt.Sprintf("%x", r.LogID), "segments": segments, "end": output.NewPosition(r.End),
		"interrupted_cut": r.InterruptedTruncate, "problem": problem,
	})
	if err != nil {
		return err
	}
	if err := env.Print.Table([]string{"Segment", "First", "Last", "Records", "Used", "Size", "Problem"},
		rows); err != nil {
		return err
	}
	if r.Problem != nil {
		return errors.Join(errors.New("the log is incomplete"), r.Problem)
	}
	return env.Print.Sentence("the log ends at LSN %d, term %d, and is complete", r.End.LSN, r.End.Term)
}

func optionsText(o txn.SubscriptionOptions) (s string) {
	if o.Filter != "" {
		s = fmt.Sprintf(" with filter %q", o.Filter)
	}
	if o.Own != 0 {
		s += fmt.Sprintf(" with %d overrides of its queue's settings", bits.OnesCount64(uint64(o.Own)))
	}
	return s
}
