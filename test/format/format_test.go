// SPDX-License-Identifier: Apache-2.0

package format

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

var (
	updateFlag  = flag.Bool("update", false, "write the dumps of the current program's files")
	releaseFlag = flag.String("release", "", "write the files and dumps of this release, for TestReleases")
)

const (
	testdata     = "testdata"
	current      = "current"
	filesArchive = "files.zip"
)

// The current program writes exactly the bytes in testdata/current.
func TestCurrentFormat(t *testing.T) {
	texts := dump(t, scenario(t))
	if *updateFlag {
		writeDumps(t, current, texts)
	}
	requireDumps(t, current, texts)
}

// The current program reads the files of each release, with the expected contents. With -release, the test first
// writes the files of that release.
func TestReleases(t *testing.T) {
	if *releaseFlag != "" {
		writeRelease(t, *releaseFlag)
	}
	dirs, err := filepath.Glob(filepath.Join(testdata, "v*"))
	require.NoError(t, err)
	require.NotEmpty(t, dirs)
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			requireDumps(t, filepath.Base(dir), dump(t, unpack(t, filepath.Join(dir, filesArchive))))
		})
	}
}

// writeRelease writes the files and dumps of a release, which must not exist.
func writeRelease(t *testing.T, version string) {
	t.Helper()
	dir := filepath.Join(testdata, version)
	require.NoDirExists(t, dir, "the files of a release never change")
	fsys := scenario(t)
	writeDumps(t, version, dump(t, fsys))
	require.NoError(t, os.WriteFile(filepath.Join(dir, filesArchive), pack(t, fsys), 0o644))
}

// The dumps contain every operation, every kind of record, extent and value, and every field of a queue's
// configuration. New kinds and fields must be added to the scenario.
func TestScenarioIsComplete(t *testing.T) {
	_, seen := dumpSeen(t, scenario(t))
	for _, kind := range kinds(t) {
		require.True(t, seen[kind], "%s: missing in all dumps; add it to the scenario, and run with -update", kind)
	}
}

// kinds lists the kinds of objects in the formats.
func kinds(t *testing.T) (all []string) {
	t.Helper()
	for code := range 256 {
		if op := txn.OpCode(code); op.String() != "unknown" {
			all = append(all, opKind(op))
		}
		if k := wal.Kind(code); !strings.HasPrefix(k.String(), "kind") {
			all = append(all, recordKind(k))
		}
		if k := page.Kind(code); !strings.HasPrefix(k.String(), "kind") {
			all = append(all, extentKind(k))
		}
	}
	for field := range fields(reflect.TypeFor[txn.Config]()) {
		all = append(all, configKind(field))
	}
	for _, letter := range keyLetters(t) {
		all = append(all, keyKind(letter))
	}
	all = append(all, packedPages)
	require.GreaterOrEqual(t, len(all), 11+2+5+2+9, "operations, records, extents, fields, keys")
	return all
}

func opKind(op txn.OpCode) string   { return "operation " + op.String() }
func recordKind(k wal.Kind) string  { return "record " + k.String() }
func extentKind(k page.Kind) string { return "extent " + k.String() }
func configKind(field reflect.StructField) string {
	return "field of a queue's configuration " + field.Name
}
func keyKind(letter byte) string { return fmt.Sprintf("key %q", letter) }

func fields(of reflect.Type) func(yield func(reflect.StructField) bool) {
	return func(yield func(reflect.StructField) bool) {
		for i := range of.NumField() {
			if !yield(of.Field(i)) {
				return
			}
		}
	}
}

// keyLetters returns the first letters of tree keys: the constants key… of package queue.
func keyLetters(t *testing.T) (letters []byte) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "../../store/queue/keys.go", nil, 0)
	require.NoError(t, err)
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(spec.Names[0].Name, "key") || len(spec.Values) != 1 {
			return true
		}
		if lit, ok := spec.Values[0].(*ast.BasicLit); ok && lit.Kind == token.CHAR {
			letters = append(letters, lit.Value[1])
		}
		return true
	})
	return letters
}

func writeDumps(t *testing.T, version string, texts map[string]string) {
	t.Helper()
	dir := filepath.Join(testdata, version)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	for name, text := range texts {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
}

// requireDumps compares the dumps with those in testdata, and reports the first different line.
func requireDumps(t *testing.T, version string, texts map[string]string) {
	t.Helper()
	dir := filepath.Join(testdata, version)
	for name, text := range texts {
		want, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		wants, gots := strings.Split(string(want), "\n"), strings.Split(text, "\n")
		for i := range min(len(wants), len(gots)) {
			require.Equal(t, wants[i], gots[i], "%s/%s, line %d", dir, name, i+1)
		}
		require.Len(t, gots, len(wants), "%s/%s: number of lines", dir, name)
	}
}
