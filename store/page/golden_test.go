// SPDX-License-Identifier: Apache-2.0

package page

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
)

// The encoding equals testdata/format-1.txt. A difference means that files of version 1 can no longer be read: the
// change needs a new FormatVersion and an additional file.
func TestGolden(t *testing.T) {
	meta := Meta{
		Checkpoint: 5, Position: lsn.Position{Term: 3, LSN: 1234, Chain: 0xcafe},
		Root:      Extent{First: 3, Pages: 2, Born: 4},
		CreatedMS: 1_700_000_000_000, PageSize: 2048, StoreID: [16]byte{0xaa, 15: 0xbb}, Pages: 512, UsedPages: 17,
		leaves: []ref{{page: 9, born: 5}},
	}
	copy(meta.AppData[:], "application data")
	run, err := AppendExtent(nil, 2048, Extent{First: 7, Pages: 1, Born: 3}, KindLarge, []byte("payload"))
	require.NoError(t, err)
	s := newSpace(2048)
	s.grow(20_000)
	s.take(1, 3)
	s.chunks[0].at = ref{page: 3, born: 2}
	got := map[string][]byte{
		"header": encodeHeader(header{pageSize: 2048, storeID: meta.StoreID})[:headerFields],
		"meta":   meta.Encode(),
		"run":    run[:ExtentHeaderBytes+8],
		"bitmap": s.chunkPayload(nil, 0)[:16],
		"dir":    s.leafPayload(nil, 0),
	}
	text, err := os.ReadFile("testdata/format-1.txt")
	require.NoError(t, err)
	seen := 0
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		name, want, ok := strings.Cut(line, ": ")
		require.True(t, ok, line)
		require.Equal(t, want, hex.EncodeToString(got[name]), name)
		seen++
	}
	require.Equal(t, len(got), seen)
}
