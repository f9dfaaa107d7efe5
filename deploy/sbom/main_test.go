// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
)

// The bill of materials of a Go binary, here the test binary, is reproducible and lists all modules.
func TestBillOfMaterials(t *testing.T) {
	binary, err := os.Executable()
	require.NoError(t, err)
	var first, second bytes.Buffer
	require.NoError(t, run([]string{binary, "v1.2.3"}, &first))
	require.NoError(t, run([]string{binary, "v1.2.3"}, &second))
	require.Equal(t, first.String(), second.String())
	var d bom
	require.NoError(t, json.Unmarshal(first.Bytes(), &d))
	require.Equal(t, "CycloneDX", d.Format)
	require.Equal(t, "v1.2.3", d.Metadata.Component.Version)
	require.Equal(t, "application", d.Metadata.Component.Type)
	require.Len(t, d.Metadata.Component.Hashes[0].Content, 64)
	names := map[string]component{}
	for _, c := range d.Components {
		require.NotEmpty(t, c.Version, c.Name)
		require.NotContains(t, names, c.Name)
		names[c.Name] = c
	}
	require.Contains(t, names, "std")
	require.Len(t, d.Dependencies[0].Uses, len(d.Components))
}

// A bill of materials contains the version and the dependencies of a binary, but no linker flags.
func TestDescribeBuildInfo(t *testing.T) {
	d := describe(&debug.BuildInfo{
		GoVersion: "go1.26.8", Main: debug.Module{Path: "example.com/it", Version: "(devel)"},
		Deps: []*debug.Module{
			{Path: "example.com/a", Version: "v1.0.0+incompatible", Sum: "h1:x="},
			{Path: "example.com/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/c", Version: "v2.0.0"}},
		},
		Settings: []debug.BuildSetting{{Key: "GOOS", Value: "linux"}, {Key: "-ldflags", Value: "-X secret"}},
	}, "v1.2.3", "sum")
	require.Equal(t, "pkg:golang/example.com/it@v1.2.3", d.Metadata.Component.PURL)
	require.Equal(t, []property{{"go:build:GOOS", "linux"}}, d.Metadata.Component.Properties)
	require.Equal(t, []string{
		"pkg:golang/std@go1.26.8", "pkg:golang/example.com/a@v1.0.0%2Bincompatible", "pkg:golang/example.com/c@v2.0.0",
	}, d.Dependencies[0].Uses)
	require.Equal(t, []property{{"go:sum", "h1:x="}}, d.Components[1].Properties)
}

func TestInvalidArguments(t *testing.T) {
	require.ErrorIs(t, run([]string{"none", "v1"}, nil), fs.ErrNotExist)
	for part, args := range map[string][]string{"main.go": {"main.go", "v1"}, "usage": nil} {
		err := run(args, nil)
		require.Error(t, err, part)
		require.Contains(t, err.Error(), part)
	}
}
