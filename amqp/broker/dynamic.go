// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"context"
	"slices"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Queues of dynamic links: each is made for a link, and goes with it or with its connection, whichever ends first.

// dynamicPrefix begins the names of such queues.
const dynamicPrefix = "amqp-temporary."

// temporaryGrace is how long a queue of a dynamic link outlasts its last consumer if it could not be removed with its
// connection, because this node was lost.
const temporaryGrace = time.Hour

// makeDynamic makes the queue of a dynamic link: it goes with its connection.
func (c *conn) makeDynamic(ctx context.Context, topic bool) (string, error) {
	name := dynamicPrefix + uuid.NewString()
	_, err := c.queues.CreateQueue(ctx, &pb.CreateQueueRequest{
		Name: name, Topic: topic, Config: &pb.QueueConfig{TemporaryGrace: durationpb.New(temporaryGrace)},
	})
	return name, err
}

// deleteNode removes a queue of a dynamic link.
func (c *conn) deleteNode(ctx context.Context, name string) {
	if _, err := c.queues.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: name}); err != nil {
		c.log.Debug("temporary queue of a closed connection not deleted", zap.Error(err))
	}
}

// deleteNodes removes the queues that go with the connection.
func (c *conn) deleteNodes() {
	c.mu.Lock()
	nodes := c.nodes
	c.nodes = nil
	c.mu.Unlock()
	if len(nodes) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.calls), closeLimit)
	defer cancel()
	for _, name := range nodes {
		c.deleteNode(ctx, name)
	}
}

// dropNode removes a queue that was to go with the connection.
func (c *conn) dropNode(name string) {
	c.mu.Lock()
	mine := c.forgetNode(name)
	c.mu.Unlock()
	if !mine {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.calls), callLimit)
	defer cancel()
	c.deleteNode(ctx, name)
}

// forgetNode has a queue no longer go with the connection, and tells whether it would have: whoever is told so removes
// it. mu is held.
func (c *conn) forgetNode(name string) bool {
	i := slices.Index(c.nodes, name)
	if i < 0 {
		return false
	}
	c.nodes = slices.Delete(c.nodes, i, i+1)
	return true
}
