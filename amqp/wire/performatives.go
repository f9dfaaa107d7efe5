// SPDX-License-Identifier: Apache-2.0

package wire

// Performative is the body of an AMQP frame (2.7), or of a SASL frame (5.3.3).
type Performative interface{ performative() }

// Performatives of connections, sessions and links (2.7.1 to 2.7.9), with the names and defaults of the specification.
// A Transfer is followed by a message or a part of one.
type (
	Open struct {
		ContainerID         string
		Hostname            string
		MaxFrameSize        uint32 // default 4294967295
		ChannelMax          uint16 // default 65535
		IdleTimeOut         uint32 // milliseconds; 0: none
		OutgoingLocales     []Symbol
		IncomingLocales     []Symbol
		OfferedCapabilities []Symbol
		DesiredCapabilities []Symbol
		Properties          Fields
	}
	Begin struct {
		RemoteChannel       Optional[uint16]
		NextOutgoingID      uint32
		IncomingWindow      uint32
		OutgoingWindow      uint32
		HandleMax           uint32 // default 4294967295
		OfferedCapabilities []Symbol
		DesiredCapabilities []Symbol
		Properties          Fields
	}
	Attach struct {
		Name                 string
		Handle               uint32
		Role                 Role
		SenderSettleMode     SenderSettleMode // default SenderMixed
		ReceiverSettleMode   ReceiverSettleMode
		Source               *Source
		Target               Target // nil if null
		Unsettled            Map    // delivery tag as string of bytes to DeliveryState
		IncompleteUnsettled  bool
		InitialDeliveryCount Optional[uint32]
		MaxMessageSize       uint64 // 0: no limit
		OfferedCapabilities  []Symbol
		DesiredCapabilities  []Symbol
		Properties           Fields
	}
	Flow struct {
		NextIncomingID Optional[uint32]
		IncomingWindow uint32
		NextOutgoingID uint32
		OutgoingWindow uint32
		Handle         Optional[uint32] // not set: for the session only
		DeliveryCount  Optional[uint32]
		LinkCredit     Optional[uint32]
		Available      Optional[uint32]
		Drain          bool
		Echo           bool
		Properties     Fields
	}
	Transfer struct {
		Handle             uint32
		DeliveryID         Optional[uint32]
		DeliveryTag        []byte
		MessageFormat      Optional[uint32]
		Settled            Optional[bool]
		More               bool
		ReceiverSettleMode Optional[ReceiverSettleMode]
		State              DeliveryState // nil if null
		Resume             bool
		Aborted            bool
		Batchable          bool
	}
	Disposition struct {
		Role      Role
		First     uint32
		Last      uint32 // default First
		Settled   bool
		State     DeliveryState
		Batchable bool
	}
	Detach struct {
		Handle uint32
		Closed bool
		Error  *Error
	}
	End   struct{ Error *Error }
	Close struct{ Error *Error }
)

// Performatives of the SASL exchange (5.3.3).
type (
	SASLMechanisms struct{ Mechanisms []Symbol }
	SASLInit       struct {
		Mechanism       Symbol
		InitialResponse []byte
		Hostname        string
	}
	SASLChallenge struct{ Challenge []byte }
	SASLResponse  struct{ Response []byte }
	SASLOutcome   struct {
		Code           SASLCode
		AdditionalData []byte
	}
	SASLCode uint8
)

// SASL outcomes (5.3.3.6).
const (
	SASLOK      SASLCode = 0
	SASLAuth    SASLCode = 1
	SASLSysTemp SASLCode = 4
)

func (*Open) performative()           {}
func (*Begin) performative()          {}
func (*Attach) performative()         {}
func (*Flow) performative()           {}
func (*Transfer) performative()       {}
func (*Disposition) performative()    {}
func (*Detach) performative()         {}
func (*End) performative()            {}
func (*Close) performative()          {}
func (*SASLMechanisms) performative() {}
func (*SASLInit) performative()       {}
func (*SASLChallenge) performative()  {}
func (*SASLResponse) performative()   {}
func (*SASLOutcome) performative()    {}

// Error is the reason for an error or refusal (2.8.14).
type Error struct {
	Condition   Symbol
	Description string
	Info        Fields
}

// Error returns the condition and the description.
func (e *Error) Error() string { return string(e.Condition) + ": " + e.Description }

// Source is the source of a link's messages (3.5.3).
type Source struct {
	Address               any // usually nil or a string
	Durable               TerminusDurability
	ExpiryPolicy          Symbol // default ExpirySessionEnd
	Timeout               uint32 // seconds
	Dynamic               bool
	DynamicNodeProperties Fields
	DistributionMode      Symbol        // "move", "copy" or ""
	Filter                Map           // usually symbol to Described
	DefaultOutcome        DeliveryState // nil if null
	Outcomes              []Symbol
	Capabilities          []Symbol
}

// Target is the target of a link's messages: *Node or *Coordinator.
type Target interface{ target() }

type (
	// Node is a target that stores messages (3.5.4).
	Node struct {
		Address               any // usually nil or a string
		Durable               TerminusDurability
		ExpiryPolicy          Symbol // default ExpirySessionEnd
		Timeout               uint32 // seconds
		Dynamic               bool
		DynamicNodeProperties Fields
		Capabilities          []Symbol
	}
	// Coordinator is the target of a link that controls transactions (4.5.1).
	Coordinator struct{ Capabilities []Symbol }
)

func (*Node) target()        {}
func (*Coordinator) target() {}

// DeliveryState is the state of a delivery. States without fields are values, to avoid allocations.
type DeliveryState interface{ deliveryState() }

type (
	// Received reports how much of a delivery was received (3.4.1).
	Received struct {
		SectionNumber uint32
		SectionOffset uint64
	}
	// Accepted is the outcome of a processed delivery (3.4.2).
	Accepted struct{}
	// Rejected is the outcome of an invalid delivery (3.4.3).
	Rejected struct{ Error *Error }
	// Released is the outcome of a delivery that was not processed (3.4.4).
	Released struct{}
	// Modified is the outcome of a delivery that was modified and not processed (3.4.5).
	Modified struct {
		DeliveryFailed     bool
		UndeliverableHere  bool
		MessageAnnotations Fields
	}
	// Declared is the outcome of a Declare (4.5.5).
	Declared struct{ TxnID []byte }
	// TransactionalState is the state of a delivery within a transaction (4.5.6).
	TransactionalState struct {
		TxnID   []byte
		Outcome DeliveryState // nil if null
	}
)

func (*Received) deliveryState()           {}
func (Accepted) deliveryState()            {}
func (*Rejected) deliveryState()           {}
func (Released) deliveryState()            {}
func (*Modified) deliveryState()           {}
func (*Declared) deliveryState()           {}
func (*TransactionalState) deliveryState() {}

// Declare and Discharge are the bodies of messages to a coordinator.
type (
	// Declare declares a transaction (4.5.2).
	Declare struct{ GlobalID any }
	// Discharge ends a transaction (4.5.3).
	Discharge struct {
		TxnID []byte
		Fail  bool
	}
)
