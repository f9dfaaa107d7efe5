// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
)

// An error that matches several codes always has the same code, and an unknown outcome takes precedence.
func TestErrorWithSeveralCodes(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		"uncertain":  fmt.Errorf("%w: %w", failover.ErrRefused, errUncertain),
		"not-leader": fmt.Errorf("%w: %w", ErrMembership, errNotLeader),
		"not-member": fmt.Errorf("%w: %w", ErrMembership, ErrNotMember),
		"":           errors.New("something else"),
	} {
		for range 50 {
			require.Equal(t, want, failureOf(err).Code)
		}
	}
	for _, c := range codes() {
		require.Equal(t, c.err, coded(failureOf(c.err).Code))
	}
}

// A leader of 0.1.0 does not support marks: a write is rejected, which is not an outage, and a read returns no mark.
func TestMarkAtOldLeader(t *testing.T) {
	t.Parallel()
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+pathLoad, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte(`{"revision":3,"op_id":"x","record":{"a":1},"recoveries":0}`))
	})
	srv := httptest.NewServer(mux)
	defer srv.Close()
	p := &peers{client: &http.Client{Timeout: 10 * time.Second}, close: func() {}}
	r := p.at(strings.TrimPrefix(srv.URL, "http://"))
	_, err := r.mark(t.Context(), failover.Mark{By: 1})
	require.ErrorIs(t, err, failover.ErrRefused)
	got, err := r.load(t.Context())
	require.NoError(t, err)
	require.Equal(t, failover.Mark{}, got.mark())
}
