// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"fmt"
	"math"
)

func appendPerformative(b []byte, p Performative) []byte {
	switch p := p.(type) {
	case *Transfer:
		return appendTransfer(b, p)
	case *Flow:
		return appendFlow(b, p)
	case *Disposition:
		return appendDisposition(b, p)
	case *Open:
		return appendOpen(b, p)
	case *Begin:
		return appendBegin(b, p)
	case *Attach:
		return appendAttach(b, p)
	case *Detach:
		f := beginFields(b, codeDetach)
		f.mustUint(p.Handle)
		f.bool(p.Closed, false)
		f.error(p.Error)
		return f.end()
	case *End:
		return appendEnding(b, codeEnd, p.Error)
	case *Close:
		return appendEnding(b, codeClose, p.Error)
	default:
		return appendSASL(b, p)
	}
}

func appendSASL(b []byte, p Performative) []byte {
	switch p := p.(type) {
	case *SASLMechanisms:
		f := beginFields(b, codeSASLMechanisms)
		f.next()
		f.b = appendSymbols(f.b, p.Mechanisms)
		return f.end()
	case *SASLInit:
		f := beginFields(b, codeSASLInit)
		f.next()
		f.b = appendSymbol(f.b, p.Mechanism)
		f.binary(p.InitialResponse)
		f.string(p.Hostname)
		return f.end()
	case *SASLChallenge:
		f := beginFields(b, codeSASLChallenge)
		f.next()
		f.b = appendBinary(f.b, p.Challenge)
		return f.end()
	case *SASLResponse:
		f := beginFields(b, codeSASLResponse)
		f.next()
		f.b = appendBinary(f.b, p.Response)
		return f.end()
	case *SASLOutcome:
		f := beginFields(b, codeSASLOutcome)
		f.next()
		f.b = append(f.b, ctorUbyte, byte(p.Code))
		f.binary(p.AdditionalData)
		return f.end()
	default:
		panic(fmt.Sprintf("wire: %T is not a performative", p))
	}
}

func appendOpen(b []byte, p *Open) []byte {
	f := beginFields(b, codeOpen)
	f.next()
	f.b = appendString(f.b, p.ContainerID)
	f.string(p.Hostname)
	f.uint(p.MaxFrameSize, math.MaxUint32)
	if p.ChannelMax == math.MaxUint16 {
		f.null()
	} else {
		f.ushort(p.ChannelMax)
	}
	f.uint(p.IdleTimeOut, 0)
	f.symbols(p.OutgoingLocales)
	f.symbols(p.IncomingLocales)
	f.symbols(p.OfferedCapabilities)
	f.symbols(p.DesiredCapabilities)
	f.dict(p.Properties)
	return f.end()
}

func appendBegin(b []byte, p *Begin) []byte {
	f := beginFields(b, codeBegin)
	if p.RemoteChannel.Set {
		f.ushort(p.RemoteChannel.Value)
	} else {
		f.null()
	}
	f.mustUint(p.NextOutgoingID)
	f.mustUint(p.IncomingWindow)
	f.mustUint(p.OutgoingWindow)
	f.uint(p.HandleMax, math.MaxUint32)
	f.symbols(p.OfferedCapabilities)
	f.symbols(p.DesiredCapabilities)
	f.dict(p.Properties)
	return f.end()
}

func appendAttach(b []byte, p *Attach) []byte {
	f := beginFields(b, codeAttach)
	f.next()
	f.b = appendString(f.b, p.Name)
	f.mustUint(p.Handle)
	f.next()
	f.b = appendBool(f.b, bool(p.Role))
	f.ubyte(uint8(p.SenderSettleMode), uint8(SenderMixed))
	f.ubyte(uint8(p.ReceiverSettleMode), uint8(ReceiverFirst))
	if p.Source == nil {
		f.null()
	} else {
		f.next()
		f.b = appendSource(f.b, p.Source)
	}
	f.target(p.Target)
	f.unsettled(p.Unsettled)
	f.bool(p.IncompleteUnsettled, false)
	f.optionalUint(p.InitialDeliveryCount)
	f.ulong(p.MaxMessageSize, 0)
	f.symbols(p.OfferedCapabilities)
	f.symbols(p.DesiredCapabilities)
	f.dict(p.Properties)
	return f.end()
}

func (f *fields) target(t Target) {
	switch t := t.(type) {
	case *Node:
		if t == nil {
			f.null()
			return
		}
		f.next()
		f.b = appendNode(f.b, t)
	case *Coordinator:
		if t == nil {
			f.null()
			return
		}
		f.next()
		c := beginFields(f.b, codeCoordinator)
		c.symbols(t.Capabilities)
		f.b = c.end()
	default:
		f.null()
	}
}

func (f *fields) unsettled(m Map) {
	if m == nil {
		f.null()
		return
	}
	f.next()
	c := beginCompound(f.b)
	for i := range m {
		if tag, ok := m[i].Key.(string); ok {
			c.b = append(appendSized(c.b, ctorBinary8, ctorBinary32, len(tag)), tag...)
		} else {
			c.b = AppendValue(c.b, m[i].Key)
		}
		c.b = AppendValue(c.b, m[i].Value)
	}
	f.b = c.end(ctorMap8, ctorMap32, 2*len(m))
}

func appendFlow(b []byte, p *Flow) []byte {
	f := beginFields(b, codeFlow)
	f.optionalUint(p.NextIncomingID)
	f.mustUint(p.IncomingWindow)
	f.mustUint(p.NextOutgoingID)
	f.mustUint(p.OutgoingWindow)
	f.optionalUint(p.Handle)
	f.optionalUint(p.DeliveryCount)
	f.optionalUint(p.LinkCredit)
	f.optionalUint(p.Available)
	f.bool(p.Drain, false)
	f.bool(p.Echo, false)
	f.dict(p.Properties)
	return f.end()
}

func appendTransfer(b []byte, p *Transfer) []byte {
	f := beginFields(b, codeTransfer)
	f.mustUint(p.Handle)
	f.optionalUint(p.DeliveryID)
	f.binary(p.DeliveryTag)
	f.optionalUint(p.MessageFormat)
	if p.Settled.Set {
		f.next()
		f.b = appendBool(f.b, p.Settled.Value)
	} else {
		f.null()
	}
	f.bool(p.More, false)
	if p.ReceiverSettleMode.Set {
		f.next()
		f.b = append(f.b, ctorUbyte, byte(p.ReceiverSettleMode.Value))
	} else {
		f.null()
	}
	f.state(p.State)
	f.bool(p.Resume, false)
	f.bool(p.Aborted, false)
	f.bool(p.Batchable, false)
	return f.end()
}

func appendDisposition(b []byte, p *Disposition) []byte {
	f := beginFields(b, codeDisposition)
	f.next()
	f.b = appendBool(f.b, bool(p.Role))
	f.mustUint(p.First)
	f.uint(p.Last, p.First)
	f.bool(p.Settled, false)
	f.state(p.State)
	f.bool(p.Batchable, false)
	return f.end()
}

func appendEnding(b []byte, code byte, e *Error) []byte {
	f := beginFields(b, code)
	f.error(e)
	return f.end()
}

func appendError(b []byte, e *Error) []byte {
	if e == nil {
		return append(b, ctorNull)
	}
	f := beginFields(b, codeError)
	f.next()
	f.b = appendSymbol(f.b, e.Condition)
	f.string(e.Description)
	f.dict(e.Info)
	return f.end()
}

func appendSource(b []byte, s *Source) []byte {
	f := beginFields(b, codeSource)
	f.value(s.Address)
	f.uint(uint32(s.Durable), 0)
	f.symbol(s.ExpiryPolicy, ExpirySessionEnd)
	f.uint(s.Timeout, 0)
	f.bool(s.Dynamic, false)
	f.dict(s.DynamicNodeProperties)
	f.symbol(s.DistributionMode, "")
	f.dict(s.Filter)
	f.state(s.DefaultOutcome)
	f.symbols(s.Outcomes)
	f.symbols(s.Capabilities)
	return f.end()
}

func appendNode(b []byte, t *Node) []byte {
	f := beginFields(b, codeTarget)
	f.value(t.Address)
	f.uint(uint32(t.Durable), 0)
	f.symbol(t.ExpiryPolicy, ExpirySessionEnd)
	f.uint(t.Timeout, 0)
	f.bool(t.Dynamic, false)
	f.dict(t.DynamicNodeProperties)
	f.symbols(t.Capabilities)
	return f.end()
}

func appendState(b []byte, s DeliveryState) []byte {
	switch s := s.(type) {
	case Accepted, *Accepted:
		return append(b, ctorDescribed, ctorUlong8, codeAccepted, ctorList0)
	case Released, *Released:
		return append(b, ctorDescribed, ctorUlong8, codeReleased, ctorList0)
	case *Received:
		f := beginFields(b, codeReceived)
		f.mustUint(s.SectionNumber)
		f.next()
		f.b = appendUlong(f.b, s.SectionOffset)
		return f.end()
	case *Rejected:
		return appendEnding(b, codeRejected, s.Error)
	case *Modified:
		f := beginFields(b, codeModified)
		f.bool(s.DeliveryFailed, false)
		f.bool(s.UndeliverableHere, false)
		f.dict(s.MessageAnnotations)
		return f.end()
	case *Declared:
		f := beginFields(b, codeDeclared)
		f.next()
		f.b = appendBinary(f.b, s.TxnID)
		return f.end()
	case *TransactionalState:
		f := beginFields(b, codeTransactionalState)
		f.next()
		f.b = appendBinary(f.b, s.TxnID)
		f.state(s.Outcome)
		return f.end()
	default:
		return append(b, ctorNull)
	}
}
