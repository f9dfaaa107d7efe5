// SPDX-License-Identifier: Apache-2.0

package wire

// Types of AMQP values that have no unique Go type. Other values are nil (null), bool, uint8 (ubyte), uint16
// (ushort), uint32 (uint), uint64 (ulong), int8 (byte), int16 (short), int32 (int), int64 (long), float32, float64
// (double), []byte (binary) and string.
type (
	Symbol    string     // ASCII
	Char      rune       // a Unicode code point
	Timestamp int64      // milliseconds since 1970, UTC
	UUID      [16]byte   // as in RFC 4122
	Decimal   string     // IEEE 754-2008, of 4, 8 or 16 bytes
	List      []any      // values of any types
	Map       []MapEntry // in order: some maps are ordered, and all are forwarded unchanged
	Array     []any      // values of one type
	// Described is a value with a descriptor that has no type in this package.
	Described struct {
		Descriptor any // usually a uint64 or a Symbol
		Value      any
	}
	// Fields is a map with symbols as keys: properties of a connection or link, annotations.
	Fields = Map
)

// MapEntry is one entry of a Map.
type MapEntry struct {
	Key, Value any
}

// Get returns the value of a key, and whether it exists. key must have a comparable type.
func (m Map) Get(key any) (any, bool) {
	for i := range m {
		if m[i].Key == key {
			return m[i].Value, true
		}
	}
	return nil, false
}

// Optional is a field that may be absent.
type Optional[T any] struct {
	Value T
	Set   bool
}

// Some returns a field that is present.
func Some[T any](v T) Optional[T] { return Optional[T]{Value: v, Set: true} }

// Or returns the field's value, or v if it is absent.
func (o Optional[T]) Or(v T) T {
	if o.Set {
		return o.Value
	}
	return v
}

// Role is the role of the link endpoint that sends a performative: false is the sender.
type Role bool

// Roles.
const (
	RoleSender   Role = false
	RoleReceiver Role = true
)

// SenderSettleMode determines whether deliveries are sent settled (2.8.2).
type SenderSettleMode uint8

// Settle modes of a sender.
const (
	SenderUnsettled SenderSettleMode = 0
	SenderSettled   SenderSettleMode = 1
	SenderMixed     SenderSettleMode = 2
)

// ReceiverSettleMode determines whether a receiver settles first (2.8.3).
type ReceiverSettleMode uint8

// Settle modes of a receiver.
const (
	ReceiverFirst  ReceiverSettleMode = 0
	ReceiverSecond ReceiverSettleMode = 1
)

// TerminusDurability determines which state of a terminus outlives its link (3.5.5).
type TerminusDurability uint32

// Durabilities.
const (
	DurabilityNone          TerminusDurability = 0
	DurabilityConfiguration TerminusDurability = 1
	DurabilityUnsettled     TerminusDurability = 2
)

// Expiry policies of a terminus (3.5.6).
const (
	ExpiryLinkDetach Symbol = "link-detach"
	ExpirySessionEnd Symbol = "session-end"
	ExpiryNever      Symbol = "never"
)
