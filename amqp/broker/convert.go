// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"time"

	"github.com/lockstep-mq/lockstep/amqp/message"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// decode reads a message of a client, whose bytes it keeps. to is where the message says it goes.
func decode(payload []byte) (m *pb.Message, to string, err error) {
	m, meta, err := message.Decode(payload)
	if err != nil {
		return nil, "", err
	}
	return m, meta.To, nil
}

// encode writes a message as a client gets it.
func encode(b []byte, m *pb.StoredMessage) []byte {
	return message.Append(b, m, message.Options{Now: time.Now()})
}
