// SPDX-License-Identifier: Apache-2.0

package wire

// Section is one section of a message (3.2).
type Section struct {
	Code       uint64 // the descriptor, such as SectionData
	Raw, Value []byte // with and without the descriptor; both reference the message
}

// NextSection returns the first section of b without decoding it.
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

// DecodeTransaction decodes a message to a coordinator as *Declare or *Discharge.
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
	r := d.openList("declare or discharge")
	switch code {
	case codeDeclare:
		out := &Declare{GlobalID: r.value()}
		return out, r.close()
	case codeDischarge:
		out := &Discharge{TxnID: r.mustBinary("txn-id"), Fail: r.flag()}
		return out, r.close()
	default:
		return nil, decodeError("%#x is neither declare nor discharge", code)
	}
}
