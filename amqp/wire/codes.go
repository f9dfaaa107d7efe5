// SPDX-License-Identifier: Apache-2.0

package wire

const (
	codeOpen        = 0x10
	codeBegin       = 0x11
	codeAttach      = 0x12
	codeFlow        = 0x13
	codeTransfer    = 0x14
	codeDisposition = 0x15
	codeDetach      = 0x16
	codeEnd         = 0x17
	codeClose       = 0x18

	codeError    = 0x1d
	codeReceived = 0x23
	codeAccepted = 0x24
	codeRejected = 0x25
	codeReleased = 0x26
	codeModified = 0x27

	codeSource             = 0x28
	codeTarget             = 0x29
	codeCoordinator        = 0x30
	codeDeclare            = 0x31
	codeDischarge          = 0x32
	codeDeclared           = 0x33
	codeTransactionalState = 0x34

	codeSASLMechanisms = 0x40
	codeSASLInit       = 0x41
	codeSASLChallenge  = 0x42
	codeSASLResponse   = 0x43
	codeSASLOutcome    = 0x44
)

// Descriptors of the sections of a message (3.2).
const (
	SectionHeader                = 0x70
	SectionDeliveryAnnotations   = 0x71
	SectionMessageAnnotations    = 0x72
	SectionProperties            = 0x73
	SectionApplicationProperties = 0x74
	SectionData                  = 0x75
	SectionSequence              = 0x76
	SectionValue                 = 0x77
	SectionFooter                = 0x78
)

var codes = map[Symbol]uint64{ //nolint:gochecknoglobals // a table
	"amqp:open:list": codeOpen, "amqp:begin:list": codeBegin, "amqp:attach:list": codeAttach,
	"amqp:flow:list": codeFlow, "amqp:transfer:list": codeTransfer, "amqp:disposition:list": codeDisposition,
	"amqp:detach:list": codeDetach, "amqp:end:list": codeEnd, "amqp:close:list": codeClose,
	"amqp:error:list": codeError, "amqp:received:list": codeReceived, "amqp:accepted:list": codeAccepted,
	"amqp:rejected:list": codeRejected, "amqp:released:list": codeReleased, "amqp:modified:list": codeModified,
	"amqp:source:list": codeSource, "amqp:target:list": codeTarget, "amqp:coordinator:list": codeCoordinator,
	"amqp:declare:list": codeDeclare, "amqp:discharge:list": codeDischarge, "amqp:declared:list": codeDeclared,
	"amqp:transactional-state:list": codeTransactionalState, "amqp:sasl-mechanisms:list": codeSASLMechanisms,
	"amqp:sasl-init:list": codeSASLInit, "amqp:sasl-challenge:list": codeSASLChallenge,
	"amqp:sasl-response:list": codeSASLResponse, "amqp:sasl-outcome:list": codeSASLOutcome,
	"amqp:header:list": SectionHeader, "amqp:delivery-annotations:map": SectionDeliveryAnnotations,
	"amqp:message-annotations:map": SectionMessageAnnotations, "amqp:properties:list": SectionProperties,
	"amqp:application-properties:map": SectionApplicationProperties, "amqp:data:binary": SectionData,
	"amqp:amqp-sequence:list": SectionSequence, "amqp:amqp-value:*": SectionValue, "amqp:footer:map": SectionFooter,
}

// Conditions of the errors of this package.
const (
	ConditionDecode  Symbol = "amqp:decode-error"
	ConditionInvalid Symbol = "amqp:invalid-field"
	ConditionFraming Symbol = "amqp:connection:framing-error"
)

// Constructors of primitive types (1.6).
const (
	ctorDescribed = 0x00
	ctorNull      = 0x40
	ctorTrue      = 0x41
	ctorFalse     = 0x42
	ctorUint0     = 0x43
	ctorUlong0    = 0x44
	ctorList0     = 0x45
	ctorUbyte     = 0x50
	ctorByte      = 0x51
	ctorUint8     = 0x52
	ctorUlong8    = 0x53
	ctorInt8      = 0x54
	ctorLong8     = 0x55
	ctorBool      = 0x56
	ctorUshort    = 0x60
	ctorShort     = 0x61
	ctorUint      = 0x70
	ctorInt       = 0x71
	ctorFloat     = 0x72
	ctorChar      = 0x73
	ctorDecimal32 = 0x74
	ctorUlong     = 0x80
	ctorLong      = 0x81
	ctorDouble    = 0x82
	ctorTimestamp = 0x83
	ctorDecimal64 = 0x84
	ctorDecimal   = 0x94
	ctorUUID      = 0x98
	ctorBinary8   = 0xa0
	ctorString8   = 0xa1
	ctorSymbol8   = 0xa3
	ctorBinary32  = 0xb0
	ctorString32  = 0xb1
	ctorSymbol32  = 0xb3
	ctorList8     = 0xc0
	ctorMap8      = 0xc1
	ctorList32    = 0xd0
	ctorMap32     = 0xd1
	ctorArray8    = 0xe0
	ctorArray32   = 0xf0
)
