// SPDX-License-Identifier: Apache-2.0

package wire

// Frame is one frame of AMQP or of SASL (2.3).
type Frame struct {
	SASL    bool // its type
	Channel uint16
	Body    Performative // nil: an empty frame, which keeps a connection alive
	Payload []byte       // what follows the performative: of transfers only
}
