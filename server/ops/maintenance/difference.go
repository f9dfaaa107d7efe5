// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
)

// difference is the result of a comparison of both nodes.
type difference struct {
	text   string            // empty if the comparison found no difference
	lsn    uint64            // LSN of the record at which the nodes were compared
	stores []failover.Member // the stores that were in sync before the comparison
}

// replaced reports whether one of the stores in sync is not one of the compared stores.
func (d *difference) replaced(inSync []failover.Member) bool {
	return slices.ContainsFunc(inSync, func(now failover.Member) bool {
		i := slices.IndexFunc(d.stores, func(m failover.Member) bool { return m.Node == now.Node })
		if i < 0 {
			return len(d.stores) == 2 // another node has replaced one of the two
		}
		return !now.WithGeneration(uuid.Nil).Is(d.stores[i])
	})
}

// InSync returns the stores that are in sync. It returns nil if the cluster record is unknown.
func (m *Manager) InSync() []failover.Member {
	if r := m.node.Pair().Record; r != nil {
		return r.InSync
	}
	return nil
}

// ComparedDigests records the result of a comparison of the rolling digests of both nodes at the record with the given
// LSN, for Difference. found describes the differences; it is empty if the digests are equal. stores is the result of
// InSync before the comparison.
func (m *Manager) ComparedDigests(stores []failover.Member, lsn uint64, found string) {
	m.compared(difference{text: found, lsn: lsn, stores: stores}, &m.digests)
}

// comparedContents is like ComparedDigests, for the contents. Equal contents include equal digests.
func (m *Manager) comparedContents(stores []failover.Member, lsn uint64, found string) {
	results := []*difference{&m.contents}
	if found == "" {
		results = append(results, &m.digests)
	}
	m.compared(difference{text: found, lsn: lsn, stores: stores}, results...)
}

// compared stores a result. Nodes that were equal at an earlier record do not disprove a difference.
func (m *Manager) compared(r difference, results ...*difference) {
	if r.text != "" {
		m.log.Error("the two nodes differ; do not switch over before you know which one is correct",
			zap.Uint64("lsn", r.lsn), zap.String("differences", r.text))
		r.text = fmt.Sprintf("active %s at LSN %d: %s", name(m.node.Pair().Self), r.lsn, r.text)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, to := range results {
		if r.text != "" || r.lsn >= to.lsn {
			*to = r
		}
	}
}

// Difference returns the differences between both nodes that this node has found since its start. A difference of the
// rolling digests is returned until a comparison of the digests or contents finds none, and a difference of the
// contents until a comparison of the contents finds none. A difference is discarded when one of the stores was
// replaced. Difference returns "" if no difference is known.
func (m *Manager) Difference() string {
	inSync := m.InSync()
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []string
	for _, d := range []*difference{&m.digests, &m.contents} {
		if d.text != "" && d.replaced(inSync) {
			*d = difference{} // the new store may be out of sync later, and is then not in inSync
		}
		if d.text != "" {
			found = append(found, d.text)
		}
	}
	return strings.Join(found, "; ")
}
