// SPDX-License-Identifier: Apache-2.0

package protoconv

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/repair"
)

const retryAfter = 50 * time.Millisecond

// NotActive returns an error that redirects clients to next. If next is the zero value, the error redirects clients
// to the active node in the cluster record. The error has no address if that node is unknown or is this node.
func NotActive(st *failover.Status, next failover.NodeInfo) *apierror.NotActiveError {
	if active, ok := st.ActiveNode(); ok && next.ID == uuid.Nil {
		next = active
	}
	out := &apierror.NotActiveError{Role: st.Role.String(), Reason: st.Reason, RetryAfter: retryAfter}
	if next.ID != uuid.Nil && next.ID != st.Self.ID {
		out.ActiveAddress, out.ActiveNode = next.Address, next.ID.String()
	}
	return out
}

// KnownNodes returns the nodes in the cluster record and the other nodes that have announced themselves.
func KnownNodes(st *failover.Status) (nodes []failover.NodeInfo) {
	if st.Record != nil {
		nodes = slices.Clone(st.Record.Nodes)
	}
	for _, l := range st.Live {
		if !slices.ContainsFunc(nodes, func(n failover.NodeInfo) bool { return n.ID == l.Node.ID }) {
			nodes = append(nodes, l.Node)
		}
	}
	return nodes
}

// FindNode returns the UUID of the node with the given name or UUID. Errors wrap ErrInvalid and list the known nodes.
func FindNode(st *failover.Status, called string) (uuid.UUID, error) {
	nodes := KnownNodes(st)
	var found []uuid.UUID
	names := make([]string, 0, len(nodes))
	for _, n := range nodes {
		if n.ID.String() == called {
			return n.ID, nil
		}
		if n.Name == called {
			found = append(found, n.ID)
		}
		names = append(names, fmt.Sprintf("%s (%s)", n.Name, n.ID))
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return uuid.Nil, fmt.Errorf("%w: no node named %q; nodes are %s", apierror.ErrInvalid, called,
			strings.Join(names, ", "))
	default:
		return uuid.Nil, fmt.Errorf("%w: %d nodes are named %q: use the node UUID; nodes are %s", apierror.ErrInvalid,
			len(found), called,
			strings.Join(names, ", "))
	}
}

// ConditionsToProto converts conditions. self is the ID of the node that has detected the conditions with an empty
// By.
func ConditionsToProto(all []conditions.Condition, self string) []*pb.Condition {
	out := make([]*pb.Condition, 0, len(all))
	for i := range all {
		c := &all[i]
		out = append(out, &pb.Condition{
			Kind: string(c.Definition.Kind), Severity: pb.Severity(c.Definition.Severity), Details: c.Details,
			Since: timestamppb.New(c.Since), Cause: c.Definition.Cause, Action: c.Definition.Action,
			NodeId: c.Node.ID, NodeName: c.Node.Name, ReportedBy: cmp.Or(c.By, self),
		})
	}
	return out
}

// AlarmsToProto converts the conditions of the pair and of the node self that are a warning or critical.
func AlarmsToProto(all []conditions.Condition, self string) []*pb.Alarm {
	out := make([]*pb.Alarm, 0, len(all))
	for i := range all {
		if c := &all[i]; c.Definition.Severity >= conditions.Warning && (c.Node.ID == "" || c.Node.ID == self) {
			out = append(out, &pb.Alarm{
				Kind: c.Definition.AlarmName(), Message: c.Text(), Since: timestamppb.New(c.Since),
			})
		}
	}
	return out
}

// MaxListedDamage is the maximum number of corrupt messages that a response lists.
const MaxListedDamage = 1000

// DigestsFromProto converts the rolling digests of the other node.
func DigestsFromProto(p *pb.GetQueueDigestsResponse) store.QueueDigests {
	out := store.QueueDigests{LSN: p.GetLsn(), Digest: p.GetDigest()}
	for _, q := range p.GetQueues() {
		out.Queues = append(out.Queues, store.QueueDigest{
			ID: q.GetId(), Name: q.GetName(), Digest: q.GetDigest(), NextSequence: q.GetNextSequence(),
			Messages: q.GetMessages(),
		})
	}
	return out
}

// DamageToProto converts the corruption counters of a store.
func DamageToProto(st repair.Status) *pb.DamageStatus {
	out := &pb.DamageStatus{
		ScrubbedPages: st.ScrubbedPages, ScrubbedLogBytes: st.ScrubbedLogBytes, Scrubs: st.Scrubs, FoundPages: st.FoundPages,
		FoundLog: st.FoundLog, RepairedPages: st.RepairedPages, RepairedLog: st.RepairedLog,
		RepairedMessages: st.RepairedMessages, DamagedMessages: st.DamagedMessages, LostMessages: st.LostMessages,
		LastScrub: timeToProto(st.LastScrub),
	}
	if st.Index != nil {
		out.Index = st.Index.Error()
	}
	return out
}

// DamagedToProto converts a list of corrupt messages.
func DamagedToProto(all []repair.CorruptMessage) []*pb.DamagedMessage {
	out := make([]*pb.DamagedMessage, 0, len(all))
	for i := range all {
		m := &all[i]
		out = append(out, &pb.DamagedMessage{
			Queue: m.Name, Sequence: m.Sequence, Reason: m.Reason, Lost: m.Lost, Since: timestamppb.New(m.Since),
		})
	}
	return out
}
