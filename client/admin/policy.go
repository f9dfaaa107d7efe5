// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/reflect/protoreflect"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Policy contains defaults and upper limits for the queues that match a name pattern, including queues that are
// created later. If several policies with defaults match, the one with the highest priority applies. Among policies
// with the same priority, the one with the first pattern in byte order applies. The same rule selects the policy for
// limits.
type Policy struct {
	// Pattern identifies the policy: `*` matches any sequence of characters, `?` one character.
	Pattern string
	// Priority is 0 to 1,000,000.
	Priority uint32
	// Defaults contains values of options that are not set on a queue itself. Zero values set nothing. Priorities is
	// not allowed. DeadLetter does not apply to the dead-letter queue itself, nor to queues that its dead letters lead
	// to.
	Defaults QueueConfig
	// Limits are upper limits of options.
	Limits PolicyLimits
}

// PolicyLimits are the upper limits of options, regardless of their source. 0 means no limit.
type PolicyLimits struct {
	MaxMessages, MaxBytes uint64
	MaxDeliveries         uint32
	TTL                   time.Duration
}

// LimitFields returns the names of the options that [PolicyLimits] can limit.
func LimitFields() []string { return []string{"max_messages", "max_bytes", "max_deliveries", "ttl"} }

// LimitsOf returns the options of a configuration that a policy can limit, as limits.
func LimitsOf(c QueueConfig) PolicyLimits {
	return PolicyLimits{MaxMessages: c.MaxMessages, MaxBytes: c.MaxBytes, MaxDeliveries: c.MaxDeliveries, TTL: c.TTL}
}

// Config returns the limits as a configuration. It is the inverse of [LimitsOf].
func (l PolicyLimits) Config() QueueConfig {
	return QueueConfig{MaxMessages: l.MaxMessages, MaxBytes: l.MaxBytes, MaxDeliveries: l.MaxDeliveries, TTL: l.TTL}
}

// PutPolicy creates a policy, or replaces the policy with the same pattern. It requires the operate permission.
// Errors include [client.ErrInvalid]; [client.ErrQueueNotFound] for the dead-letter queue; [client.ErrLimit] for more
// than 1,000 policies; [client.ErrRefused] while one of the nodes runs release 0.1.0.
func (c *Client) PutPolicy(ctx context.Context, p Policy) (Policy, error) {
	if err := p.Defaults.check(); err != nil {
		return Policy{}, err
	}
	limits := p.Limits.Config()
	resp, err := change(ctx, c, "set policy "+p.Pattern, &pb.PutPolicyRequest{Policy: &pb.QueuePolicy{
		Pattern: p.Pattern, Priority: p.Priority, Defaults: p.Defaults.toProto(), Limits: limits.toProto(),
	}}, pb.QueueServiceClient.PutPolicy)
	return queuePolicyFromProto(resp.GetPolicy()), err
}

// DeletePolicy deletes a policy. It requires the operate permission. Errors include [ErrNoPolicy].
func (c *Client) DeletePolicy(ctx context.Context, pattern string) error {
	_, err := change(ctx, c, "delete policy "+pattern, &pb.DeletePolicyRequest{Pattern: pattern},
		pb.QueueServiceClient.DeletePolicy)
	return err
}

// Policies returns all policies, sorted by pattern.
func (c *Client) Policies(ctx context.Context) (policies []Policy, err error) {
	resp, err := read(ctx, c, "list policies", &pb.ListPoliciesRequest{}, pb.QueueServiceClient.ListPolicies)
	for _, p := range resp.GetPolicies() {
		policies = append(policies, queuePolicyFromProto(p))
	}
	return policies, err
}

func queuePolicyFromProto(p *pb.QueuePolicy) Policy {
	return Policy{
		Pattern: p.GetPattern(), Priority: p.GetPriority(), Defaults: configFromProto(p.GetDefaults()),
		Limits: LimitsOf(configFromProto(p.GetLimits())),
	}
}

// OwnConfig contains the options that are set on a queue itself, and the policies that apply to it.
type OwnConfig struct {
	Config QueueConfig
	// Fields are the names of the options that are set on the queue itself, such as "max_deliveries". Their values can
	// be 0.
	Fields []string
	// Policy is the pattern of the policy that sets other options. LimitPolicy is the pattern of the policy with limits.
	// Each is empty if no such policy applies. Limited are the names of the options that LimitPolicy reduces to a limit.
	Policy, LimitPolicy string
	Limited             []string
}

// Source returns the source of the value of an option in Config: "queue", "policy PATTERN", or "default" for an
// option that is set by neither. name is the name of the option, such as "max_deliveries".
func (q *Queue) Source(name string) string {
	config := q.Config.toProto().ProtoReflect()
	field := config.Descriptor().Fields().ByName(protoreflect.Name(name))
	switch {
	case slices.Contains(q.Own.Limited, name):
		return "policy " + q.Own.LimitPolicy
	case slices.Contains(q.Own.Fields, name):
		return "queue"
	case field != nil && config.Has(field):
		return "policy " + q.Own.Policy
	}
	return "default"
}

func ownFromProto(q *pb.Queue) OwnConfig {
	if s := q.GetSources(); s != nil {
		return OwnConfig{
			Config: configFromProto(s.GetOwn()), Fields: s.GetOwnFields(), Policy: s.GetPolicy(),
			LimitPolicy: s.GetLimitPolicy(), Limited: s.GetLimitedFields(),
		}
	}
	own := OwnConfig{Config: configFromProto(q.GetConfig())}
	q.GetConfig().ProtoReflect().Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		own.Fields = append(own.Fields, string(f.Name()))
		return true
	})
	slices.Sort(own.Fields)
	return own
}
