// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// A queue with a byte limit stores the sizes of its messages if both nodes support that. While one node runs release
// 0.1.0, such a queue can be created and altered, but stores no sizes.
func TestExactBytesNeedBothNodes(t *testing.T) {
	limited := &pb.QueueConfig{MaxBytes: 1 << 20}
	for _, c := range []struct {
		name        string
		features    failover.Features
		in          *pb.QueueConfig
		mask, known txn.ConfigMask
		exact       uint64
	}{
		{"create", failover.KnownFeatures(), limited, txn.AllFields, txn.AllFields, 1},
		{"alter", failover.KnownFeatures(), limited, txn.PlainFields, txn.PlainFields | txn.FieldExactBytes, 1},
		{
			"retention", failover.KnownFeatures(), &pb.QueueConfig{RetentionBytes: 1}, txn.FieldRetentionBytes,
			txn.FieldRetentionBytes | txn.FieldExactBytes, 1,
		},
		{"no limit", failover.KnownFeatures(), &pb.QueueConfig{}, txn.AllFields, txn.AllFields, 0},
		{"remove the limit", failover.KnownFeatures(), &pb.QueueConfig{}, txn.PlainFields, txn.PlainFields, 0},
		{"other field", failover.KnownFeatures(), limited, txn.FieldTTL, txn.FieldTTL, 0},
		{"create, mixed", "", limited, txn.AllFields, txn.PlainFields, 0},
		{"alter, mixed", "", limited, txn.PlainFields, txn.PlainFields, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			node := failover.NodeInfo{ID: uuid.New(), Name: "b", Address: "b:1", Features: c.features, Version: "0.1.0"}
			st := failover.Status{
				Live:   []failover.Live{{Node: node}},
				Record: &failover.Record{Nodes: []failover.NodeInfo{node}, InSync: []failover.Member{{Node: node.ID}}},
			}
			s := &Service{serving: session.NewCurrent(nil, func() failover.Status { return st },
				func() <-chan struct{} { return nil })}
			config, known, err := s.config(new(session.Session), c.in, c.mask)
			require.NoError(t, err)
			require.Equal(t, c.known, known)
			require.Equal(t, c.exact, config.ExactBytes)
		})
	}
}
