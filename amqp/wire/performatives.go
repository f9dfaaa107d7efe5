// SPDX-License-Identifier: Apache-2.0

package wire

// Performative is the body of an AMQP frame (2.7), or of a SASL frame (5.3.3).
type Performative interface{ performative() }

// Performatives of connections, sessions and links, with the names and defaults of the specification.
type (
	// Open begins a connection (2.7.1).
	Open struct {
		ContainerID         string
		Hostname            string
		MaxFrameSize        uint32 // 4294967295 if it is not sent
		ChannelMax          uint16 // 65535 if it is not sent
		IdleTimeOut         uint32 // milliseconds; 0: none
		OutgoingLocales     []Symbol
		IncomingLocales     []Symbol
		OfferedCapabilities []Symbol
		DesiredCapabilities []Symbol
		Properties          Fields
	}
	// Begin begins a session (2.7.2).
	Begin struct {
		RemoteChannel       Optional[uint16]
		NextOutgoingID      uint32
		IncomingWindow      uint32
		OutgoingWindow      uint32
		HandleMax           uint32 // 4294967295 if it is not sent
		OfferedCapabilities []Symbol
		DesiredCapabilities []Symbol
		Properties          Fields
	}
	// Attach makes a link (2.7.3).
	Attach struct {
		Name                 string
		Handle               uint32
		Role                 Role
		SenderSettleMode     SenderSettleMode // SenderMixed if it is not sent
		ReceiverSettleMode   ReceiverSettleMode
		Source               *Source
		Target               Target // nil if it is null
		Unsettled            Map    // delivery tag as string of bytes to DeliveryState
		IncompleteUnsettled  bool
		InitialDeliveryCount Optional[uint32]
		MaxMessageSize       uint64 // 0: no limit
		OfferedCapabilities  []Symbol
		DesiredCapabilities  []Symbol
		Properties           Fields
	}
	// Flow updates windows and credit (2.7.4).
	Flow struct {
		NextIncomingID Optional[uint32]
		IncomingWindow uint32
		NextOutgoingID uint32
		OutgoingWindow uint32
		Handle         Optional[uint32] // not set: for the session alone
		DeliveryCount  Optional[uint32]
		LinkCredit     Optional[uint32]
		Available      Optional[uint32]
		Drain          bool
		Echo           bool
		Properties     Fields
	}
	// Transfer carries a message or a part of one, which follows it in the frame (2.7.5).
	Transfer struct {
		Handle             uint32
		DeliveryID         Optional[uint32]
		DeliveryTag        []byte
		MessageFormat      Optional[uint32]
		Settled            Optional[bool]
		More               bool
		ReceiverSettleMode Optional[ReceiverSettleMode]
		State              DeliveryState // nil if it is null
		Resume             bool
		Aborted            bool
		Batchable          bool
	}
	// Disposition tells the state of deliveries (2.7.6).
	Disposition struct {
		Role      Role
		First     uint32
		Last      uint32 // First if it is not sent
		Settled   bool
		State     DeliveryState
		Batchable bool
	}
	// Detach takes a link from its session (2.7.7).
	Detach struct {
		Handle uint32
		Closed bool
		Error  *Error
	}
	// End ends a session (2.7.8).
	End struct{ Error *Error }
	// Close ends a connection (2.7.9).
	Close struct{ Error *Error }
)

// SASL performatives (5.3.3).
type (
	// SASLMechanisms names what the server takes.
	SASLMechanisms struct{ Mechanisms []Symbol }
	// SASLInit chooses one.
	SASLInit struct {
		Mechanism       Symbol
		InitialResponse []byte
		Hostname        string
	}
	// SASLChallenge asks the client.
	SASLChallenge struct{ Challenge []byte }
	// SASLResponse answers.
	SASLResponse struct{ Response []byte }
	// SASLOutcome ends the exchange.
	SASLOutcome struct {
		Code           SASLCode
		AdditionalData []byte
	}
	// SASLCode is how the exchange has ended.
	SASLCode uint8
)

// SASL outcomes (5.3.3.6).
const (
	SASLOK      SASLCode = 0
	SASLAuth    SASLCode = 1
	SASLSys     SASLCode = 2
	SASLSysPerm SASLCode = 3
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

// Error says why something was ended or refused (2.8.14).
type Error struct {
	Condition   Symbol
	Description string
	Info        Fields
}

// Error tells condition and description.
func (e *Error) Error() string { return string(e.Condition) + ": " + e.Description }

// Source is where messages of a link come from (3.5.3).
type Source struct {
	Address               any // nil, or a string usually
	Durable               TerminusDurability
	ExpiryPolicy          Symbol // ExpirySessionEnd if it is not sent
	Timeout               uint32 // seconds
	Dynamic               bool
	DynamicNodeProperties Fields
	DistributionMode      Symbol        // "move", "copy" or ""
	Filter                Map           // symbol to Described, usually
	DefaultOutcome        DeliveryState // nil if it is null
	Outcomes              []Symbol
	Capabilities          []Symbol
}

// Target is where messages of a link go to: *Node or *Coordinator.
type Target interface{ target() }

type (
	// Node is a target that keeps messages (3.5.4).
	Node struct {
		Address               any // nil, or a string usually
		Durable               TerminusDurability
		ExpiryPolicy          Symbol // ExpirySessionEnd if it is not sent
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

// DeliveryState is what has become of a delivery. Values without fields are used as values, so that they cost no
// allocation.
type DeliveryState interface{ deliveryState() }

type (
	// Received tells how much of a delivery has come (3.4.1).
	Received struct {
		SectionNumber uint32
		SectionOffset uint64
	}
	// Accepted is the outcome of one that was processed (3.4.2).
	Accepted struct{}
	// Rejected is the outcome of one that is invalid and cannot be processed (3.4.3).
	Rejected struct{ Error *Error }
	// Released is the outcome of one that was not and will not be processed (3.4.4).
	Released struct{}
	// Modified is the outcome of one that was modified and was not and will not be processed (3.4.5).
	Modified struct {
		DeliveryFailed     bool
		UndeliverableHere  bool
		MessageAnnotations Fields
	}
	// Declared is the outcome of a Declare (4.5.5).
	Declared struct{ TxnID []byte }
	// TransactionalState is the state of a delivery within a transaction (4.5.8).
	TransactionalState struct {
		TxnID   []byte
		Outcome DeliveryState // nil if it is null
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
	// Declare asks for a transaction (4.5.2).
	Declare struct{ GlobalID any }
	// Discharge ends one (4.5.3).
	Discharge struct {
		TxnID []byte
		Fail  bool
	}
)
