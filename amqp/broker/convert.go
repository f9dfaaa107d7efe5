// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"time"

	"github.com/lockstep-mq/lockstep/amqp/convert"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// decode decodes a message of a client, which references payload. to is its address.
func decode(payload []byte) (m *pb.Message, to string, err error) {
	m, meta, err := convert.Decode(payload)
	if err != nil {
		return nil, "", err
	}
	return m, meta.To, nil
}

func encode(b []byte, m *pb.StoredMessage) []byte {
	return convert.Append(b, m, convert.Options{Now: time.Now()})
}
