// SPDX-License-Identifier: Apache-2.0

package wire

import "math"

// reused are the performatives that occur for every message; a Reader reuses their memory.
type reused struct {
	transfer    Transfer
	flow        Flow
	disposition Disposition
}

// decodePerformative decodes a performative, and returns it with the payload after it.
func decodePerformative(b []byte, into *reused) (Performative, []byte, error) {
	d := decoder{b: b}
	code, known, err := d.descriptor()
	if err != nil {
		return nil, nil, err
	}
	var p Performative
	switch code {
	case codeTransfer:
		err, p = d.transfer(&into.transfer), &into.transfer
	case codeFlow:
		err, p = d.flow(&into.flow), &into.flow
	case codeDisposition:
		err, p = d.disposition(&into.disposition), &into.disposition
	case codeOpen:
		p, err = d.open()
	case codeBegin:
		p, err = d.begin()
	case codeAttach:
		p, err = d.attach()
	case codeDetach:
		p, err = d.detach()
	case codeEnd:
		var e *Error
		e, err = d.ending("end")
		p = &End{Error: e}
	case codeClose:
		var e *Error
		e, err = d.ending("close")
		p = &Close{Error: e}
	default:
		known = false
	}
	if err == nil && !known {
		err = decodeError("%#x is not an AMQP performative", code)
	}
	if err != nil {
		return nil, nil, err
	}
	return p, d.b, nil
}

func decodeSASL(b []byte) (p Performative, err error) {
	d := decoder{b: b}
	code, known, err := d.descriptor()
	if err != nil {
		return nil, err
	}
	if !known || code < codeSASLMechanisms || code > codeSASLOutcome {
		return nil, decodeError("%#x is not a SASL performative", code)
	}
	r := d.openList("sasl performative")
	switch code {
	case codeSASLMechanisms:
		p = &SASLMechanisms{Mechanisms: r.symbols()}
	case codeSASLInit:
		p = &SASLInit{
			Mechanism: must(&r, r.optionalSymbol(), "mechanism"), InitialResponse: r.binary(), Hostname: r.string(),
		}
	case codeSASLChallenge:
		p = &SASLChallenge{Challenge: r.mustBinary("challenge")}
	case codeSASLResponse:
		p = &SASLResponse{Response: r.mustBinary("response")}
	default:
		p = &SASLOutcome{Code: SASLCode(must(&r, r.ubyte(), "code")), AdditionalData: r.binary()}
	}
	if err := r.close(); err != nil {
		return nil, err
	}
	if len(d.b) > 0 {
		return nil, decodeError("%d bytes after a SASL performative", len(d.b))
	}
	return p, nil
}

func (d *decoder) open() (*Open, error) {
	r := d.openList("open")
	p := &Open{
		ContainerID: must(&r, r.optionalString(), "container-id"), Hostname: r.string(),
		MaxFrameSize: r.uint(math.MaxUint32), ChannelMax: r.ushort().Or(math.MaxUint16), IdleTimeOut: r.uint(0),
		OutgoingLocales: r.symbols(), IncomingLocales: r.symbols(),
		OfferedCapabilities: r.symbols(), DesiredCapabilities: r.symbols(), Properties: r.dict(),
	}
	return p, r.close()
}

func (d *decoder) begin() (*Begin, error) {
	r := d.openList("begin")
	p := &Begin{
		RemoteChannel: r.ushort(), NextOutgoingID: r.mustUint("next-outgoing-id"),
		IncomingWindow: r.mustUint("incoming-window"), OutgoingWindow: r.mustUint("outgoing-window"),
		HandleMax: r.uint(math.MaxUint32), OfferedCapabilities: r.symbols(), DesiredCapabilities: r.symbols(),
		Properties: r.dict(),
	}
	return p, r.close()
}

func (d *decoder) attach() (*Attach, error) {
	r := d.openList("attach")
	p := &Attach{
		Name: must(&r, r.optionalString(), "name"), Handle: r.mustUint("handle"),
		Role: Role(must(&r, r.optionalBool(), "role")),
	}
	p.SenderSettleMode = SenderSettleMode(r.ubyte().Or(uint8(SenderMixed)))
	p.ReceiverSettleMode = ReceiverSettleMode(r.ubyte().Or(uint8(ReceiverFirst)))
	if p.SenderSettleMode > SenderMixed || p.ReceiverSettleMode > ReceiverSecond {
		r.invalid("an unknown settle mode")
	}
	if code, ok := r.described(); ok {
		s, err := r.source(code)
		r.keep(err)
		p.Source = s
	}
	if code, ok := r.described(); ok {
		t, err := r.target(code)
		r.keep(err)
		p.Target = t
	}
	p.Unsettled = r.unsettled()
	p.IncompleteUnsettled = r.flag()
	p.InitialDeliveryCount, p.MaxMessageSize = r.optionalUint(), r.ulong().Value
	p.OfferedCapabilities, p.DesiredCapabilities, p.Properties = r.symbols(), r.symbols(), r.dict()
	return p, r.close()
}

func (r *reader) unsettled() Map {
	if !r.more() {
		return nil
	}
	c := r.constructor()
	if c != ctorMap8 && c != ctorMap32 {
		r.fail("has %#02x instead of a map", c)
		return nil
	}
	in, count, err := r.elements(c)
	if err != nil {
		r.keep(err)
		return nil
	}
	if count%2 != 0 {
		r.fail("has a map of %d values", count)
		return nil
	}
	m := make(Map, 0, min(count/2, maxAhead))
	for range count / 2 {
		tag, err := in.value()
		b, ok := tag.([]byte)
		if err == nil && !ok {
			err = decodeError("%s has %T instead of a delivery tag", r.name, tag)
		}
		if err != nil {
			r.keep(err)
			return nil
		}
		e := MapEntry{Key: string(b)}
		if !in.isNull() {
			if e.Value, err = in.deliveryState(); err != nil {
				r.keep(err)
				return nil
			}
		}
		m = append(m, e)
	}
	if len(in.b) > 0 {
		r.fail("has %d bytes after the unsettled deliveries", len(in.b))
	}
	return m
}

func (d *decoder) flow(p *Flow) error {
	r := d.openList("flow")
	p.NextIncomingID, p.IncomingWindow = r.optionalUint(), r.mustUint("incoming-window")
	p.NextOutgoingID, p.OutgoingWindow = r.mustUint("next-outgoing-id"), r.mustUint("outgoing-window")
	p.Handle, p.DeliveryCount, p.LinkCredit = r.optionalUint(), r.optionalUint(), r.optionalUint()
	p.Available, p.Drain, p.Echo, p.Properties = r.optionalUint(), r.flag(), r.flag(), r.dict()
	return r.close()
}

func (d *decoder) transfer(p *Transfer) error {
	r := d.openList("transfer")
	p.Handle, p.DeliveryID, p.DeliveryTag = r.mustUint("handle"), r.optionalUint(), r.alias()
	if len(p.DeliveryTag) > 32 {
		r.invalid("a delivery tag of more than 32 bytes")
	}
	p.MessageFormat = r.optionalUint()
	p.Settled, p.More = r.optionalBool(), r.flag()
	mode := r.ubyte()
	if ReceiverSettleMode(mode.Value) > ReceiverSecond {
		r.invalid("an unknown settle mode")
	}
	p.ReceiverSettleMode = Optional[ReceiverSettleMode]{Value: ReceiverSettleMode(mode.Value), Set: mode.Set}
	p.State, p.Resume, p.Aborted, p.Batchable = r.state(), r.flag(), r.flag(), r.flag()
	return r.close()
}

func (d *decoder) disposition(p *Disposition) error {
	r := d.openList("disposition")
	p.Role, p.First = Role(must(&r, r.optionalBool(), "role")), r.mustUint("first")
	p.Last, p.Settled, p.State, p.Batchable = r.uint(p.First), r.flag(), r.state(), r.flag()
	return r.close()
}

func (d *decoder) detach() (*Detach, error) {
	r := d.openList("detach")
	p := &Detach{Handle: r.mustUint("handle"), Closed: r.flag(), Error: r.error()}
	return p, r.close()
}

func (d *decoder) ending(name string) (*Error, error) {
	r := d.openList(name)
	e := r.error()
	return e, r.close()
}

func (d *decoder) error(code uint64) (*Error, error) {
	if code != codeError {
		return nil, decodeError("%#x is not an error", code)
	}
	r := d.openList("error")
	e := &Error{Condition: must(&r, r.optionalSymbol(), "condition"), Description: r.string(), Info: r.dict()}
	return e, r.close()
}

func (d *decoder) source(code uint64) (*Source, error) {
	if code != codeSource {
		return nil, decodeError("%#x is not a source", code)
	}
	r := d.openList("source")
	s := &Source{
		Address: r.value(), Durable: r.durability(), ExpiryPolicy: r.symbol(ExpirySessionEnd),
		Timeout: r.uint(0), Dynamic: r.flag(), DynamicNodeProperties: r.dict(), DistributionMode: r.symbol(""),
		Filter: r.dict(), DefaultOutcome: r.state(), Outcomes: r.symbols(), Capabilities: r.symbols(),
	}
	return s, r.close()
}

func (r *reader) durability() TerminusDurability {
	v := TerminusDurability(r.uint(0))
	if v > DurabilityUnsettled {
		r.invalid("an unknown durability")
	}
	return v
}

func (d *decoder) target(code uint64) (Target, error) {
	switch code {
	case codeTarget:
		r := d.openList("target")
		t := &Node{
			Address: r.value(), Durable: r.durability(), ExpiryPolicy: r.symbol(ExpirySessionEnd),
			Timeout: r.uint(0), Dynamic: r.flag(), DynamicNodeProperties: r.dict(), Capabilities: r.symbols(),
		}
		return t, r.close()
	case codeCoordinator:
		r := d.openList("coordinator")
		c := &Coordinator{Capabilities: r.symbols()}
		return c, r.close()
	default:
		return nil, decodeError("%#x is not a target", code)
	}
}

func (d *decoder) deliveryState() (DeliveryState, error) {
	code, known, err := d.descriptor()
	if err != nil {
		return nil, err
	}
	if !known {
		return nil, decodeError("delivery state has an unknown descriptor")
	}
	r := d.openList("delivery state")
	s := r.outcome(code)
	switch code {
	case codeReceived:
		s = &Received{
			SectionNumber: r.mustUint("section-number"), SectionOffset: must(&r, r.ulong(), "section-offset"),
		}
	case codeDeclared:
		s = &Declared{TxnID: r.mustBinary("txn-id")}
	case codeTransactionalState:
		s = &TransactionalState{TxnID: r.mustBinary("txn-id"), Outcome: r.describedOutcome()}
	}
	if s == nil {
		return nil, decodeError("%#x is not a delivery state", code)
	}
	return s, r.close()
}

// outcome decodes the fields of an outcome. It returns nil if code is not the descriptor of an outcome.
func (r *reader) outcome(code uint64) DeliveryState {
	switch code {
	case codeAccepted:
		return Accepted{}
	case codeReleased:
		return Released{}
	case codeRejected:
		return &Rejected{Error: r.error()}
	case codeModified:
		return &Modified{DeliveryFailed: r.flag(), UndeliverableHere: r.flag(), MessageAnnotations: r.dict()}
	default:
		return nil
	}
}

// describedOutcome decodes the outcome of a transactional state, which cannot be transactional itself.
func (r *reader) describedOutcome() DeliveryState {
	code, ok := r.described()
	if !ok {
		return nil
	}
	in := r.openList("outcome")
	s := in.outcome(code)
	if s == nil {
		r.fail("has %#x instead of an outcome", code)
		return nil
	}
	r.keep(in.close())
	return s
}
