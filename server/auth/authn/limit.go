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
	// maxFailures is the number of failures in a burst that are permitted for an address. The allowance is refilled at
	// failuresPerSecond.
	maxFailures       = 30.0
	failuresPerSecond = 1.0
	// maxAddresses is the maximum number of addresses with recorded failures. Beyond that number, evictSamples
	// addresses are sampled, and the address with the largest remaining allowance is evicted.
	maxAddresses = 10_000
	evictSamples = 8
)

// limiter limits the number of failures from an address. It applies only to JWTs that the node has not verified
// before.
type limiter struct {
	mu        sync.Mutex
	addresses map[netip.Prefix]*budget
}

type budget struct { // the remaining failures of an address
	left float64
	at   time.Time
}

func newLimiter() *limiter { return &limiter{addresses: make(map[netip.Prefix]*budget)} }

func (a *budget) refill(now time.Time) {
	a.left = min(maxFailures, a.left+max(0, now.Sub(a.at).Seconds())*failuresPerSecond)
	a.at = now
}

// wait returns the time until JWTs from the address may be verified again. It returns 0 if they may be verified now.
func (l *limiter) wait(from netip.Prefix, now time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.addresses[from]
	if a == nil {
		return 0
	}
	a.refill(now)
	if a.left >= maxFailures {
		delete(l.addresses, from)
	}
	if a.left >= 1 {
		return 0
	}
	return time.Duration((1 - a.left) / failuresPerSecond * float64(time.Second))
}

func (l *limiter) failed(from netip.Prefix, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.addresses[from]
	if a == nil {
		if len(l.addresses) >= maxAddresses {
			l.evict(now)
		}
		a = &budget{left: maxFailures, at: now}
		l.addresses[from] = a
	}
	a.refill(now)
	a.left = max(0, a.left-1)
}

// evict evicts one address as described for maxAddresses. The caller must hold mu.
func (l *limiter) evict(now time.Time) {
	var evicted netip.Prefix
	most, tries := -1.0, 0
	for from, a := range l.addresses { // random order
		a.refill(now)
		if a.left > most {
			evicted, most = from, a.left
		}
		if tries++; tries == evictSamples {
			break
		}
	}
	delete(l.addresses, evicted)
}

// Prefix lengths of addresses. An IPv4 address is used as a whole. An IPv6 address is reduced to its network half.
const (
	hostBits4 = 32
	hostBits6 = 64
)

// addressOf returns the client address of a call. Clients without an IP address all have the same address.
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
