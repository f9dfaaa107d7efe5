// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/failover"
)

// ErrNoPartner is returned when no standby is available for a comparison.
var ErrNoPartner = errors.New("no standby in sync")

// Partner returns the standby if this node is active and the standby is in sync, or ErrNoPartner with the reason.
func (m *Manager) Partner() (failover.NodeInfo, error) {
	if m.node.Alone() {
		return failover.NodeInfo{}, fmt.Errorf("%w: node is standalone", ErrNoPartner)
	}
	other, reason := m.partner()
	if reason != "" {
		return other, fmt.Errorf("%w: the active %s", ErrNoPartner, reason)
	}
	return other, nil
}

// CompareContent compares the content of both nodes at the same record, and returns a description. If it differs, it
// returns ErrDiffer.
func (m *Manager) CompareContent(ctx context.Context) (string, error) {
	_, detail, err := m.performVerify(ctx)
	return detail, err
}
