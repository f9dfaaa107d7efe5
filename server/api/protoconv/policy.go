// SPDX-License-Identifier: Apache-2.0

package protoconv

import (
	"fmt"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/fieldmaskpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const policyPath = "redelivery"

// Policy converts the settings of a subscription that override the configuration of its queue. own is the mask of the
// overridden fields. Policy ignores the value of dead_letter. Errors wrap ErrInvalid and name the field.
func Policy(in *pb.RedeliveryPolicy) (own txn.ConfigMask, values txn.Config, err error) {
	if in == nil {
		return 0, values, nil
	}
	values, err = Config(&pb.QueueConfig{
		MaxDeliveries: in.GetMaxDeliveries(), RedeliveryDelay: in.GetRedeliveryDelay(),
		RedeliveryMultiplier: in.GetRedeliveryMultiplier(), RedeliveryMaxDelay: in.GetRedeliveryMaxDelay(),
		AckTimeout: in.GetAckTimeout(),
	})
	for field, set := range map[txn.ConfigMask]bool{
		txn.FieldMaxDeliveries: in.MaxDeliveries != nil, txn.FieldDeadLetter: in.DeadLetter != nil,
		txn.FieldRedeliveryDelay:      in.RedeliveryDelay != nil,
		txn.FieldRedeliveryMultiplier: in.RedeliveryMultiplier != nil,
		txn.FieldRedeliveryMaxDelay:   in.RedeliveryMaxDelay != nil,
		txn.FieldAckTimeout:           in.AckTimeout != nil,
	} {
		if set {
			own |= field
		}
	}
	return own, values, err
}

// PolicyToProto converts the overrides of a subscription. It returns nil without overrides. deadLetter is the name
// of the overriding dead-letter queue.
func PolicyToProto(o *txn.SubscriptionOptions, deadLetter string) *pb.RedeliveryPolicy {
	if o.Own == 0 {
		return nil
	}
	all, out := ConfigToProto(&o.Policy, deadLetter), &pb.RedeliveryPolicy{}
	if o.Own&txn.FieldMaxDeliveries != 0 {
		out.MaxDeliveries = &all.MaxDeliveries
	}
	if o.Own&txn.FieldDeadLetter != 0 {
		out.DeadLetter = &all.DeadLetter
	}
	if o.Own&txn.FieldRedeliveryMultiplier != 0 {
		out.RedeliveryMultiplier = &all.RedeliveryMultiplier
	}
	if o.Own&txn.FieldRedeliveryDelay != 0 {
		out.RedeliveryDelay = ownDuration(all.GetRedeliveryDelay())
	}
	if o.Own&txn.FieldRedeliveryMaxDelay != 0 {
		out.RedeliveryMaxDelay = ownDuration(all.GetRedeliveryMaxDelay())
	}
	if o.Own&txn.FieldAckTimeout != 0 {
		out.AckTimeout = ownDuration(all.GetAckTimeout())
	}
	return out
}

// ownDuration returns d, or a duration of 0 if d is nil.
func ownDuration(d *durationpb.Duration) *durationpb.Duration {
	if d == nil {
		return &durationpb.Duration{}
	}
	return d
}

// SubscriptionMask converts the update mask of a subscription. filter reports whether the mask contains the
// filter. Errors wrap ErrInvalid.
func SubscriptionMask(in *fieldmaskpb.FieldMask) (filter bool, fields txn.ConfigMask, err error) {
	for _, path := range in.GetPaths() {
		known := false
		switch path {
		case "*":
			filter, fields, known = true, txn.PolicyFields, true
		case "filter":
			filter, known = true, true
		case policyPath:
			fields, known = txn.PolicyFields, true
		}
		if name, is := strings.CutPrefix(path, policyPath+"."); is && ConfigField(name)&txn.PolicyFields != 0 {
			fields |= ConfigField(name)
			known = true
		}
		if !known {
			return false, 0, fmt.Errorf("%w: update_mask: %.100q cannot be altered; must be \"filter\", "+
				"\"redelivery\" or a field of it, such as \"redelivery.max_deliveries\"", apierror.ErrInvalid,
				strings.ToValidUTF8(path, "?"))
		}
	}
	if !filter && fields == 0 {
		return false, 0, fmt.Errorf("%w: empty update_mask: must contain \"filter\" or \"redelivery\"", apierror.ErrInvalid)
	}
	return filter, fields, nil
}
