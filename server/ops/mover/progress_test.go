// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/fleet"
)

type noMember struct{ Member }

func (noMember) SetBlocked(func(string) bool) {}

// A cancellation by an operator does not change the phase of a move that has ended in the meantime, and its reason is
// retained when a step fails because of it.
func TestCanceledProgress(t *testing.T) {
	m := New(Options{Pair: "b", Member: noMember{}})
	move := fleet.Move{Epoch: 5, From: "a", To: "b", Queues: []string{"q"}}
	m.canceled(move, errCanceled)
	require.Equal(t, PhaseCanceled, m.progress[5].Phase)
	m.update(move, func(p *Progress) { p.Phase = PhaseCopying })
	m.canceled(move, errors.New("changed"))
	require.Equal(t, PhaseCanceled, m.progress[5].Phase)
	require.ErrorIs(t, m.progress[5].Reason, errCanceled)
	m.update(move, func(p *Progress) { p.Phase = PhaseNotMoved })
	m.canceled(move, errCanceled)
	require.Equal(t, PhaseNotMoved, m.progress[5].Phase)
}
