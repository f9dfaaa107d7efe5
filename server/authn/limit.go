// SPDX-License-Identifier: Apache-2.0

package authn

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"google.golang.org/grpc/peer"
)

const (
	// failuresAtOnce is how many failures an address has at once, and failuresPerSecond how many more come back.
	failuresAtOnce    = 30.0
	failuresPerSecond = 1.0
	// maxAddresses bounds the memory: addresses that have the most failures left are forgotten.
	maxAddresses = 10_000
	// forgetTries is how many addresses are looked at to find one to forget.
	forgetTries = 8
)

// limiter counts failures by address. It never stands in the way of a token that was found good before: callers from
// behind one address (NAT) do not suffer from one of them, but for a moment when they show a JWT that the node has not
// seen.
type limiter struct {
	mu        sync.Mutex
	addresses map[netip.Prefix]*allowance
}

// allowance is what an address has left.
type allowance struct {
	left float64
	at   time.Time
}

func newLimiter() *limiter { return &limiter{addresses: make(map[netip.Prefix]*allowance)} }

// refill brings an allowance up to now.
func (a *allowance) refill(now time.Time) {
	a.left = min(failuresAtOnce, a.left+max(0, now.Sub(a.at).Seconds())*failuresPerSecond)
	a.at = now
}

// wait is how long the address has to wait until it has a failure left; 0: it has one.
func (l *limiter) wait(from netip.Prefix, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.addresses[from]
	if a == nil {
		return 0
	}
	a.refill(now)
	if a.left >= failuresAtOnce {
		delete(l.addresses, from)
	}
	if a.left >= 1 {
		return 0
	}
	return time.Duration((1 - a.left) / failuresPerSecond * float64(time.Second))
}

// failed takes one failure from the address.
func (l *limiter) failed(from netip.Prefix, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.addresses[from]
	if a == nil {
		if len(l.addresses) >= maxAddresses {
			l.forget(now)
		}
		a = &allowance{left: failuresAtOnce, at: now}
		l.addresses[from] = a
	}
	a.refill(now)
	a.left = max(0, a.left-1)
}

// forget drops one of a few addresses: the one with the most failures left. mu is held.
func (l *limiter) forget(now time.Time) {
	var victim netip.Prefix
	most, tries := -1.0, 0
	for from, a := range l.addresses { // begins anywhere
		a.refill(now)
		if a.left > most {
			victim, most = from, a.left
		}
		if tries++; tries == forgetTries {
			break
		}
	}
	delete(l.addresses, victim)
}

// known is how many addresses have failures.
func (l *limiter) known() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.addresses)
}

// hostBits are what is counted as one address: all of an IPv4 address, and the half of an IPv6 address that is a
// network, since a host chooses the other half as it likes.
const (
	hostBits4 = 32
	hostBits6 = 64
)

// addressOf is where a call comes from. What is no IP address, such as a connection in memory, is one address.
func addressOf(ctx context.Context) netip.Prefix {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return netip.Prefix{}
	}
	return prefixOf(p.Addr)
}

func prefixOf(addr net.Addr) netip.Prefix {
	ap, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return netip.Prefix{}
	}
	ip, bits := ap.Addr().Unmap().WithZone(""), hostBits4
	if ip.Is6() {
		bits = hostBits6
	}
	prefix, err := ip.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return prefix
}
