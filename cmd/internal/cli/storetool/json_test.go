// SPDX-License-Identifier: Apache-2.0

package storetool

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// TestJSON compares the JSON output with golden files.
func TestJSON(t *testing.T) {
	var b bytes.Buffer
	p, err := output.New(&b, "json")
	require.NoError(t, err)
	for _, v := range []any{&checked{}, &metaDump{}, &pageDump{}, &recordDump{}, &segmentDump{}} {
		golden.FillStruct(v)
		require.NoError(t, p.Object(v))
	}
	golden.Text(t, "output.jsonl", b.String())
}
