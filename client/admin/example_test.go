// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Create a queue with a dead-letter queue, and list all queues.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	c, err := client.Open(ctx, "lockstep://node-a:7420,node-b:7420")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	adm := admin.New(c)
	if _, _, err := adm.CreateQueue(ctx, "dead", admin.CreateQueueOptions{IfNotExists: true}); err != nil {
		fmt.Println(err)
		return
	}
	_, created, err := adm.CreateQueue(ctx, "orders", admin.CreateQueueOptions{
		Config: admin.QueueConfig{MaxDeliveries: 5, DeadLetter: "dead"}, IfNotExists: true,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("created:", created)
	for q, err := range adm.Queues(ctx, "") {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(q.Name, q.Messages)
	}
}

// Retry a purge until its outcome is known. A retry does not remove messages published in the meantime.
func ExampleRequest() {
	var adm *admin.Client
	var r admin.Request
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		purged, err := adm.As(&r).PurgeQueue(ctx, "orders", "")
		cancel()
		if !errors.Is(err, client.ErrOutcomeUnknown) || errors.Is(err, client.ErrOutcomeLost) {
			fmt.Println(purged, err)
			return
		}
	}
}

// Request the status of one node.
func ExampleNode_Status() {
	var adm *admin.Client
	node, err := adm.Node("node-a:7420")
	if err != nil {
		fmt.Println(err)
		return
	}
	status, err := node.Status(context.Background())
	fmt.Println(status.GetRole(), err)
}

// Publish a message every night.
func ExampleClient_PutSchedule() {
	var adm *admin.Client
	s, err := adm.PutSchedule(context.Background(), &pb.Schedule{
		Name: "nightly", Queue: "jobs", Cron: "0 2 * * *", TimeZone: "Europe/Berlin",
		Message: &pb.Message{Body: []byte(`{"job":"cleanup"}`), ContentType: "application/json"},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("next at", s.GetNextAt().AsTime())
}
