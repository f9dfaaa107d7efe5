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

// Features names what a release of Lockstep knows beyond version 1 of the record, separated by blanks. A pair is
// upgraded one node at a time: what a node of the release before would misunderstand is refused until both nodes'
// releases know it. Names are never used again for something else.
type Features string

// FeaturePause is Record.Paused: a standby that does not know it would take over all the same.
const FeaturePause = "pause"

// FeatureRuns is Member.Run: a release that does not know it drops it when it writes the record.
const FeatureRuns = "runs"

// FeatureMinInSync is Record.MinInSyncSet: a node that does not know it would write its own when it becomes active.
const FeatureMinInSync = "min-in-sync"

// FeatureAttributes are the standard fields and typed properties of messages: a store that does not know them stops at
// the first record that has any.
const FeatureAttributes = "attributes"

// FeatureDeadLetters are a limit of deliveries, dead-letter queues and messages that are moved: a store that does not
// know them stops at the first record that has any.
const FeatureDeadLetters = "dead-letters"

// FeatureQueues are the queue features of release 0.2.0: times, priorities and groups of messages, retention, filters,
// prepared transactions, exact counts of bytes, and their fields of a configuration. A store without them stops at the
// first record that has any.
const FeatureQueues = "queues"

// FeatureAccess is the access table: rules, roles, tokens and quotas. A store that does not know it stops at the first
// record that changes it.
const FeatureAccess = "access"

// KnownFeatures are those of this build.
func KnownFeatures() Features {
	return FeaturePause + " " + FeatureRuns + " " + FeatureMinInSync + " " + FeatureAttributes +
		" " + FeatureDeadLetters + " " + FeatureQueues + " " + FeatureAccess
}

// Has tells whether a feature is named.
func (f Features) Has(name string) bool { return slices.Contains(strings.Fields(string(f)), name) }

// lacking returns a node of the pair whose release does not know a feature. What a node says of itself now counts more
// than what the record says of it.
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

// AnnounceWait is for how long it is waited for what a node of the pair says of itself before it is taken for one that
// says nothing. A standby may be in sync some milliseconds before its announcement at the coordinator is seen.
const AnnounceWait = 2 * time.Second

// Lack is why a feature cannot be used.
type Lack struct {
	// Node that does not know it.
	Node NodeInfo
	// Feature that it lacks.
	Feature string
}

// Silent tells whether the node has not said anything of itself yet: it may well know the feature.
func (l Lack) Silent() bool { return l.Node.Address == "" }

// Because says what is wrong, why it matters, and what to do.
func (l Lack) Because(harm string) string {
	if l.Silent() {
		return fmt.Sprintf("node %s has not announced itself at the coordinator, so it is not known whether it knows %q; "+
			"try again in a moment, and if that does not help, look whether it reaches the coordinator", l.Node.ID,
			l.Feature)
	}
	return fmt.Sprintf("node %s (%s) runs %s, which %s; upgrade it first with lockstep restart", l.Node.Name, l.Node.ID,
		describeVersion(l.Node.Version), harm)
}

// Lacks tells which node of the pair does not know a feature, so that it cannot be used. Without a record there is no
// other node.
func (s *Status) Lacks(feature string) (lack Lack, lacks bool) {
	if s.Record == nil {
		return Lack{}, false
	}
	n, lacks := lacking(*s.Record, s.Live, feature)
	return Lack{Node: n, Feature: feature}, lacks
}

// lacks is Status.Lacks for a record, and waits for a node that has not announced itself yet.
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

// describeVersion names a release for people.
func describeVersion(v string) string {
	if v == "" {
		return "an older release"
	}
	return v
}

// plainRecord has no methods, so that encoding/json sees only the fields.
type plainRecord Record

// MarshalJSON writes the fields, and those that DecodeRecord did not know.
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

// UnmarshalJSON reads the fields and keeps those that it does not know.
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
