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

// Features lists the optional capabilities of a release, separated by spaces. During an upgrade of a pair, requests
// that the older release would misinterpret are rejected. Names are never reused.
type Features string

// FeaturePause is support for Record.Paused. A standby without it would ignore the pause and take over.
const FeaturePause = "pause"

// FeatureGenerations is support for Member.Generation. A release without it drops the field when it writes the record.
const FeatureGenerations = "runs"

// FeatureMinInSync is support for Record.MinInSyncSet. A node without it would write its configured value when it
// becomes active.
const FeatureMinInSync = "min-in-sync"

// FeatureAttributes is support for standard fields and typed properties of messages. A store without it stops at the
// first record that contains one.
const FeatureAttributes = "attributes"

// FeatureDeadLetters is support for delivery limits, dead-letter queues and moved messages. A store without it stops at
// the first record that contains one.
const FeatureDeadLetters = "dead-letters"

// FeatureQueues is support for the queue features of release 0.2.0: times, priorities and groups of messages,
// retention, filters, prepared transactions, byte counts, and their settings. A store without it stops at the first
// record that contains one.
const FeatureQueues = "queues"

// FeatureAccess is support for rules, roles, tokens and quotas. A store without it stops at the first record that
// changes one of these.
const FeatureAccess = "access"

// KnownFeatures returns the features of this build.
func KnownFeatures() Features {
	return FeaturePause + " " + FeatureGenerations + " " + FeatureMinInSync + " " + FeatureAttributes +
		" " + FeatureDeadLetters + " " + FeatureQueues + " " + FeatureAccess
}

// Has reports whether f contains the feature.
func (f Features) Has(name string) bool { return slices.Contains(strings.Fields(string(f)), name) }

// nodeWithout returns a node of the pair that does not support a feature; false if all nodes support it. The features
// in a node's announcement take precedence over those in the record.
func nodeWithout(rec Record, live []Live, feature string) (NodeInfo, bool) {
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

// AnnounceWait is how long to wait for a node's announcement. A standby may be in sync some milliseconds before the
// coordinator delivers its announcement.
const AnnounceWait = 2 * time.Second

// MissingFeature describes a feature that cannot be used, and the node that does not support it.
type MissingFeature struct {
	Node    NodeInfo
	Feature string
}

// Unknown reports whether the node has not announced its features yet.
func (m MissingFeature) Unknown() bool { return m.Node.Address == "" }

// Message returns the cause, the consequence and the remedy. consequence is the predicate of a clause about the older
// release: "which <consequence>".
func (m MissingFeature) Message(consequence string) string {
	if m.Unknown() {
		return fmt.Sprintf("node %s has not announced whether it supports %q; retry, and check that the node reaches the "+
			"coordinator", m.Node.ID, m.Feature)
	}
	return fmt.Sprintf("node %s (%s) runs %s, which %s; upgrade it first with lockstep restart", m.Node.Name, m.Node.ID,
		describeVersion(m.Node.Version), consequence)
}

// MissingFeature returns a node of the pair that does not support the feature. It returns false if all nodes
// support it, or if the record is unknown.
func (s *Status) MissingFeature(feature string) (MissingFeature, bool) {
	if s.Record == nil {
		return MissingFeature{}, false
	}
	n, missing := nodeWithout(*s.Record, s.Live, feature)
	return MissingFeature{Node: n, Feature: feature}, missing
}

// missingFeature is like Status.MissingFeature, but waits up to AnnounceWait for a node that has not announced itself
// yet.
func (r *Runner) missingFeature(ctx context.Context, rec Record, feature string) (MissingFeature, bool) {
	waited := time.NewTimer(AnnounceWait)
	defer waited.Stop()
	for {
		changed := r.Changed()
		n, found := nodeWithout(rec, r.Status().Live, feature)
		missing := MissingFeature{Node: n, Feature: feature}
		if !found || !missing.Unknown() {
			return missing, found
		}
		select {
		case <-changed:
		case <-waited.C:
			return missing, true
		case <-ctx.Done():
			return missing, true
		}
	}
}

func describeVersion(v string) string {
	if v == "" {
		return "an older release"
	}
	return v
}

// plainRecord is a Record without its JSON methods.
type plainRecord Record

// MarshalJSON implements json.Marshaler. It includes the fields unknown to this release.
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

// UnmarshalJSON implements json.Unmarshaler. It keeps unknown fields.
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
