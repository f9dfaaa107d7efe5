// SPDX-License-Identifier: Apache-2.0

// Package selector translates message selectors of JMS (JMS 2.0, 3.8.1) to the expressions in CEL that filters of
// subscriptions and consumers are written in.
//
// A selector knows three truth values: true, false and unknown, which a comparison with a property gives that the
// message does not have. An error of CEL stands for unknown: && and || absorb it as AND and OR absorb unknown, and a
// message for which a filter ends in an error does not match. Where unknown and false come to the same, which is
// everywhere but below a NOT, the shorter form is written.
//
// # Identifiers
//
//	JMSMessageID, JMSCorrelationID   message_id, correlation_id
//	JMSType                          subject
//	JMSPriority                      priority
//	JMSTimestamp                     published_at, in milliseconds since 1970
//	JMSDeliveryMode                  'PERSISTENT', or 'NON_PERSISTENT' of what came by AMQP without `durable`
//	JMSXGroupID                      group
//	amqp.message_id, amqp.correlation_id, amqp.subject, amqp.reply_to, amqp.content_type, amqp.group_id,
//	amqp.priority, amqp.creation_time, amqp.durable
//	                                 the same, and what JMS has no name for
//	any other                        the property of that name
//
// An identifier may contain dots, and any character between double quotes ("" is one of them).
//
// # What JMS leaves open
//
// Integers may be hexadecimal, octal or end with L, floating-point numbers with F or D, as in Java. A comparison of a
// text with a number is false, with <> too. The other side of LIKE must be a text: of a number neither LIKE nor NOT
// LIKE is true. Integers that overflow give unknown, and so does a division by zero.
package selector
