// SPDX-License-Identifier: Apache-2.0

package txn

import (
	"fmt"
	"strings"
)

// Hard limits of the encoding. A server may enforce lower limits. A higher limit requires a new version of the format.
const (
	// NoQueue is a number that no queue has. Operations on it are rejected, usually with ErrQueueNotFound.
	NoQueue = 0
	// NoSub is a number that no subscription has. Acknowledgements for it are rejected with ErrSubscriptionNotFound.
	NoSub = 1<<32 - 1
	// RetentionSub is the number of the hidden subscription of a queue with a retention.
	RetentionSub        = NoSub - 1
	MaxNameBytes        = 255
	MaxOps              = 1000
	MaxPublishMessages  = 10_000
	MaxBodyBytes        = 64 << 20
	MaxPropertyKeyBytes = 255
	MaxPropertiesBytes  = 64 << 10
	// MaxAttributeBytes is the maximum length of a standard text field of a message.
	MaxAttributeBytes = 1024
	// MaxAttributesBytes is the maximum encoded length of all standard fields and typed properties of a message, without
	// its DeadLetter.
	MaxAttributesBytes = 64 << 10
	MaxRecordBytes     = recordHeaderBytes + maxBlockBytes + MaxPropertiesBytes + MaxBodyBytes
	// maxBlockBytes is the maximum length of the attributes with their length prefix.
	maxBlockBytes = 3 + MaxAttributesBytes + maxDeadLetterBytes
	// MaxTransactionBytes is the maximum length of an encoded transaction without its envelope.
	MaxTransactionBytes = 80 << 20
	MaxRanges           = 65_536
	MaxProducerIDBytes  = 64
	MaxMetaKeyBytes     = 255
	MaxMetaValueBytes   = 64 << 10
	// MetaVersionBytes is the length of the header of an entry written by an OpSwapMeta.
	MetaVersionBytes = 16
	MaxDeliveries    = 1_000_000
	// MaxTime is the maximum duration, for example in a Config: 100 years, in milliseconds.
	MaxTime = 100 * 365 * 24 * 3600 * 1000
	// MaxMultiplier is the maximum Config.RedeliveryMultiplier, in hundredths.
	MaxMultiplier   = 100_000
	MaxPriority     = 9
	DefaultPriority = 4
	// MaxTimeMS is the latest time in a transaction or message, in milliseconds since 1970: the end of the year 9999.
	MaxTimeMS        = 253_402_300_799_999
	MaxFilterBytes   = 4 << 10
	MaxXIDBytes      = 128
	MaxPreparedBytes = 16 << 20
	MaxSubscriptions = 1000
)

// CheckName verifies a name, for example of a subscription. It must have 1 to MaxNameBytes characters of
// [A-Za-z0-9._/-] and start with a letter or digit. The error wraps ErrInvalidName.
func CheckName(name string) error { return checkName(name, "._/-") }

// CheckQueueName verifies the name of a queue or placement group. In addition to the characters of CheckName, it may
// contain { and }, and it may be the name of a partition (ParsePartition). The error wraps ErrInvalidName.
func CheckQueueName(name string) error {
	if strings.Contains(name, PartitionSign) {
		return checkPartition(name)
	}
	return checkName(name, "._/-{}")
}

// NeedsFeature reports whether the name of a queue requires failover.FeatureQueues: it contains { or }, or is the name
// of a partition.
func NeedsFeature(name string) bool { return strings.ContainsAny(name, "{}"+PartitionSign) }

func checkName(name, special string) error {
	switch {
	case name == "":
		return fmt.Errorf("%w: empty", ErrInvalidName)
	case len(name) > MaxNameBytes:
		return fmt.Errorf("%w: %d bytes, limit %d", ErrInvalidName, len(name), MaxNameBytes)
	case !isAlphanumeric(name[0]):
		return fmt.Errorf("%w: %.40q does not start with a letter or digit", ErrInvalidName, name)
	}
	for i := 1; i < len(name); i++ {
		c := name[i]
		if !isAlphanumeric(c) && strings.IndexByte(special, c) < 0 {
			return fmt.Errorf("%w: %.40q contains %q; only A-Z a-z 0-9 %s are allowed", ErrInvalidName, name, c,
				strings.Join(strings.Split(special, ""), " "))
		}
	}
	return nil
}

func isAlphanumeric(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
}
