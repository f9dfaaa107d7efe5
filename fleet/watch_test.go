// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The copy is current again after a restart of etcd, and contains all changes, although etcd compacted them.
func TestCopyAfterRestartAndCompaction(t *testing.T) {
	t.Parallel()
	s := start(t)
	client := s.client(t)
	a := newPair(t, client, "a")
	a.join(t)
	a.run(t)
	o, err := a.Assign(t.Context(), "before", "")
	require.NoError(t, err)
	a.awaitOwner(t, "before", func(_ Owner, found bool) bool { return found })
	s.restart(t, func() {
		a.await(t, func(s Status) bool { return !s.Current })
		known, found, err := a.Owner("before") // the old copy remains
		require.NoError(t, err)
		require.True(t, found)
		require.Equal(t, o.Epoch, known.Epoch)
		_, _, err = a.Owner("unknown")
		require.ErrorIs(t, err, ErrUnavailable)
		require.ErrorIs(t, a.Status().Problem, ErrUnavailable)
	})
	writer := newPair(t, s.client(t), "a")
	writer.state = a.state
	for i := range 5 {
		_, err := writer.Assign(t.Context(), fmt.Sprint("q", i), "")
		require.NoError(t, err)
	}
	require.NoError(t, writer.Release(t.Context(), "before", o.Epoch))
	resp, err := client.Get(t.Context(), "/test/fleet")
	require.NoError(t, err)
	_, err = client.Compact(t.Context(), resp.Header.Revision)
	require.NoError(t, err)
	a.await(t, func(s Status) bool { return s.Current && s.Queues == 5 })
	_, found, err := a.Owner("before")
	require.NoError(t, err)
	require.False(t, found)
}

// A malformed value replaces an earlier valid value of each kind: the copy is the same as a newly loaded one.
func TestMalformedValueReplaces(t *testing.T) {
	t.Parallel()
	values := map[string]string{
		keyFleet: encode(fleetValue{ID: "f"}), keyCounter: "7",
		dirPairs + "a":     encode(Member{ID: "a", State: StateOpen, Addresses: []string{"a:1"}}),
		dirLoad + "a":      encode(Load{Queues: 1}),
		dirRules + "r*":    encode(Rule{Pair: "a"}),
		dirQueues + "q":    encode(entryValue{Pair: "a", Epoch: 1}),
		dirForgotten + "x": encode(forgottenValue{Pair: "x"}),
		dirMoves + "5":     (&Move{From: "a", To: "b", Queues: []string{"q"}}).encode(),
	}
	for key, value := range values {
		c, loaded := newContents("/test/"), newContents("/test/")
		c.put("/test/"+key, []byte(value))
		require.Empty(t, c.invalid, key)
		for _, all := range []*contents{c, loaded} {
			all.put("/test/"+key, []byte("{"))
		}
		require.Len(t, c.invalid, 1, key)
		c.changes, c.names = loaded.changes, loaded.names
		require.Equal(t, loaded, c, key)
	}
}

// A malformed value is reported with its key, and affects only its own entry.
func TestMalformedValues(t *testing.T) {
	t.Parallel()
	client := start(t).client(t)
	a := newPair(t, client, "a")
	a.join(t)
	o, err := a.Assign(t.Context(), "good", "")
	require.NoError(t, err)
	a.create("good", o.Epoch)
	values := map[string]string{
		"queues/json": "{", "queues/type": `{"pair":1}`, "queues/epoch": `{"pair":"a"}`, "queues/pair": `{"epoch":1}`,
		"queues/name": `{"pair":"a/b","epoch":1}`, "queues/large": `"` + strings.Repeat("x", maxValueBytes) + `"`,
		"queues/empty": "", "pairs/x": `{"id":"x","state":"other"}`, "pairs/y": "[]", "load/a": `{"publish_rate":-1}`,
		"rules/r": "{}", "unknown/key": "x", "unknown": "x",
	}
	put := func(key, value string) {
		_, err := client.Put(t.Context(), "/test/"+key, value)
		require.NoError(t, err)
	}
	for key, value := range values {
		put(key, value)
	}
	a.run(t)
	check := func() {
		malformed := a.Status().Malformed
		require.Len(t, malformed, len(values)-2)
		for _, err := range malformed {
			var v *ValueError
			require.ErrorAs(t, err, &v)
			require.Contains(t, values, strings.TrimPrefix(v.Key, "/test/"))
		}
		for key := range values {
			if q, ok := strings.CutPrefix(key, "queues/"); ok {
				_, _, err := a.Owner(q)
				var v *ValueError
				require.ErrorAs(t, err, &v)
				require.Equal(t, "/test/"+key, v.Key)
			}
		}
		_, found, err := a.Owner("good")
		require.NoError(t, err)
		require.True(t, found)
	}
	check()
	put("queues/good", "{")
	put("queues/good", encode(entryValue{Pair: "a", Epoch: 9}))
	a.awaitOwner(t, "good", func(o Owner, _ bool) bool { return o.Epoch == 9 })
	check()

	var v *ValueError
	_, err = a.Assign(t.Context(), "json", "")
	require.ErrorAs(t, err, &v)
	_, err = a.Assign(t.Context(), "new", "")
	require.ErrorAs(t, err, &v, "a malformed rule or pair")
	report, err := a.Reconcile(t.Context(), a.list, nil)
	require.NoError(t, err)
	require.Len(t, report.Malformed, 7)
	for _, key := range []string{"counter", "fleet"} {
		put(key, "x")
		a.await(t, func(Status) bool {
			_, _, err := a.Owner("unknown")
			return err != nil && strings.Contains(err.Error(), "/test/"+key)
		})
		_, err = a.Assign(t.Context(), "new", "")
		require.ErrorAs(t, err, &v)
		require.Equal(t, "/test/"+key, v.Key)
	}
}
