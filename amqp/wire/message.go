// SPDX-License-Identifier: Apache-2.0

package wire

// Section is one section of a message (3.2).
type Section struct {
	// Code is the descriptor, such as SectionData.
	Code uint64
	// Raw is the complete section with its descriptor; Value is the part after the descriptor. Both reference the message.
	Raw, Value []byte
}

// NextSection returns the first section of a message, or of the rest of one, without decoding it.
func NextSection(b []byte) (s Section, rest []byte, err error) {
	d := decoder{b: b}
	code, known, err := d.descriptor()
	if err != nil {
		return Section{}, nil, err
	}
	if !known || code < SectionHeader || code > SectionFooter {
		return Section{}, nil, decodeError("%#x is not a message section", code)
	}
	value := d.b
	if err := d.skip(); err != nil {
		return Section{}, nil, err
	}
	n := len(b) - len(d.b)
	return Section{Code: code, Raw: b[:n:n], Value: value[:len(value)-len(d.b)]}, d.b, nil
}

// Header contains the transport fields of a message (3.2.1).
type Header struct {
	Durable       bool
	Priority      Optional[uint8]  // default 4
	TTL           Optional[uint32] // milliseconds
	FirstAcquirer bool
	DeliveryCount uint32 // earlier failed attempts
}

// DecodeHeader decodes the value of a header section.
func DecodeHeader(value []byte) (h Header, err error) {
	d := decoder{b: value}
	r, err := d.openList("header")
	if err != nil {
		return Header{}, err
	}
	h = Header{
		Durable: r.flag(), Priority: r.ubyte(), TTL: r.optionalUint(), FirstAcquirer: r.flag(),
		DeliveryCount: r.uint(0),
	}
	return h, r.close()
}

// AppendHeader appends a header section.
func AppendHeader(b []byte, h *Header) []byte {
	f := beginFields(b, SectionHeader)
	f.bool(h.Durable, false)
	if h.Priority.Set {
		f.next()
		f.b = append(f.b, ctorUbyte, h.Priority.Value)
	} else {
		f.null()
	}
	f.optionalUint(h.TTL)
	f.bool(h.FirstAcquirer, false)
	f.uint(h.DeliveryCount, 0)
	return f.end()
}

// Properties are the standard properties of a message (3.2.4). An ID is nil, a uint64, a UUID, []byte or string; an
// address is usually nil or a string.
type Properties struct {
	MessageID          any
	UserID             []byte
	To                 any
	Subject            Optional[string]
	ReplyTo            any
	CorrelationID      any
	ContentType        Symbol
	ContentEncoding    Symbol
	AbsoluteExpiryTime Optional[Timestamp]
	CreationTime       Optional[Timestamp]
	GroupID            Optional[string]
	GroupSequence      Optional[uint32]
	ReplyToGroupID     Optional[string]
}

// DecodeProperties decodes the value of a properties section.
func DecodeProperties(value []byte) (p Properties, err error) {
	d := decoder{b: value}
	r, err := d.openList("properties")
	if err != nil {
		return Properties{}, err
	}
	p = Properties{
		MessageID: r.value(), UserID: r.binary(), To: r.value(), Subject: r.optionalString(), ReplyTo: r.value(),
		CorrelationID: r.value(), ContentType: r.symbol(""), ContentEncoding: r.symbol(""),
		AbsoluteExpiryTime: r.timestamp(), CreationTime: r.timestamp(), GroupID: r.optionalString(),
		GroupSequence: r.optionalUint(), ReplyToGroupID: r.optionalString(),
	}
	return p, r.close()
}

// AppendProperties appends a properties section.
func AppendProperties(b []byte, p *Properties) []byte {
	f := beginFields(b, SectionProperties)
	f.value(p.MessageID)
	f.binary(p.UserID)
	f.value(p.To)
	f.optionalString(p.Subject)
	f.value(p.ReplyTo)
	f.value(p.CorrelationID)
	f.symbol(p.ContentType, "")
	f.symbol(p.ContentEncoding, "")
	f.optionalTimestamp(p.AbsoluteExpiryTime)
	f.optionalTimestamp(p.CreationTime)
	f.optionalString(p.GroupID)
	f.optionalUint(p.GroupSequence)
	f.optionalString(p.ReplyToGroupID)
	return f.end()
}

func (f *fields) optionalString(v Optional[string]) {
	if !v.Set {
		f.null()
		return
	}
	f.next()
	f.b = appendString(f.b, v.Value)
}

func (f *fields) optionalTimestamp(v Optional[Timestamp]) {
	if !v.Set {
		f.null()
		return
	}
	f.next()
	f.b = big.AppendUint64(append(f.b, ctorTimestamp), uint64(v.Value))
}

// DecodeMap decodes the value of a map section: annotations, application properties, footer.
func DecodeMap(value []byte) (Map, error) {
	v, _, err := DecodeValue(value)
	if err != nil {
		return nil, err
	}
	m, ok := v.(Map)
	if !ok {
		return nil, decodeError("section has %T instead of a map", v)
	}
	return m, nil
}

// DecodeData returns the bytes of the value of a data section, without copying them.
func DecodeData(value []byte) ([]byte, error) {
	d := decoder{b: value}
	c, err := d.ctor()
	if err != nil {
		return nil, err
	}
	if c != ctorBinary8 && c != ctorBinary32 {
		return nil, decodeError("data section has %#02x instead of a binary", c)
	}
	return d.sized(c)
}

// AppendSection appends a section with a value.
func AppendSection(b []byte, code byte, v any) []byte {
	return AppendValue(append(b, ctorDescribed, ctorUlong8, code), v)
}

// AppendData appends a data section.
func AppendData(b, data []byte) []byte {
	return appendBinary(append(b, ctorDescribed, ctorUlong8, SectionData), data)
}

// DecodeTransaction decodes a message to a coordinator: a *Declare or *Discharge.
func DecodeTransaction(message []byte) (any, error) {
	for len(message) > 0 {
		s, rest, err := NextSection(message)
		if err != nil {
			return nil, err
		}
		if s.Code == SectionValue {
			return decodeTransaction(s.Value)
		}
		message = rest
	}
	return nil, decodeError("message to the coordinator has no amqp-value")
}

func decodeTransaction(value []byte) (any, error) {
	d := decoder{b: value}
	code, _, err := d.descriptor()
	if err != nil {
		return nil, err
	}
	r, err := d.openList("declare or discharge")
	if err != nil {
		return nil, err
	}
	switch code {
	case codeDeclare:
		out := &Declare{GlobalID: r.value()}
		return out, r.close()
	case codeDischarge:
		out := &Discharge{TxnID: r.mustBinary("its txn-id"), Fail: r.flag()}
		return out, r.close()
	default:
		return nil, decodeError("%#x is neither declare nor discharge", code)
	}
}

// AppendDeclare appends a message that declares a transaction.
func AppendDeclare(b []byte, d *Declare) []byte {
	f := beginFields(append(b, ctorDescribed, ctorUlong8, SectionValue), codeDeclare)
	f.value(d.GlobalID)
	return f.end()
}

// AppendDischarge appends a message that discharges a transaction.
func AppendDischarge(b []byte, d *Discharge) []byte {
	f := beginFields(append(b, ctorDescribed, ctorUlong8, SectionValue), codeDischarge)
	f.next()
	f.b = appendBinary(f.b, d.TxnID)
	f.bool(d.Fail, false)
	return f.end()
}
