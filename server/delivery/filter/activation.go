// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/types"

	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	varProperties  = "properties"
	varPriority    = "priority"
	varPublishedAt = "published_at"
	varExpiresAt   = "expires_at"
	varDeliverAt   = "deliver_at"
	varSize        = "size"
	varBody        = "body"
)

var textNames = map[string]txn.Attribute{
	"message_id": txn.AttributeMessageID, "correlation_id": txn.AttributeCorrelationID,
	"reply_to": txn.AttributeReplyTo, "content_type": txn.AttributeContentType, "subject": txn.AttributeSubject,
	"group": txn.AttributeGroup,
}

// activation provides the values of one message to an evaluation.
type activation struct {
	uses       *uses
	record     []byte
	message    txn.Message
	properties map[string]any
	decoded    bool // properties is valid
	document   document
	parsed     bool // document is valid
	isJSON     bool
	body       any // value of the body; nil if it is not decoded
}

func (a *activation) begin(record []byte) error {
	a.record = record
	return a.message.Decode(record)
}

func (a *activation) end() {
	a.record, a.message, a.decoded = nil, txn.Message{}, false
	clear(a.properties)
	a.parsed, a.body, a.document.text, a.document.limited = false, nil, nil, false
}

func (*activation) Parent() cel.Activation { return nil }

func (a *activation) ResolveName(name string) (any, bool) {
	switch name {
	case varProperties:
		return a.namedProperties(), true
	case varPriority:
		return int64(txn.RecordPriority(a.record)), true
	case varSize:
		return int64(len(a.message.Body)), true
	case varBody:
		return a.namedFields(), a.uses.body != nil
	}
	if tag, ok := textNames[name]; ok {
		return string(txn.RecordAttribute(a.record, tag)), true
	}
	if at, ok := a.times(name); ok {
		return at, true
	}
	return nil, false
}

func (a *activation) times(name string) (at time.Time, ok bool) {
	switch name {
	case varPublishedAt:
		return timestamp(a.message.TimestampMS), true
	case varExpiresAt:
		return a.time(txn.AttributeExpiresAt, txn.MaxTimeMS), true
	case varDeliverAt:
		return a.time(txn.AttributeDeliverAt, a.message.TimestampMS), true
	}
	return time.Time{}, false
}

func (a *activation) time(tag txn.Attribute, none int64) time.Time {
	if ms := txn.RecordTime(a.record, tag); ms != 0 {
		return timestamp(ms)
	}
	return timestamp(none)
}

// timestamp converts a time in milliseconds. It clamps the time to the years 1970 to 9999, which CEL supports.
func timestamp(ms int64) time.Time { return time.UnixMilli(max(0, min(ms, txn.MaxTimeMS))).UTC() }

// named returns the key of a property as a string. It does not copy the key if the expression names the property. ok
// is false if the expression does not use the property.
func (a *activation) named(key []byte) (name string, ok bool) {
	for _, name := range a.uses.properties {
		if string(key) == name {
			return name, true
		}
	}
	if a.uses.allProperties {
		return string(key), true
	}
	return "", false
}

func (a *activation) namedProperties() map[string]any {
	if a.decoded {
		return a.properties
	}
	a.decoded = true
	if a.properties == nil {
		a.properties = make(map[string]any)
	}
	for k, v := range a.message.Properties {
		if name, ok := a.named(k); ok {
			a.properties[name] = string(v)
		}
	}
	for k, v := range a.message.Values {
		if name, ok := a.named(k); ok {
			a.properties[name] = v.Any()
		}
	}
	return a.properties
}

func (a *activation) parseBody() bool {
	if !a.parsed {
		a.parsed = true
		if a.document.spans == nil {
			a.document.spans = make([]span, a.uses.fields)
		}
		a.isJSON = a.document.parse(a.message.Body, a.uses.body)
	}
	return a.isJSON
}

func (a *activation) namedFields() any {
	if a.body != nil {
		return a.body
	}
	a.body = types.NullValue
	if a.uses.body != nil && a.parseBody() {
		if v, _ := a.document.decode(a.uses.body); v != nil && !a.document.limited {
			a.body = v
		}
	}
	return a.body
}

type estimator struct {
	properties uint64 // maximum number of properties
	body       uint64 // maximum size of a value in the body: elements, or bytes of a text
}

func (e estimator) EstimateSize(element cost.AstNode) *cost.SizeEstimate {
	path := element.Path()
	if len(path) == 0 {
		return nil
	}
	most := uint64(txn.MaxAttributeBytes)
	switch {
	case path[0] == varBody:
		most = e.body
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
	// usualProperties is the number of properties that is assumed when the estimated cost of an expression is
	// compared with MaxEstimate. For messages with more properties, MaxCost limits the evaluation.
	usualProperties = 1000
	// maxProperties is an upper bound of the number of properties of a message.
	maxProperties = (txn.MaxPropertiesBytes + txn.MaxAttributesBytes) / 3
	// usualValues is the number of values in the body that is assumed for the same estimate.
	usualValues = 1000
)

// EstimateCallCost returns nil: CEL uses its own estimates.
func (estimator) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}
