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

const dynamicPrefix = "amqp-temporary."

// temporaryGrace is the lifetime of a dynamic queue after its last consumer has detached, if this node fails before
// it deletes the queue.
const temporaryGrace = time.Hour

// createDynamic creates the queue of a dynamic link. The queue is deleted when the link is closed, or when its
// connection ends.
func (c *conn) createDynamic(ctx context.Context, topic bool) (string, error) {
	name := dynamicPrefix + uuid.NewString()
	_, err := c.queues.CreateQueue(ctx, &pb.CreateQueueRequest{
		Name: name, Topic: topic, Config: &pb.QueueConfig{TemporaryGrace: durationpb.New(temporaryGrace)},
	})
	return name, err
}

func (c *conn) deleteNode(ctx context.Context, name string) {
	if _, err := c.queues.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: name}); err != nil {
		c.log.Debug("temporary queue of a closed connection not deleted", zap.Error(err))
	}
}

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

// dropNode deletes a dynamic queue before its connection ends.
func (c *conn) dropNode(name string) {
	c.mu.Lock()
	mine := c.removeNode(name)
	c.mu.Unlock()
	if !mine {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.calls), callLimit)
	defer cancel()
	c.deleteNode(ctx, name)
}

// removeNode removes a queue from the dynamic queues of the connection. It returns false if the queue is not one of
// them; otherwise the caller deletes it. mu is held.
func (c *conn) removeNode(name string) bool {
	i := slices.Index(c.nodes, name)
	if i < 0 {
		return false
	}
	c.nodes = slices.Delete(c.nodes, i, i+1)
	return true
}
