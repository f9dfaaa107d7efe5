// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// Features are the capabilities of a release beyond version 1 of the record, separated by spaces. A pair is upgraded
// one node at a time, and rejects everything that the older release would misinterpret. Names are never reused.
type Features string

// FeaturePause is Record.Paused. A standby without it would ignore the pause and take over.
const FeaturePause = "pause"

// FeatureRuns is Member.Run. A release without it drops the field when it writes the record.
const FeatureRuns = "runs"

// FeatureMinInSync is Record.MinInSyncSet. A node without it would write its own setting when it becomes active.
const FeatureMinInSync = "min-in-sync"

// FeatureAttributes are the standard fields and typed properties of messages. A store without it stops at the first
// record with any.
const FeatureAttributes = "attributes"

// FeatureDeadLetters are delivery limits, dead-letter queues and moved messages. A store without it stops at the first
// record with any.
const FeatureDeadLetters = "dead-letters"

// FeatureQueues are the queue features of release 0.2.0: times, priorities and groups of messages, retention, filters,
// prepared transactions, byte counts, and their settings. A store without it stops at the first record with any.
const FeatureQueues = "queues"

// FeatureAccess are rules, roles, tokens and quotas. A store without it stops at the first record that changes them.
const FeatureAccess = "access"

// KnownFeatures returns the features of this build.
func KnownFeatures() Features {
	return FeaturePause + " " + FeatureRuns + " " + FeatureMinInSync + " " + FeatureAttributes +
		" " + FeatureDeadLetters + " " + FeatureQueues + " " + FeatureAccess
}

// Has reports whether f contains the feature.
func (f Features) Has(name string) bool { return slices.Contains(strings.Fields(string(f)), name) }

// lacking returns a node of the pair that lacks a feature. A node's announcement takes precedence over the record.
func lacking(rec Record, live []Live, feature string) (NodeInfo, bool) {
	nodes := slices.Clone(rec.Nodes)
	for _, m := range rec.InSync {
		if !slices.ContainsFunc(nodes, func(n NodeInfo) bool { return n.ID == m.Node }) {
			nodes = append(nodes, NodeInfo{ID: m.Node})
		}
	}
	for _, n := range nodes {
		if now, ok := describeNode(rec, live, n.ID); ok {
			n = now
		}
		if n.ID != uuid.Nil && !n.Features.Has(feature) {
			return n, true
		}
	}
	return NodeInfo{}, false
}

// AnnounceWait is how long to wait for a node's announcement. A standby may be in sync some milliseconds before its
// announcement is visible in the coordinator.
const AnnounceWait = 2 * time.Second

// Lack is the reason why a feature cannot be used.
type Lack struct {
	Node    NodeInfo
	Feature string
}

// Silent reports whether the node has not announced itself yet. It may support the feature.
func (l Lack) Silent() bool { return l.Node.Address == "" }

// Because returns the cause, the consequence and the remedy.
func (l Lack) Because(consequence string) string {
	if l.Silent() {
		return fmt.Sprintf("node %s has not announced itself at the coordinator, so its support of %q is unknown; "+
			"try again in a moment, and if that does not help, check that it reaches the coordinator", l.Node.ID,
			l.Feature)
	}
	return fmt.Sprintf("node %s (%s) runs %s, which %s; upgrade it first with lockstep restart", l.Node.Name, l.Node.ID,
		describeVersion(l.Node.Version), consequence)
}

// Lacks returns a node of the pair without a feature, which makes the feature unusable.
func (s *Status) Lacks(feature string) (lack Lack, lacks bool) {
	if s.Record == nil {
		return Lack{}, false
	}
	n, lacks := lacking(*s.Record, s.Live, feature)
	return Lack{Node: n, Feature: feature}, lacks
}

// lacks is like Status.Lacks, but waits for a node that has not announced itself yet.
func (r *Runner) lacks(ctx context.Context, rec Record, feature string) (lack Lack, lacks bool) {
	waited := time.NewTimer(AnnounceWait)
	defer waited.Stop()
	for {
		changed := r.Changed()
		n, lacks := lacking(rec, r.Status().Live, feature)
		lack := Lack{Node: n, Feature: feature}
		if !lacks || !lack.Silent() {
			return lack, lacks
		}
		select {
		case <-changed:
		case <-waited.C:
			return lack, true
		case <-ctx.Done():
			return lack, true
		}
	}
}

func describeVersion(v string) string {
	if v == "" {
		return "an older release"
	}
	return v
}

// plainRecord has no methods, so encoding/json encodes the fields.
type plainRecord Record

// MarshalJSON includes the fields unknown to DecodeRecord.
func (r Record) MarshalJSON() ([]byte, error) {
	own, err := json.Marshal(plainRecord(r))
	if err != nil || len(r.unknown) == 0 {
		return own, err //nolint:wrapcheck // Encode does
	}
	all := maps.Clone(r.unknown)
	if err := json.Unmarshal(own, &all); err != nil {
		return nil, fmt.Errorf("merge with the fields of a newer release: %w", err)
	}
	return json.Marshal(all) //nolint:wrapcheck // Encode does
}

// UnmarshalJSON decodes the fields and keeps unknown ones.
func (r *Record) UnmarshalJSON(b []byte) error {
	var p plainRecord
	if err := json.Unmarshal(b, &p); err != nil {
		return err //nolint:wrapcheck // DecodeRecord does
	}
	if err := json.Unmarshal(b, &p.unknown); err != nil {
		return err //nolint:wrapcheck // DecodeRecord does
	}
	t := reflect.TypeFor[plainRecord]()
	for i := range t.NumField() {
		name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
		delete(p.unknown, name)
	}
	if len(p.unknown) == 0 {
		p.unknown = nil
	}
	*r = Record(p)
	return nil
}
