// SPDX-License-Identifier: Apache-2.0

package mutation

import (
	"go/format"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// insertion is a hook of package client. It is not in the source, because applications link the package; the deep tier
// builds the package with the hook inserted.
type insertion struct{ file, old, with string }

var insertions = []insertion{
	{
		"client/consumer.go", "		case d.answer == kind:\n",
		`		case d.answer == kind, mutate.Off("INV-10-ended-consumer-acknowledges"):` + "\n",
	},
	{
		"client/identity.go", "	case !a.unknown:\n",
		`	case !a.unknown, mutate.Off("INV-10-refused-repetition-is-believed"):` + "\n",
	},
	{
		"client/identity.go", "	err := c.attemptsAs(ctx, op, id, fn)\n",
		`	if mutate.Off("INV-10-unknown-outcome-ends-with-call") {
		id.attempts.answered()
	}
	err := c.attemptsAs(ctx, op, id, fn)` + "\n",
	},
	{
		"client/identity.go", "e.forgotten() && !id.OutcomeUnknown() {",
		`e.forgotten() && (!id.OutcomeUnknown() || mutate.Off("INV-10-evicted-producer-restarts-with-unknown-outcome")) {`,
	},
	{
		"client/producer_stream.go", "r.sequence <= s.GetThrough() || r.repeated {",
		`r.sequence <= s.GetThrough() || r.repeated && !mutate.Off("INV-10-unknown-outcome-ends-with-stream") {`,
	},
	{
		"client/producer_stream.go", `(*pl.inFlight.at(i)).repeated {`,
		`(*pl.inFlight.at(i)).repeated && !mutate.Off("INV-10-producer-restarts-with-unknown-outcome") {`,
	},
	{
		"client/txn.go", "	if t.identity.OutcomeUnknown() || t.ended {\n",
		`	if (t.identity.OutcomeUnknown() || t.ended) && ` +
			`!mutate.Off("INV-10-operations-added-with-unknown-outcome") {` + "\n",
	},
}

// inserted returns the contents of files with inserted hooks, by path relative to root.
func inserted(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, i := range insertions {
		if files[i.file] == "" {
			text, err := os.ReadFile(filepath.Join(root, i.file))
			require.NoError(t, err)
			files[i.file] = strings.Replace(string(text), "import (\n",
				"import (\n\t\"github.com/lockstep-mq/lockstep/store/mutate\"\n", 1)
		}
		require.Equal(t, 1, strings.Count(files[i.file], i.old), "%s: %s", i.file, i.old)
		files[i.file] = strings.Replace(files[i.file], i.old, i.with, 1)
	}
	return files
}

// Each insertion applies to the current source.
func TestInsertions(t *testing.T) {
	for name, text := range inserted(t) {
		_, err := format.Source([]byte(text))
		require.NoError(t, err, name)
	}
}
