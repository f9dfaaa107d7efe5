// SPDX-License-Identifier: Apache-2.0

// Package selector translates JMS message selectors (JMS 2.0, 3.8.1) to CEL expressions for the filters of
// subscriptions and consumers.
//
// A selector has three truth values: true, false and unknown. A comparison with a missing property is unknown. A CEL
// error represents unknown: && and || absorb it as AND and OR absorb unknown, and a filter with an error does not
// match. Unknown and false differ only below a NOT; elsewhere the shorter form is written.
//
// # Identifiers
//
//	JMSMessageID, JMSCorrelationID   message_id, correlation_id
//	JMSType                          subject
//	JMSPriority                      priority
//	JMSTimestamp                     published_at, in milliseconds since 1970
//	JMSDeliveryMode                  'PERSISTENT', or 'NON_PERSISTENT' for AMQP messages without `durable`
//	JMSXGroupID                      group
//	amqp.message_id, amqp.correlation_id, amqp.subject, amqp.reply_to, amqp.content_type, amqp.group_id,
//	amqp.priority, amqp.creation_time, amqp.durable, amqp.jms_type, amqp.delivery_mode
//	                                 the same, and fields without a JMS name
//	keys of refusedNames             a syntax error
//	any other                        the property of that name
//
// An identifier may contain dots, and between double quotes any character ("" represents a double quote).
//
// # Behavior that JMS leaves undefined
//
// Integers may be hexadecimal, octal or end with L, floating-point numbers with F or D, as in Java. A comparison of a
// string with a number is false, even with <>. The operand of LIKE must be a string: for a number, neither LIKE nor
// NOT LIKE is true. Overflow and division by zero of integers result in unknown; doubles follow IEEE 754. Between
// constants, integer overflow wraps around, and division by zero is a syntax error.
package selector
