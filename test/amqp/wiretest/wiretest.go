// SPDX-License-Identifier: Apache-2.0

// Package wiretest encodes AMQP messages for tests.
package wiretest

import "github.com/lockstep-mq/lockstep/amqp/wire"

// AppendSection appends a section with the given descriptor code and value to b.
func AppendSection(b []byte, code uint64, v any) []byte {
	return wire.AppendValue(b, wire.Described{Descriptor: code, Value: v})
}

// AppendData appends a data section.
func AppendData(b, data []byte) []byte { return AppendSection(b, wire.SectionData, data) }

// AppendTo appends a properties section with the given "to" address.
func AppendTo(b []byte, address string) []byte {
	return AppendSection(b, wire.SectionProperties, wire.List{nil, nil, address})
}

// Declare returns a message that declares a transaction.
func Declare() []byte {
	return AppendSection(nil, wire.SectionValue, wire.Described{Descriptor: uint64(0x31), Value: wire.List{}})
}

// Discharge returns a message that discharges a transaction.
func Discharge(txnID []byte, fail bool) []byte {
	return AppendSection(nil, wire.SectionValue, wire.Described{Descriptor: uint64(0x32), Value: wire.List{txnID, fail}})
}
