// SPDX-License-Identifier: Apache-2.0

package protoconv

import (
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/repair"
)

// MaxListedDamage is the maximum number of corrupt messages listed in a response.
const MaxListedDamage = 1000

// DigestsFromProto converts rolling digests from the other node.
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
	}
	if !st.LastScrub.IsZero() {
		out.LastScrub = timestamppb.New(st.LastScrub)
	}
	if st.Index != nil {
		out.Index = st.Index.Error()
	}
	return out
}

// DamagedToProto converts corrupt messages.
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
