// SPDX-License-Identifier: Apache-2.0

// Package message translates between messages of AMQP 1.0 (part 3) and those of the product's own services.
//
// What came by AMQP leaves by AMQP as it came: the bare message (properties, application-properties and body), the
// message annotations and the footer are the same bytes. Of the header the durability and the priority are kept; the
// time to live is what remains of it, and the delivery count is counted anew. Delivery annotations are for one hop and
// end here. To that end everything but the text or the bytes of the body is kept in the typed property SectionsKey
// beside the fields that it is translated to, so that consumers of gRPC and filters see what they know, and nothing is
// lost. A client of gRPC that changes other fields of such a message and publishes it again must leave that property
// out, or what goes by AMQP is the message as it was.
//
// # What a message of AMQP becomes
//
//	header.priority                 priority, 9 if it is higher
//	header.ttl, absolute-expiry-time
//	                                ttl, or expires_at if there is no ttl
//	x-opt-delivery-time, x-opt-scheduled-enqueue-time, x-opt-delivery-delay (annotations)
//	                                deliver_at, or delay if there is no time
//	message-id, correlation-id      message_id, correlation_id: a text as it is; others as JMS names them:
//	                                ID:AMQP_ULONG:…, ID:AMQP_UUID:…, ID:AMQP_BINARY:… (hexadecimal)
//	reply-to, subject, content-type, group-id
//	                                reply_to, subject, content_type, group
//	group-sequence, user-id         the properties JMSXGroupSeq and JMSXUserID
//	application-properties          properties, or typed_properties: whole numbers and timestamps (milliseconds since
//	                                1970) as int_value, floats as double_value, uuid, char and symbol as texts; what is
//	                                null, above 2^63-1, decimal or compound, or has a key that is empty or above
//	                                255 bytes, is kept in SectionsKey only
//	a single data section           body: its bytes
//	amqp-value with a string        body: its text
//	any other body                  body: its sections, as they are encoded
//
// # What a message of gRPC becomes
//
// A durable message with one data section; deliver_at as annotation x-opt-delivery-time, expires_at as ttl and
// absolute-expiry-time, published_at as creation-time; the texts back to what they came from; properties and
// typed_properties as application-properties of the types string, boolean, long, double and binary.
//
// A dead letter has annotations that say where it comes from: see appendOrigin.
package message
