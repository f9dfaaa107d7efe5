// SPDX-License-Identifier: Apache-2.0

package txn

import "fmt"

// Hard limits of the encoding. A server may set lower ones; none can be raised without a new version of the format.
const (
	// NoQueue is the number of no queue: an operation on it is refused with ErrQueueNotFound.
	NoQueue = 0
	// NoSub is the number of no subscription: acknowledging for it is refused with ErrSubscriptionNotFound.
	NoSub = 1<<32 - 1
	// RetentionSub is the number of the hidden subscription that keeps the messages of a queue that has a retention.
	RetentionSub = NoSub - 1
	// MaxNameBytes is the greatest length of a queue's or subscription's name, in bytes.
	MaxNameBytes = 255
	// MaxOps is the greatest number of operations in one transaction.
	MaxOps = 1000
	// MaxPublishMessages is the greatest number of messages in one publish operation.
	MaxPublishMessages = 10_000
	// MaxBodyBytes is the greatest length of a message's body.
	MaxBodyBytes = 64 << 20
	// MaxPropertyKeyBytes is the greatest length of a property's key; the shortest is 1.
	MaxPropertyKeyBytes = 255
	// MaxPropertiesBytes is the greatest length of all properties of a message, as encoded.
	MaxPropertiesBytes = 64 << 10
	// MaxAttributeBytes is the greatest length of one of the standard fields of a message.
	MaxAttributeBytes = 1024
	// MaxAttributesBytes is the greatest length of all standard fields of a message and of its properties that are not
	// texts, as encoded.
	MaxAttributesBytes = 64 << 10
	// MaxRecordBytes is the greatest length of an encoded message, its size field included.
	MaxRecordBytes = recordHeaderBytes + maxBlockBytes + MaxPropertiesBytes + MaxBodyBytes
	// maxBlockBytes is the greatest length of the attributes with their own length.
	maxBlockBytes = 3 + MaxAttributesBytes + maxDeadLetterBytes
	// MaxTransactionBytes is the greatest length of an encoded transaction. A log frame must be able to hold it.
	MaxTransactionBytes = 80 << 20
	// MaxRanges is the greatest number of ranges in one acknowledge or release operation.
	MaxRanges = 65_536
	// MaxProducerIDBytes is the greatest length of a producer's id; the shortest is 1.
	MaxProducerIDBytes = 64
	// MaxMetaKeyBytes is the greatest length of the key of one of the pair's own entries; the shortest is 1.
	MaxMetaKeyBytes = 255
	// MaxMetaValueBytes is the greatest length of its value.
	MaxMetaValueBytes = 64 << 10
	// MaxDeliveries is the greatest Config.MaxDeliveries.
	MaxDeliveries = 1_000_000
	// MaxTime is the longest time in a Config, and in an attribute that says how long: 100 years, in milliseconds.
	MaxTime = 100 * 365 * 24 * 3600 * 1000
	// MaxMultiplier is the greatest Config.RedeliveryMultiplier, in hundredths.
	MaxMultiplier = 100_000
	// MaxPriority is the greatest priority of a message.
	MaxPriority = 9
	// DefaultPriority is that of a message that has none.
	DefaultPriority = 4
	// MaxTimeMS is the latest time that a message may name, in milliseconds since 1970: the end of the year 9999.
	MaxTimeMS = 253_402_300_799_999
	// MaxFilterBytes is the greatest length of a subscription's filter.
	MaxFilterBytes = 4 << 10
	// MaxXIDBytes is the greatest length of the name of a prepared transaction; the shortest is 1.
	MaxXIDBytes = 128
	// MaxPreparedBytes is the greatest length of a prepared transaction, as encoded.
	MaxPreparedBytes = 16 << 20
	// MaxSubscriptions is the greatest number of subscriptions of one queue.
	MaxSubscriptions = 1000
)

// CheckName tells whether name can name a queue or a subscription: 1 to MaxNameBytes characters of [A-Za-z0-9._/-], the
// first one a letter or digit. The error wraps ErrInvalidName.
func CheckName(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: it is empty", ErrInvalidName)
	case len(name) > MaxNameBytes:
		return fmt.Errorf("%w: %d bytes long, the limit is %d", ErrInvalidName, len(name), MaxNameBytes)
	case !isAlphanumeric(name[0]):
		return fmt.Errorf("%w: %.40q does not begin with a letter or digit", ErrInvalidName, name)
	}
	for i := 1; i < len(name); i++ {
		c := name[i]
		if !isAlphanumeric(c) && c != '.' && c != '_' && c != '/' && c != '-' {
			return fmt.Errorf("%w: %.40q has %q in it; only A-Z a-z 0-9 . _ / - are possible", ErrInvalidName, name, c)
		}
	}
	return nil
}

func isAlphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}
