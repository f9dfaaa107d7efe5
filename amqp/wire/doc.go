// SPDX-License-Identifier: Apache-2.0

// Package wire encodes and decodes AMQP 1.0 (ISO/IEC 19464, OASIS amqp-core-overview v1.0): types, frames,
// performatives, SASL frames, delivery states and the sections of messages. It is a pure codec: it does no I/O beyond
// an io.Reader, keeps no state of a connection, and does not know what a queue is.
//
// Sections of the specification are named as "part.section", such as 2.7.5 for transfer.
package wire
