// SPDX-License-Identifier: Apache-2.0

// Command sbom writes the bill of materials of a Go binary, in the CycloneDX 1.6 format: the modules that are linked
// into the binary, according to its build information. The output for a binary is always the same. Usage:
//
//	go run ./deploy/sbom BINARY VERSION >BINARY.cdx.json
package main

import (
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"strings"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "sbom:", err)
		os.Exit(1)
	}
}

// bom is a CycloneDX document.
type bom struct {
	Format       string       `json:"bomFormat"`
	Spec         string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Ref        string     `json:"bom-ref"`
	Type       string     `json:"type"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl"`
	Hashes     []hash     `json:"hashes,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type hash struct {
	Algorithm string `json:"alg"`
	Content   string `json:"content"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref  string   `json:"ref"`
	Uses []string `json:"dependsOn"`
}

func run(args []string, out io.Writer) error {
	if len(args) != 2 {
		return errors.New("usage: sbom BINARY VERSION")
	}
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	b, err := os.ReadFile(args[0]) //nolint:gosec // the caller names the file
	if err != nil {
		return fmt.Errorf("read binary: %w", err)
	}
	sum := sha256.Sum256(b)
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(describe(info, args[1], hex.EncodeToString(sum[:]))); err != nil {
		return fmt.Errorf("write bill of materials: %w", err)
	}
	return nil
}

// describe returns the document of a binary with the SHA-256 sum, in hexadecimal.
func describe(info *debug.BuildInfo, version, sum string) bom {
	self := module(info.Main.Path, version)
	self.Type, self.Hashes = "application", []hash{{"SHA-256", sum}}
	for _, s := range info.Settings {
		switch s.Key {
		case "GOOS", "GOARCH", "GOAMD64", "GOARM64", "CGO_ENABLED", "-trimpath":
			self.Properties = append(self.Properties, property{"go:build:" + strings.TrimPrefix(s.Key, "-"), s.Value})
		}
	}
	d := bom{
		Format: "CycloneDX", Spec: "1.6", Version: 1, Metadata: metadata{self},
		Components: []component{module("std", info.GoVersion)},
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		c := module(m.Path, m.Version)
		if m.Sum != "" {
			c.Properties = []property{{"go:sum", m.Sum}}
		}
		d.Components = append(d.Components, c)
	}
	uses := dependency{Ref: self.Ref}
	for _, c := range d.Components {
		uses.Uses = append(uses.Uses, c.Ref)
	}
	d.Dependencies = []dependency{uses}
	return d
}

func module(path, version string) component {
	purl := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
	return component{Ref: purl, Type: "library", Name: path, Version: version, PURL: purl}
}
