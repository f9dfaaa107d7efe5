// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"math"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/cost"

	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	varProperties  = "properties"
	varPriority    = "priority"
	varPublishedAt = "published_at"
	varExpiresAt   = "expires_at"
	varDeliverAt   = "deliver_at"
	varSize        = "size"
)

var textNames = map[string]txn.Attribute{
	"message_id": txn.AttributeMessageID, "correlation_id": txn.AttributeCorrelationID,
	"reply_to": txn.AttributeReplyTo, "content_type": txn.AttributeContentType, "subject": txn.AttributeSubject,
	"group": txn.AttributeGroup,
}

type activation struct {
	record     []byte
	message    *txn.Message
	properties map[string]any
	decoded    bool
}

func (a *activation) begin(record []byte, m *txn.Message) { a.record, a.message = record, m }

func (a *activation) end() {
	a.record, a.message, a.decoded = nil, nil, false
	clear(a.properties)
}

func (*activation) Parent() cel.Activation { return nil }

func (a *activation) ResolveName(name string) (any, bool) {
	switch name {
	case varProperties:
		return a.allProperties(), true
	case varPriority:
		return int64(txn.RecordPriority(a.record)), true
	case varSize:
		return int64(len(a.message.Body)), true
	case varPublishedAt:
		return timestamp(a.message.TimestampMS), true
	case varExpiresAt:
		return a.time(txn.AttributeExpiresAt, txn.MaxTimeMS), true
	case varDeliverAt:
		return a.time(txn.AttributeDeliverAt, a.message.TimestampMS), true
	}
	if tag, ok := textNames[name]; ok {
		return string(txn.RecordAttribute(a.record, tag)), true
	}
	return nil, false
}

func (a *activation) time(tag txn.Attribute, none int64) time.Time {
	if ms := txn.RecordTime(a.record, tag); ms != 0 {
		return timestamp(ms)
	}
	return timestamp(none)
}

// timestamp clamps a time to the range of CEL timestamps.
func timestamp(ms int64) time.Time { return time.UnixMilli(max(0, min(ms, txn.MaxTimeMS))).UTC() }

func (a *activation) allProperties() map[string]any {
	if a.decoded {
		return a.properties
	}
	a.decoded = true
	if a.properties == nil {
		a.properties = make(map[string]any)
	}
	for k, v := range a.message.Properties {
		a.properties[string(k)] = string(v)
	}
	for k, v := range a.message.Values {
		switch v.Kind {
		case txn.ValueBool:
			a.properties[string(k)] = v.Bits != 0
		case txn.ValueInt64:
			a.properties[string(k)] = int64(v.Bits)
		case txn.ValueDouble:
			a.properties[string(k)] = math.Float64frombits(v.Bits)
		case txn.ValueBytes:
			a.properties[string(k)] = v.Bytes
		}
	}
	return a.properties
}

type estimator struct {
	properties uint64 // maximum number of properties
}

func (e estimator) EstimateSize(element cost.AstNode) *cost.SizeEstimate {
	path := element.Path()
	if len(path) == 0 {
		return nil
	}
	most := uint64(txn.MaxAttributeBytes)
	switch {
	case path[0] != varProperties:
	case len(path) == 1:
		most = e.properties
	case path[1] == "@keys":
		most = txn.MaxPropertyKeyBytes
	default:
		most = txn.MaxPropertiesBytes
	}
	return &cost.SizeEstimate{Max: most}
}

const (
	// usualProperties is the number of properties assumed when an expression is checked against MaxEstimate. For messages
	// with more properties, MaxCost limits the evaluation.
	usualProperties = 1000
	// maxProperties bounds the properties of a message: each one of either kind takes at least three bytes.
	maxProperties = (txn.MaxPropertiesBytes + txn.MaxAttributesBytes) / 3
)

// EstimateCallCost returns nil to select CEL's estimates.
func (estimator) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}
