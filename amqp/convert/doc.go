// SPDX-License-Identifier: Apache-2.0

// Package convert converts between AMQP 1.0 messages (part 3) and lockstep.v1 messages.
//
// A message received over AMQP is delivered over AMQP with the same bytes: properties, application-properties, body,
// message annotations and footer. The header has the original durability and priority, the remaining time to live,
// and a new delivery count. Delivery annotations apply to one hop and are dropped.
//
// For that purpose, the typed property SectionsKey stores everything except the text or bytes of the body. gRPC
// consumers and filters use the converted fields. A gRPC client that changes such a message and publishes it again must
// remove the property. Otherwise, AMQP consumers receive the original fields with the current body. If the property
// does not match that body, for example because the length has changed, they receive the converted fields.
//
// # Conversion from AMQP
//
//	header.priority                 priority, 9 if it is higher
//	header.ttl, absolute-expiry-time
//	                                ttl, or expires_at without a ttl
//	x-opt-delivery-time, x-opt-scheduled-enqueue-time, x-opt-delivery-delay (annotations)
//	                                deliver_at, or delay without a time
//	message-id, correlation-id      message_id, correlation_id: as in JMS: ID:AMQP_ULONG:…, ID:AMQP_UUID:…,
//	                                ID:AMQP_BINARY:… (hexadecimal); strings unchanged, except that a string with
//	                                such a prefix becomes ID:AMQP_STRING:…
//	reply-to, subject, content-type, group-id
//	                                reply_to, subject, content_type, group
//	group-sequence, user-id         the properties JMSXGroupSeq and JMSXUserID
//	application-properties          properties, or typed_properties: integers and timestamps (milliseconds since
//	                                1970) as int_value, floats as double_value, uuid, char and symbol as strings;
//	                                values that are null, above 2^63-1, decimal or compound, or have a key that is
//	                                empty or above 255 bytes, are stored in SectionsKey only
//	a single data section           body: its bytes
//	amqp-value with a string        body: its text
//	any other body                  body: its encoded sections
//
// # Conversion from gRPC
//
// The result is a durable message with one data section. deliver_at becomes the annotation x-opt-delivery-time,
// expires_at becomes ttl and absolute-expiry-time, and published_at becomes creation-time. IDs regain their original
// types. properties and typed_properties become application-properties of the types string, boolean, long, double and
// binary.
//
// A dead letter has annotations with its origin: see appendOrigin.
package convert
