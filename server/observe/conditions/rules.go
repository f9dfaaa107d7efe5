// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/units"
)

const (
	// foreignNodeTTL is the time for which a rejected node is reported after its last attempt to connect.
	foreignNodeTTL     = 10 * time.Second
	slowSync           = 100 * time.Millisecond
	certificateWarning = 14 * 24 * time.Hour // time before the expiry
)

// Rules derives conditions from the state of a node. It records the progress of background work to detect stalls.
// It is not safe for concurrent use.
type Rules struct {
	work     workSeen
	switched switchoverSeen
	replica  siteFault
}

// Reports returns all current conditions: first those that this node has detected, then those that the other node
// has reported.
func (r *Rules) Reports(in *Input) []Report {
	f := findings{self: in.Self}
	if !in.Config.Alone() {
		f.all = FromFailover(in.Pair)
		f.replication(in)
	}
	f.access(in)
	f.disk(in)
	f.content(in)
	f.work(in)
	r.maintenance(&f, in)
	r.site(&f, in.Site)
	f.fleet(in.Fleet)
	f.machine(in)
	f.secrets(in)
	if o := in.Other; o != nil && !in.Config.Alone() {
		f.other(in, o)
	}
	return f.all
}

type findings struct {
	self Node
	all  []Report
}

// node adds a condition of this node if on is true. pair does the same for a condition of the pair.
func (f *findings) node(on bool, k Kind, format string, args ...any) {
	if on {
		f.all = append(f.all, Report{Kind: k, Node: f.self, Details: fmt.Sprintf(format, args...)})
	}
}

func (f *findings) pair(on bool, k Kind, format string, args ...any) {
	if on {
		f.all = append(f.all, Report{Kind: k, Details: fmt.Sprintf(format, args...)})
	}
}

func (f *findings) replication(in *Input) {
	if p := in.Primary; p != nil {
		if in.Pair.Record != nil {
			f.standby(&in.Pair, p)
		}
		f.foreignNode(in.Now, p.ForeignNode)
	}
	if follower := in.Follower; follower != nil {
		f.node(follower.Refused != nil, PeerRejected, "%v", follower.Refused)
		f.node(!follower.Connected && in.Other == nil, ActiveUnreachable, "%s: %s", in.Pair.Role, in.Pair.Reason)
	}
}

func (f *findings) standby(pair *failover.Status, p *replication.PrimaryStatus) {
	standby := p.Standby
	if standby == nil {
		f.pair(true, StandbyAbsent, "%s", pair.Reason)
		return
	}
	_, inSync := pair.Record.Member(standby.Member.Node)
	lag := uint64(0)
	if p.End.LSN > standby.Durable.LSN {
		lag = p.End.LSN - standby.Durable.LSN
	}
	f.pair(!inSync, StandbyCatchingUp, "%s records behind", units.Count(lag))
}

func (f *findings) foreignNode(now time.Time, s *replication.ForeignNode) {
	switch {
	case s == nil || now.Sub(s.At) > foreignNodeTTL:
	case errors.Is(s.Err, replication.ErrSameNode):
		f.node(true, DuplicateProcess, "%v", s.Err)
	default:
		f.pair(true, ForeignNode, "%v", s.Err)
	}
}

func (f *findings) disk(in *Input) {
	var d replication.DiskStatus
	switch {
	case in.Primary != nil:
		d = in.Primary.Disk
	case in.Follower != nil:
		d = in.Follower.Disk
	}
	f.node(d.Stalled, DiskStalled, "")
	f.node(d.Mean > slowSync, SyncSlow, "average of the last log writes with sync: %s", d.Mean.Round(time.Millisecond))
	f.node(in.Config.Sync != "always", SyncOff, "sync is %s", in.Config.Sync)
	if in.Room == nil {
		return // the node is about to stop and reports the reason elsewhere
	}
	mark := in.Config.Disk.LowWatermark
	low := in.Room.Low(uint64(mark.Bytes()))
	free := fmt.Sprintf("%s free and %s in free pages, disk.low-watermark is %s: %s", units.Bytes(in.Room.FreeBytes),
		units.Bytes(in.Room.PageBytes+in.Room.PendingBytes), mark, DiskAdvice(in.Room, uint64(mark.Bytes())))
	f.node(low, DiskLow, "%s", free)
	serves := in.Pair.Role == failover.RoleActive || in.Pair.Role == failover.RoleActiveAlone
	f.pair(low && serves, PublishesRefused, "node %s: %s", f.self.Name, free)
	f.node(in.Follower != nil && in.StandbyFull, ReplicationStopped, "%s", free)
}

// DiskAdvice returns the recommended action for a disk that is low on space.
func DiskAdvice(room *store.Room, mark uint64) string {
	if room.FreeBytes < mark/2 {
		return "free or add space on the filesystem, or compact the store; consuming messages is not enough"
	}
	return "consume or purge messages, or free space on the filesystem"
}

func (f *findings) content(in *Input) {
	st := &in.Damage
	f.node(st.DamagedMessages > 0, CorruptMessages, "%s messages are corrupt, %s of them on both nodes",
		units.Count(st.DamagedMessages), units.Count(st.LostMessages))
	f.node(st.Index != nil, CorruptPageFile, "%v", st.Index)
	f.node(st.DamagedLogLSN != 0, CorruptLog, "record %d is corrupt", st.DamagedLogLSN)
	f.pair(in.Difference != "", DigestsDiffer, "%s", in.Difference)
}

func (f *findings) machine(in *Input) {
	f.node(in.AuthError != "", AuthFailures, "%s", in.AuthError)
	f.node(in.KeysError != "", JWKSUnavailable, "%s", in.KeysError)
	f.node(in.CacheOnly, PageCacheOnly, "memory.page-cache is %s", in.Config.Memory.PageCache)
	f.node(in.AuditError != "", AuditErrors, "%s; %d records lost since the start", in.AuditError, in.AuditLost)
	f.node(in.MemoryUsed > in.MemoryAllowed, MemoryOverBudget, "%s in use, memory.budget is %s",
		units.Bytes(in.MemoryUsed), in.Config.Memory.Budget)
}

// access reports a node without access rules that clients on other machines can reach.
func (f *findings) access(in *Input) {
	var open []string
	for _, l := range []config.Listener{
		{Key: "listen", Address: in.Config.Listen},
		{Key: "amqp.listen", Address: in.Config.AMQP.Listen},
		{Key: "console.listen", Address: in.Config.Console.Listen},
	} {
		if l.Address != "" && !config.LocalOnly(l.Address) {
			open = append(open, l.Key+" "+l.Address)
		}
	}
	f.node(in.Unrestricted && len(open) > 0, AccessUnrestricted, "%s", strings.Join(open, ", "))
}

func (f *findings) secrets(in *Input) {
	if open := in.Config.Unencrypted(); len(open) > 0 {
		list := make([]string, 0, len(open))
		for _, o := range open {
			list = append(list, o.Key+" "+o.Address)
		}
		f.node(true, NotEncrypted, "%s", strings.Join(list, ", "))
	}
	for _, c := range in.Certificates { // the book uses the first report of each kind
		left := c.Ends.Sub(in.Now)
		f.node(left <= 0, CertificateExpired, "%s (%s, of %s) expired at %s", c.File, c.Subject, c.Use,
			c.Ends.Format(time.RFC3339))
		f.node(left > 0 && left < certificateWarning, CertificateExpires, "%s (%s, of %s) expires at %s",
			c.File, c.Subject, c.Use, c.Ends.Format(time.RFC3339))
	}
	for _, c := range in.Credentials {
		f.node(true, CredentialsInvalid, "of %s: %v", c.Use, c.Err)
	}
}

const (
	// answerAge is the maximum age of a response of the other node.
	answerAge = 5 * time.Second
	// clockSlack is the maximum difference between the clocks of the two nodes that is not reported.
	clockSlack = 2 * time.Second
)

// other adds the conditions that the other node has reported: its own conditions and, if it is the active, those
// of the pair.
func (f *findings) other(in *Input, o *Other) {
	if in.Now.Sub(o.At) > answerAge {
		return
	}
	f.pair(o.Offset.Abs() > clockSlack+o.Unsure, ClockSkew, "clock of the other node is %s %s",
		o.Offset.Abs().Round(100*time.Millisecond), map[bool]string{true: "ahead", false: "behind"}[o.Offset > 0])
	if o.Older {
		f.older(in, o)
		return
	}
	active := in.Pair.Record != nil && in.Pair.Record.Active.String() == o.Node.ID
	for _, r := range o.Reports {
		// Skip reports that originate from this node or concern it. Also skip the conditions of the cluster record, which
		// this node derives itself.
		if r.By != o.Node.ID || r.Node.ID == f.self.ID || r.Node.ID == "" && !active ||
			InRecord(r.Kind) && in.Pair.CoordinatorReachable {
			continue
		}
		f.all = append(f.all, r)
	}
}

func (f *findings) older(in *Input, o *Other) {
	if mark := in.Config.Disk.LowWatermark; o.DiskFree > 0 && o.DiskFree < uint64(mark.Bytes()) {
		f.all = append(f.all, Report{Kind: DiskLow, Node: o.Node, By: o.Node.ID, Details: fmt.Sprintf(
			"%s free, this node's disk.low-watermark is %s", units.Bytes(o.DiskFree), mark)})
	}
	for _, r := range o.Reports {
		if Find(r.Kind) != nil {
			f.all = append(f.all, r)
		}
	}
}
