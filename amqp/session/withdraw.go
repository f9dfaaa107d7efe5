// SPDX-License-Identifier: Apache-2.0

package session

import "github.com/lockstep-mq/lockstep/amqp/wire"

// WithdrawAll withdraws all messages of the link that the peer has not settled, as Withdraw does.
func (l *Link) WithdrawAll(state wire.DeliveryState) (unsent int) {
	refs := make(map[uint64]bool)
	q := &l.sender
	for i := q.head; i < len(q.waiting); i++ {
		refs[q.waiting[i].Ref] = true
	}
	l.session.out.all(func(_ uint32, e *delivery) {
		if e.link == l {
			refs[e.ref] = true
		}
	})
	if len(refs) == 0 {
		return 0
	}
	return l.Withdraw(refs, state)
}
