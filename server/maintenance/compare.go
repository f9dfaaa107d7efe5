// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/failover"
)

// ErrNoPartner is returned when the other node cannot be compared with now.
var ErrNoPartner = errors.New("there is no standby in sync to compare with")

// Partner gives the standby if this node is active and the standby is in sync; ErrNoPartner with the reason if not.
func (m *Manager) Partner() (failover.NodeInfo, error) {
	if m.node.Alone() {
		return failover.NodeInfo{}, fmt.Errorf("%w: this node runs alone", ErrNoPartner)
	}
	other, why := m.partner()
	if why != "" {
		return other, fmt.Errorf("%w: the active %s", ErrNoPartner, why)
	}
	return other, nil
}

// CompareContent reads the content of both nodes as it is at one record, and returns ErrDiffer if it is not the same.
// It returns in words what was compared.
func (m *Manager) CompareContent(ctx context.Context) (string, error) {
	_, detail, err := m.performVerify(ctx)
	return detail, err
}
