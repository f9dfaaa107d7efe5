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
		f.flag(p.Closed)
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
		put(&f, p.Mechanisms, appendSymbols)
		return f.end()
	case *SASLInit:
		f := beginFields(b, codeSASLInit)
		put(&f, p.Mechanism, AppendSymbol)
		f.binary(p.InitialResponse)
		f.string(p.Hostname)
		return f.end()
	case *SASLChallenge:
		f := beginFields(b, codeSASLChallenge)
		put(&f, p.Challenge, AppendBinary)
		return f.end()
	case *SASLResponse:
		f := beginFields(b, codeSASLResponse)
		put(&f, p.Response, AppendBinary)
		return f.end()
	case *SASLOutcome:
		f := beginFields(b, codeSASLOutcome)
		put(&f, byte(p.Code), appendUbyte)
		f.binary(p.AdditionalData)
		return f.end()
	default:
		panic(fmt.Sprintf("wire: %T is not a performative", p))
	}
}

func appendOpen(b []byte, p *Open) []byte {
	f := beginFields(b, codeOpen)
	put(&f, p.ContainerID, AppendString)
	f.string(p.Hostname)
	f.uint(p.MaxFrameSize, math.MaxUint32)
	putIf(&f, p.ChannelMax != math.MaxUint16, p.ChannelMax, appendUshort)
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
	putIf(&f, p.RemoteChannel.Set, p.RemoteChannel.Value, appendUshort)
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
	put(&f, p.Name, AppendString)
	f.mustUint(p.Handle)
	put(&f, bool(p.Role), AppendBool)
	f.ubyte(uint8(p.SenderSettleMode), uint8(SenderMixed))
	f.ubyte(uint8(p.ReceiverSettleMode), uint8(ReceiverFirst))
	putIf(&f, p.Source != nil, p.Source, appendSource)
	f.target(p.Target)
	putIf(&f, p.Unsettled != nil, p.Unsettled, appendUnsettled)
	f.flag(p.IncompleteUnsettled)
	f.optionalUint(p.InitialDeliveryCount)
	f.ulong(p.MaxMessageSize)
	f.symbols(p.OfferedCapabilities)
	f.symbols(p.DesiredCapabilities)
	f.dict(p.Properties)
	return f.end()
}

func (f *fields) target(t Target) {
	switch t := t.(type) {
	case *Node:
		putIf(f, t != nil, t, appendNode)
	case *Coordinator:
		putIf(f, t != nil, t, appendCoordinator)
	default:
		f.nulls++
	}
}

func appendCoordinator(b []byte, c *Coordinator) []byte {
	f := beginFields(b, codeCoordinator)
	f.symbols(c.Capabilities)
	return f.end()
}

func appendUnsettled(b []byte, m Map) []byte {
	c := beginCompound(b)
	for i := range m {
		if tag, ok := m[i].Key.(string); ok {
			c.b = AppendBinary(c.b, tag)
		} else {
			c.b = AppendValue(c.b, m[i].Key)
		}
		c.b = AppendValue(c.b, m[i].Value)
	}
	return c.end(ctorMap8, ctorMap32, 2*len(m))
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
	f.flag(p.Drain)
	f.flag(p.Echo)
	f.dict(p.Properties)
	return f.end()
}

func appendTransfer(b []byte, p *Transfer) []byte {
	f := beginFields(b, codeTransfer)
	f.mustUint(p.Handle)
	f.optionalUint(p.DeliveryID)
	f.binary(p.DeliveryTag)
	f.optionalUint(p.MessageFormat)
	putIf(&f, p.Settled.Set, p.Settled.Value, AppendBool)
	f.flag(p.More)
	putIf(&f, p.ReceiverSettleMode.Set, byte(p.ReceiverSettleMode.Value), appendUbyte)
	f.state(p.State)
	f.flag(p.Resume)
	f.flag(p.Aborted)
	f.flag(p.Batchable)
	return f.end()
}

func appendDisposition(b []byte, p *Disposition) []byte {
	f := beginFields(b, codeDisposition)
	put(&f, bool(p.Role), AppendBool)
	f.mustUint(p.First)
	f.uint(p.Last, p.First)
	f.flag(p.Settled)
	f.state(p.State)
	f.flag(p.Batchable)
	return f.end()
}

func appendEnding(b []byte, code byte, e *Error) []byte {
	f := beginFields(b, code)
	f.error(e)
	return f.end()
}

func appendError(b []byte, e *Error) []byte {
	f := beginFields(b, codeError)
	put(&f, e.Condition, AppendSymbol)
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
	f.flag(s.Dynamic)
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
	f.flag(t.Dynamic)
	f.dict(t.DynamicNodeProperties)
	f.symbols(t.Capabilities)
	return f.end()
}

func appendState(b []byte, s DeliveryState) []byte {
	switch s := s.(type) {
	case Accepted:
		return append(b, ctorDescribed, ctorUlong8, codeAccepted, ctorList0)
	case Released:
		return append(b, ctorDescribed, ctorUlong8, codeReleased, ctorList0)
	case *Received:
		f := beginFields(b, codeReceived)
		f.mustUint(s.SectionNumber)
		put(&f, s.SectionOffset, AppendUlong)
		return f.end()
	case *Rejected:
		return appendEnding(b, codeRejected, s.Error)
	case *Modified:
		f := beginFields(b, codeModified)
		f.flag(s.DeliveryFailed)
		f.flag(s.UndeliverableHere)
		f.dict(s.MessageAnnotations)
		return f.end()
	case *Declared:
		f := beginFields(b, codeDeclared)
		put(&f, s.TxnID, AppendBinary)
		return f.end()
	case *TransactionalState:
		f := beginFields(b, codeTransactionalState)
		put(&f, s.TxnID, AppendBinary)
		f.state(s.Outcome)
		return f.end()
	default:
		return append(b, ctorNull)
	}
}
