// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

// If an abandoned call is executed between the two final reads, both are repeated, so that both contain its effect.
func TestFinalReadsAreConsistent(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	dir := t.TempDir()
	binary, err := Build(ctx, dir)
	require.NoError(t, err)
	p, err := Start(ctx, Options{Binary: binary, Dir: dir})
	require.NoError(t, err)
	defer func() { require.NoError(t, p.Close()) }()
	w, err := StartWorkload(ctx, p, WorkloadOptions{PerSecond: 10})
	require.NoError(t, err)
	defer w.Abort()
	w.apps.finish()

	in := w.apps.names.in
	late := historycheck.ID{Producer: historycheck.FirstApplication, N: 1 << 20}
	read := 0
	require.NoError(t, w.apps.readEnd(ctx, func(ctx context.Context) ([]historycheck.Stored, error) {
		if read++; read == 1 {
			_, err := w.apps.client.Publish(ctx, in, client.Message{Body: historycheck.Body(late, 10)})
			require.NoError(t, err)
		}
		return w.readFinal(ctx, w.apps.queues())
	}))
	h := w.History()
	i := slices.IndexFunc(h.Final, func(s historycheck.Stored) bool { return s.ID == late })
	require.GreaterOrEqual(t, i, 0)
	require.Contains(t, h.Left, historycheck.Left{Queue: in, Sequence: h.Final[i].Sequence})
	require.Equal(t, 1, h.Calls[readAgain])
	require.Len(t, slices.Compact(slices.Clone(h.Final)), len(h.Final), "each message occurs once")
}
