// SPDX-License-Identifier: Apache-2.0

// Package wire encodes and decodes AMQP 1.0 (ISO/IEC 19464, OASIS amqp-core-overview v1.0): types, frames,
// performatives, SASL frames, delivery states and message sections. It is a pure codec: it does no I/O except
// through an io.Reader, has no connection state, and does not depend on queues.
//
// References to the specification have the form "part.section", such as 2.7.5 for transfer.
package wire
