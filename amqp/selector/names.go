// SPDX-License-Identifier: Apache-2.0

package selector

type nameKind uint8

const (
	property nameKind = iota // a property of the message
	header                   // a string; empty means null
	number                   // an integer, never null
	mode                     // JMSDeliveryMode: a string, never null
	durable                  // a boolean, never null
)

// CEL expressions.
const (
	// null is a CEL error for any message: no property has an empty name.
	null = `properties[""]`
	// notDurable is true for an AMQP message without `durable`: the first bit of convert.SectionsKey is 0.
	notDurable = `("amqp.sections" in properties && properties["amqp.sections"] < b"\x80")`
	// Values of JMSDeliveryMode, and its expression.
	persistent    = "PERSISTENT"
	nonPersistent = "NON_PERSISTENT"
	deliveryMode  = `(` + notDurable + ` ? "` + nonPersistent + `" : "` + persistent + `")`
	// creationTime is published_at in milliseconds since 1970.
	creationTime = `(int(published_at) * 1000 + published_at.getMilliseconds())`
)

// semantics is the meaning of a reserved identifier.
type semantics struct {
	kind nameKind
	cel  string
}

var headerNames = map[string]semantics{
	"JMSMessageID":        {header, "message_id"},
	"JMSCorrelationID":    {header, "correlation_id"},
	"JMSType":             {header, "subject"},
	"JMSXGroupID":         {header, "group"},
	"JMSPriority":         {number, "priority"},
	"JMSTimestamp":        {number, creationTime},
	"JMSDeliveryMode":     {mode, deliveryMode},
	"amqp.message_id":     {header, "message_id"},
	"amqp.correlation_id": {header, "correlation_id"},
	"amqp.subject":        {header, "subject"},
	"amqp.jms_type":       {header, "subject"},
	"amqp.reply_to":       {header, "reply_to"},
	"amqp.content_type":   {header, "content_type"},
	"amqp.group_id":       {header, "group"},
	"amqp.priority":       {number, "priority"},
	"amqp.creation_time":  {number, creationTime},
	"amqp.delivery_mode":  {mode, deliveryMode},
	"amqp.durable":        {durable, `!` + notDurable},
}

const (
	notByJMS    = "JMS permits only JMSDeliveryMode, JMSPriority, JMSMessageID, JMSTimestamp, JMSCorrelationID and JMSType"
	notConstant = "its value changes while the message is stored"
)

// refusedNames maps each unsupported identifier to the reason.
var refusedNames = map[string]string{
	"JMSDestination": notByJMS, "JMSReplyTo": notByJMS, "JMSExpiration": notByJMS, "JMSDeliveryTime": notByJMS,
	"JMSRedelivered": notConstant, "JMSXDeliveryCount": notConstant, "JMSXRcvTimestamp": notConstant,
	"JMSXState": notConstant, "amqp.redelivered": notConstant, "amqp.delivery_count": notConstant,
	"amqp.to": "it is always the queue", "amqp.absolute_expiry_time": notByJMS,
	"amqp.sections": "it is reserved for AMQP sections",
}

func kindOf(n name) nameKind { return headerNames[n.text].kind }
